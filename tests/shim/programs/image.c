/* What images say of their variables: `image <capability> <file>...`. A line for each: the bytes by the file, by
 * its text or code in memory with a zero behind it, and by a wrapper of it as cudart passes one.
 * Behind the memory there is none. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../../shim/src/cuda/image.h"

#define MOST (1 << 20)
#define WRAPPER 0x466243b1u

static char *read_to_the_end_of_memory(const char *path)
{
    char *at = mmap(NULL, 2 * MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int fd = open(path, O_RDONLY);
    off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    if (at == MAP_FAILED || size < 0 || size >= MOST || munmap(at + MOST, MOST))
        return NULL;
    at += MOST - size - 1;
    long got = pread(fd, at, (size_t)size, 0);
    close(fd);
    return got == size ? at : NULL;
}

int main(int argc, char **argv)
{
    unsigned arch = argc > 1 ? (unsigned)atoi(argv[1]) : 0;
    for (int i = 2; i < argc; i++) {
        const char *image = read_to_the_end_of_memory(argv[i]);
        if (!image)
            return 1;
        struct {
            unsigned magic, version;
            const void *fatbin;
        } wrapper = {WRAPPER, 1, image};
        printf("%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", ap_image_variables_of_file(argv[i], arch),
               ap_image_variables(image, arch), ap_image_variables(&wrapper, arch));
    }
    return ap_image_variables(NULL, 0) || ap_image_variables((void *)8, 0);
}
