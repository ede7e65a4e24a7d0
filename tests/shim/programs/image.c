/* What images say of their variables: `image <capability> <file>...`. A line for each: the bytes by
 * the file, by its text or code in memory with a zero behind it, and by a wrapper of it as cudart
 * passes one. Behind the memory there is none. `image <file>`: by the file alone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* Text that goes on to where nothing can be read says nothing. */
static bool has_no_end(void)
{
    static const char text[] = ".version 7.0\n.global .b8 a[9];\n";
    char *at = mmap(NULL, 2 * MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || munmap(at + MOST, MOST))
        return false;
    memset(at, '\n', MOST);
    memcpy(at, text, sizeof text - 1);
    return ap_image_variables(at, 0) == 0;
}

int main(int argc, char **argv)
{
    if (argc == 2)
        return printf("%" PRIu64 "\n", ap_image_variables_of_file(argv[1], 0)) < 0;
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
    return !has_no_end() || ap_image_variables(NULL, 0) || ap_image_variables((void *)8, 0);
}
