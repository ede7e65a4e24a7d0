/* `unpack zstd|lz4 <size>`: what standard input, up to a MiB, unpacks to, on standard output.
 * Status 1: it is damaged, or has not this size. */
#include "../../../shim/src/cuda/unpack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST (1 << 20)

int main(int argc, char **argv)
{
    static unsigned char some[MOST];
    if (argc != 3)
        return 2;
    size_t size = strtoull(argv[2], NULL, 10), got = fread(some, 1, MOST, stdin);
    unsigned char *from = malloc(got ? got : 1), *to = malloc(size ? size : 1);
    if (!from || !to)
        return 2;
    memcpy(from, some, got); /* so that a sanitizer sees any step beyond the end */
    bool good = strcmp(argv[1], "zstd") == 0 ? ap_unpack_zstd(from, got, to, size)
                                             : ap_unpack_lz4(from, got, to, size);
    if (good)
        fwrite(to, 1, size, stdout);
    free(from);
    free(to);
    return !good;
}
