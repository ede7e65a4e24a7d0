/* A block of LZ4: sequences of some literal bytes and a match, which repeats bytes made before. */
#include "unpack.h"

#include <string.h>

#define LEAST_MATCH 4
#define GOES_ON 15 /* a length of this much in the token has bytes more behind it */

struct reader {
    const unsigned char *from, *end;
};

/* The rest of a length that began in the token. */
static bool read_length(struct reader *reader, size_t *length)
{
    unsigned char byte = 255;
    if (*length < GOES_ON)
        return true;
    while (byte == 255) {
        if (reader->from == reader->end)
            return false;
        byte = *reader->from++;
        *length += byte;
    }
    return true;
}

bool ap_unpack_lz4(const unsigned char *from, size_t from_size, unsigned char *to, size_t to_size)
{
    struct reader reader = {from, from + from_size};
    size_t done = 0;
    while (reader.from < reader.end) {
        unsigned char token = *reader.from++;
        size_t literals = token >> 4, match = token & 15;
        if (!read_length(&reader, &literals) || literals > (size_t)(reader.end - reader.from) ||
            literals > to_size - done)
            return false;
        memcpy(to + done, reader.from, literals);
        reader.from += literals;
        done += literals;
        if (reader.from == reader.end)
            break; /* the last sequence has no match */
        if (reader.end - reader.from < 2)
            return false;
        size_t back = (size_t)(reader.from[0] | reader.from[1] << 8);
        reader.from += 2;
        if (!read_length(&reader, &match) || back == 0 || back > done ||
            match + LEAST_MATCH > to_size - done)
            return false;
        for (size_t i = 0; i < match + LEAST_MATCH; i++, done++)
            to[done] = to[done - back];
    }
    return done == to_size;
}
