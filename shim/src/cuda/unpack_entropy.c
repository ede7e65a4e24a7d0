#include "unpack_entropy.h"

#define WEIGHTS_LOG_MOST 6
#define SYMBOLS 256
#define LEAST_LOG 5

static unsigned highest_bit(uint32_t number)
{
    return 31u - (unsigned)__builtin_clz(number);
}

bool ap_bits_begin(struct ap_bits *bits, const unsigned char *from, size_t size)
{
    if (size == 0 || from[size - 1] == 0)
        return false;
    *bits = (struct ap_bits){from, size, (int64_t)(8 * (size - 1) + highest_bit(from[size - 1]))};
    return true;
}

uint32_t ap_bits_peek_slowly(const struct ap_bits *bits, unsigned count)
{
    int64_t at = bits->left - count;
    unsigned beyond = 0;
    uint64_t word = 0;
    if (bits->left <= 0 || count == 0)
        return 0;
    if (at < 0) {
        beyond = (unsigned)-at;
        count -= beyond;
        at = 0;
    }
    size_t byte = (size_t)at >> 3, behind = bits->size - byte;
    memcpy(&word, bits->from + byte, behind < sizeof word ? behind : sizeof word);
    word >>= at & 7;
    return (uint32_t)((word & ((UINT64_C(1) << count) - 1)) << beyond);
}

void ap_fse_single(struct ap_fse *table, uint8_t symbol)
{
    table->log = 0;
    table->states[0].symbol = symbol;
    table->states[0].base = 0;
    table->states[0].bits = 0;
}

void ap_fse_build(struct ap_fse *table, const int16_t *shares, unsigned count, unsigned log)
{
    uint32_t size = 1u << log, high = size, place = 0;
    uint16_t next[SYMBOLS];
    table->log = log;
    for (unsigned i = 0; i < count; i++) {
        next[i] = (uint16_t)(shares[i] < 0 ? 1 : shares[i]);
        if (shares[i] < 0)
            table->states[--high].symbol = (uint8_t)i;
    }
    for (unsigned i = 0; i < count; i++) {
        for (int n = 0; n < shares[i]; n++) {
            table->states[place].symbol = (uint8_t)i;
            do
                place = (place + (size >> 1) + (size >> 3) + 3) & (size - 1);
            while (place >= high);
        }
    }
    for (uint32_t i = 0; i < size; i++) {
        uint32_t turn = next[table->states[i].symbol]++;
        unsigned bits = log - highest_bit(turn);
        table->states[i].bits = (uint8_t)bits;
        table->states[i].base = (uint16_t)((turn << bits) - size);
    }
}

/* Bits read from the beginning on, which is how a table is described. */
struct forward {
    const unsigned char *from;
    size_t bits, at;
};

/* At most 16; beyond the end are zeros, which `at` tells. */
static uint32_t read_forward(struct forward *stream, unsigned count)
{
    uint32_t word = 0;
    for (unsigned i = 0; i < 3; i++) {
        size_t byte = (stream->at >> 3) + i;
        if (8 * byte < stream->bits)
            word |= (uint32_t)stream->from[byte] << (8 * i);
    }
    word = word >> (stream->at & 7) & ((1u << count) - 1);
    stream->at += count;
    return word;
}

/* A number of 0 to `most`, whose lower ones take a bit less. */
static uint32_t read_below(struct forward *stream, uint32_t most)
{
    unsigned bits = highest_bit(most) + 1;
    uint32_t number = read_forward(stream, bits), low = (1u << (bits - 1)) - 1;
    uint32_t spare = (1u << bits) - 1 - most;
    if ((number & low) < spare) {
        stream->at--;
        return number & low;
    }
    return number > low ? number - spare : number;
}

size_t ap_fse_read(struct ap_fse *table, const unsigned char *from, size_t size, unsigned log_most,
                   unsigned symbols_most)
{
    struct forward stream = {from, 8 * size, 0};
    int16_t shares[SYMBOLS] = {0};
    unsigned log = read_forward(&stream, 4) + LEAST_LOG, count = 0;
    if (log > log_most)
        return 0;
    uint32_t left = 1u << log;
    while (left > 0 && stream.at <= stream.bits) {
        int share = (int)read_below(&stream, left + 1) - 1;
        if (count == symbols_most)
            return 0;
        shares[count++] = (int16_t)share;
        left -= (uint32_t)(share < 0 ? 1 : share);
        for (uint32_t more = share ? 0 : 3; more == 3;) {
            more = read_forward(&stream, 2);
            if (stream.at > stream.bits || more > symbols_most - count)
                return 0;
            count += more;
        }
    }
    if (left > 0 || stream.at > stream.bits)
        return 0;
    ap_fse_build(table, shares, count, log);
    return (stream.at + 7) / 8;
}

