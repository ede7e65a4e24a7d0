/* The two entropy codes of Zstandard (RFC 8878, section 4): FSE and Huffman. */
#ifndef AP_CUDA_UNPACK_ENTROPY_H
#define AP_CUDA_UNPACK_ENTROPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define AP_FSE_LOG_MOST 9
#define AP_HUFFMAN_LOG_MOST 11

/* A stream that is read from its end; `left` bits of it are not read yet. Negative: what was read
 * beyond its beginning, where zeros are. */
struct ap_bits {
    const unsigned char *from;
    size_t size;
    int64_t left;
};

/* false: it has no end mark, the highest bit set in its last byte. */
bool ap_bits_begin(struct ap_bits *bits, const unsigned char *from, size_t size);

/* As ap_bits_peek, near either end of the stream. */
uint32_t ap_bits_peek_slowly(const struct ap_bits *bits, unsigned count);

/* The next `count` bits, at most 32, which stay unread. */
static inline uint32_t ap_bits_peek(const struct ap_bits *bits, unsigned count)
{
    int64_t at = bits->left - count;
    uint64_t word;
    if (at < 0 || ((size_t)at >> 3) + sizeof word > bits->size)
        return ap_bits_peek_slowly(bits, count);
    memcpy(&word, bits->from + ((size_t)at >> 3), sizeof word);
    return (uint32_t)(word >> (at & 7) & ((UINT64_C(1) << count) - 1));
}

static inline uint32_t ap_bits_read(struct ap_bits *bits, unsigned count)
{
    uint32_t found = ap_bits_peek(bits, count);
    bits->left -= count;
    return found;
}

/* A table of 1 << log states: each stands for a symbol, and for where the next bits lead. */
struct ap_fse {
    unsigned log;
    struct {
        uint16_t base;
        uint8_t symbol, bits;
    } states[1 << AP_FSE_LOG_MOST];
};

/* `shares` of `count` symbols sum up to 1 << log, where -1 counts as 1. */
void ap_fse_build(struct ap_fse *table, const int16_t *shares, unsigned count, unsigned log);
/* The table of a single symbol, which needs no bits. */
void ap_fse_single(struct ap_fse *table, uint8_t symbol);
/* A table's description; returns its length in bytes, 0 when it is damaged. */
size_t ap_fse_read(struct ap_fse *table, const unsigned char *from, size_t size, unsigned log_most,
                   unsigned symbols_most);

static inline uint32_t ap_fse_begin(const struct ap_fse *table, struct ap_bits *bits)
{
    return ap_bits_read(bits, table->log);
}

static inline uint32_t ap_fse_next(const struct ap_fse *table, uint32_t state,
                                   struct ap_bits *bits)
{
    return table->states[state].base + ap_bits_read(bits, table->states[state].bits);
}

/* By the next `log` bits: the symbol they begin with, and how many of them are its. */
struct ap_huffman {
    unsigned log;
    struct {
        uint8_t symbol, bits;
    } codes[1 << AP_HUFFMAN_LOG_MOST];
};

/* A tree's description; returns its length in bytes, 0 when it is damaged. */
size_t ap_huffman_read(struct ap_huffman *tree, const unsigned char *from, size_t size);
/* One stream of exactly `count` symbols. */
bool ap_huffman_decode(const struct ap_huffman *tree, const unsigned char *from, size_t size,
                       unsigned char *to, size_t count);

#endif
