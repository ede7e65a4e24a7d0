/* `unpack zstd|lz4 <size>`: what standard input, up to a MiB, unpacks to, on standard output.
 * Status 1: it is damaged, or has not this size. With a word more, many in its place, each in
 * memory of its own size so that a sanitizer sees any step beyond, and silence:
 *   beginnings   all of them, each of which must be refused
 *   cut <at>     a frame whose block at <at> ends early, wherever: each must be refused
 *   damaged      each byte changed in some ways; only that nothing else is touched */
#include "../../../shim/src/cuda/unpack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST (1 << 20)
#define BLOCK_HEAD 3u
#define LAST_COMPRESSED 5u /* of a block's head */

static unsigned char some[MOST], *to;
static size_t got, to_size;
static bool is_zstd;

static bool unpack(const unsigned char *data, size_t size)
{
    unsigned char *from = malloc(size ? size : 1);
    if (!from)
        exit(2);
    memcpy(from, data, size);
    bool good = is_zstd ? ap_unpack_zstd(from, size, to, to_size)
                        : ap_unpack_lz4(from, size, to, to_size);
    free(from);
    return good;
}

static int must_be_refused(const unsigned char *data, size_t size)
{
    if (!unpack(data, size))
        return 0;
    printf("the first %zu bytes make all\n", size);
    return 1;
}

static int all_beginnings(void)
{
    for (size_t size = 0; size < got; size++)
        if (must_be_refused(some, size))
            return 1;
    return 0;
}

static int all_cuts(size_t at)
{
    size_t block = some[at] >> 3 | (size_t)some[at + 1] << 5 | (size_t)some[at + 2] << 13;
    for (size_t size = 0; size < block && at + BLOCK_HEAD + size <= got; size++) {
        size_t head = size << 3 | LAST_COMPRESSED;
        for (size_t i = 0; i < BLOCK_HEAD; i++)
            some[at + i] = (unsigned char)(head >> (8 * i));
        if (must_be_refused(some, at + BLOCK_HEAD + size))
            return 1;
    }
    return 0;
}

static int all_damaged(void)
{
    for (size_t at = 0; at < got; at++) {
        const unsigned char was = some[at];
        const unsigned char others[] = {0, 1, 255, was ^ 1, was ^ 4, was ^ 16, was ^ 128, was + 1};
        for (size_t i = 0; i < sizeof others; i++) {
            some[at] = others[i];
            (void)unpack(some, got);
        }
        some[at] = was;
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    is_zstd = strcmp(argv[1], "zstd") == 0;
    to_size = strtoull(argv[2], NULL, 10);
    got = fread(some, 1, MOST, stdin);
    to = malloc(to_size ? to_size : 1);
    if (!to)
        return 2;
    if (argc == 4 && strcmp(argv[3], "beginnings") == 0)
        return all_beginnings();
    if (argc == 5 && strcmp(argv[3], "cut") == 0)
        return all_cuts(strtoull(argv[4], NULL, 10));
    if (argc == 4 && strcmp(argv[3], "damaged") == 0)
        return all_damaged();
    bool good = unpack(some, got);
    if (good)
        fwrite(to, 1, to_size, stdout);
    free(to);
    return !good;
}