/* Two states take turns, until one needs more bits than there are. Returns how many, 0: damaged. */
static unsigned read_packed_weights(uint8_t *weights, const unsigned char *from, size_t size)
{
    struct ap_fse table;
    struct ap_bits bits;
    size_t used = ap_fse_read(&table, from, size, WEIGHTS_LOG_MOST, AP_HUFFMAN_LOG_MOST + 1);
    if (used == 0 || !ap_bits_begin(&bits, from + used, size - used))
        return 0;
    uint32_t states[2];
    states[0] = ap_fse_begin(&table, &bits);
    states[1] = ap_fse_begin(&table, &bits);
    if (bits.left < 0)
        return 0;
    for (unsigned count = 0; count < SYMBOLS - 2; count++) {
        uint32_t *state = &states[count & 1];
        weights[count] = table.states[*state].symbol;
        *state = ap_fse_next(&table, *state, &bits);
        if (bits.left < 0) {
            weights[count + 1] = table.states[states[(count + 1) & 1]].symbol;
            return count + 2;
        }
    }
    return 0;
}

/* Of all symbols but the last, in four bits each, or packed. Returns the description's length. */
static size_t read_weights(uint8_t *weights, unsigned *count, const unsigned char *from,
                           size_t size)
{
    if (size == 0)
        return 0;
    if (from[0] < 128) {
        if (from[0] > size - 1)
            return 0;
        *count = read_packed_weights(weights, from + 1, from[0]);
        return *count ? 1u + from[0] : 0;
    }
    *count = from[0] - 127u;
    if ((*count + 1) / 2 > size - 1)
        return 0;
    for (unsigned i = 0; i < *count; i++)
        weights[i] = i & 1 ? from[1 + i / 2] & 15 : from[1 + i / 2] >> 4;
    return 1 + (*count + 1) / 2;
}

/* The last symbol has the weight that fills the sum up to a power of two. */
static bool complete(uint8_t *weights, unsigned *count, unsigned *log)
{
    uint32_t sum = 0;
    for (unsigned i = 0; i < *count; i++) {
        if (weights[i] > AP_HUFFMAN_LOG_MOST)
            return false;
        sum += weights[i] ? 1u << (weights[i] - 1) : 0;
    }
    if (sum == 0)
        return false;
    *log = highest_bit(sum) + 1;
    uint32_t rest = (1u << *log) - sum;
    if (*log > AP_HUFFMAN_LOG_MOST || rest & (rest - 1))
        return false;
    weights[(*count)++] = (uint8_t)(highest_bit(rest) + 1);
    return true;
}

size_t ap_huffman_read(struct ap_huffman *tree, const unsigned char *from, size_t size)
{
    uint8_t weights[SYMBOLS] = {0};
    unsigned count = 0;
    size_t used = read_weights(weights, &count, from, size);
    if (used == 0 || !complete(weights, &count, &tree->log))
        return 0;
    uint32_t place = 0;
    for (unsigned weight = 1; weight <= tree->log; weight++) {
        for (unsigned i = 0; i < count; i++) {
            for (uint32_t n = 0; weights[i] == weight && n < 1u << (weight - 1); n++, place++) {
                tree->codes[place].symbol = (uint8_t)i;
                tree->codes[place].bits = (uint8_t)(tree->log + 1 - weight);
            }
        }
    }
    return used;
}

bool ap_huffman_decode(const struct ap_huffman *tree, const unsigned char *from, size_t size,
                       unsigned char *to, size_t count)
{
    struct ap_bits bits;
    if (!ap_bits_begin(&bits, from, size))
        return false;
    for (size_t i = 0; i < count && bits.left >= 0; i++) {
        uint32_t code = ap_bits_peek(&bits, tree->log);
        to[i] = tree->codes[code].symbol;
        bits.left -= tree->codes[code].bits;
    }
    return bits.left == 0;
}
