/* A frame of Zstandard (RFC 8878): blocks, each raw, one byte repeated, or literals with sequences
 * that say how many of them to take and what to repeat of the bytes made before. */
#include "unpack.h"

#include "../common/sys.h"
#include "unpack_entropy.h"

#define MAGIC 0xfd2fb528u
#define BLOCK_MOST (128u << 10)
#define LITERAL_LENGTH 0
#define OFFSET 1
#define MATCH_LENGTH 2
#define LITERAL_CODES 36
#define OFFSET_CODES 32
#define MATCH_CODES 53

enum { RAW, REPEATED, COMPRESSED, AS_BEFORE };

struct frame {
    unsigned char *to;
    size_t size, done;
    size_t recent[3]; /* offsets of matches, the last first */
    bool has_tree, has_table[3];
    struct ap_huffman tree;
    struct ap_fse tables[3];
    size_t literal_count, literals_taken;
    unsigned char literals[BLOCK_MOST];
};

/* What is left to read of a block or frame. */
struct rest {
    const unsigned char *from;
    size_t size;
};

/* `count` bytes, at most 8, as a little-endian number; they must be there. */
static uint64_t take(struct rest *rest, unsigned count)
{
    uint64_t number = 0;
    memcpy(&number, rest->from, count);
    rest->from += count;
    rest->size -= count;
    return number;
}

static void skip(struct rest *rest, size_t count)
{
    rest->from += count;
    rest->size -= count;
}

/* A code's base, and the bits that are added to it. */
struct length {
    uint32_t base;
    uint8_t bits;
};

static struct length literal_length(unsigned code)
{
    static const struct length long_ones[] = {
        {16, 1},   {18, 1},   {20, 1},    {22, 1},    {24, 2},    {28, 2},     {32, 3},
        {40, 3},   {48, 4},   {64, 6},    {128, 7},   {256, 8},   {512, 9},    {1024, 10},
        {2048, 11}, {4096, 12}, {8192, 13}, {16384, 14}, {32768, 15}, {65536, 16},
    };
    return code < 16 ? (struct length){code, 0} : long_ones[code - 16];
}

static struct length match_length(unsigned code)
{
    static const struct length long_ones[] = {
        {35, 1},   {37, 1},   {39, 1},    {41, 1},    {43, 2},    {47, 2},     {51, 3},
        {59, 3},   {67, 4},   {83, 4},    {99, 5},    {131, 7},   {259, 8},    {515, 9},
        {1027, 10}, {2051, 11}, {4099, 12}, {8195, 13}, {16387, 14}, {32771, 15}, {65539, 16},
    };
    return code < 32 ? (struct length){code + 3, 0} : long_ones[code - 32];
}

static void use_default(struct ap_fse *table, int which)
{
    static const int16_t literals[LITERAL_CODES] = {
        4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2,  2,  1,  1,  1, 2, 2,
        2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1,  1,  1,  -1, -1, -1, -1,
    };
    static const int16_t offsets[] = {
        1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1,
    };
    static const int16_t matches[MATCH_CODES] = {
        1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,  1,  1,  1,  1,
        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1,
    };
    if (which == LITERAL_LENGTH)
        ap_fse_build(table, literals, LITERAL_CODES, 6);
    else if (which == OFFSET)
        ap_fse_build(table, offsets, sizeof offsets / sizeof *offsets, 5);
    else
        ap_fse_build(table, matches, MATCH_CODES, 6);
}

static bool read_table(struct frame *frame, int which, unsigned mode, struct rest *rest)
{
    static const unsigned symbols[] = {LITERAL_CODES, OFFSET_CODES, MATCH_CODES};
    static const unsigned logs[] = {9, 8, 9};
    struct ap_fse *table = &frame->tables[which];
    size_t used = 0;
    if (mode == AS_BEFORE)
        return frame->has_table[which];
    frame->has_table[which] = true;
    if (mode == RAW) {
        use_default(table, which);
        return true;
    }
    if (mode == REPEATED) {
        if (rest->size == 0 || rest->from[0] >= symbols[which])
            return false;
        ap_fse_single(table, rest->from[0]);
        used = 1;
    } else {
        used = ap_fse_read(table, rest->from, rest->size, logs[which], symbols[which]);
    }
    skip(rest, used);
    return used > 0;
}

static bool decode_four(struct frame *frame, struct rest streams)
{
    size_t each = (frame->literal_count + 3) / 4, sizes[4];
    unsigned char *to = frame->literals;
    if (streams.size < 6 || 3 * each > frame->literal_count)
        return false;
    for (int i = 0; i < 3; i++)
        sizes[i] = (size_t)take(&streams, 2);
    if (sizes[0] + sizes[1] + sizes[2] > streams.size)
        return false;
    sizes[3] = streams.size - sizes[0] - sizes[1] - sizes[2];
    for (int i = 0; i < 4; i++, to += each) {
        size_t count = i < 3 ? each : frame->literal_count - 3 * each;
        if (!ap_huffman_decode(&frame->tree, streams.from, sizes[i], to, count))
            return false;
        skip(&streams, sizes[i]);
    }
    return true;
}

static bool read_huffman(struct frame *frame, unsigned kind, unsigned streams, struct rest section)
{
    if (kind == COMPRESSED) {
        size_t used = ap_huffman_read(&frame->tree, section.from, section.size);
        if (used == 0)
            return false;
        frame->has_tree = true;
        skip(&section, used);
    }
    if (!frame->has_tree)
        return false;
    return streams == 4 ? decode_four(frame, section)
                        : ap_huffman_decode(&frame->tree, section.from, section.size,
                                            frame->literals, frame->literal_count);
}

/* The literals' section; its header has sizes of 5, 12 and 20 bits, or two of 10, 14 and 18. */
static bool read_literals(struct frame *frame, struct rest *rest)
{
    static const unsigned char plain[] = {1, 2, 1, 3}, packed[] = {3, 3, 4, 5};
    if (rest->size == 0)
        return false;
    unsigned kind = rest->from[0] & 3, format = rest->from[0] >> 2 & 3;
    unsigned length = kind < COMPRESSED ? plain[format] : packed[format];
    if (rest->size < length)
        return false;
    uint64_t head = take(rest, length);
    size_t size = 0;
    frame->literals_taken = 0;
    if (kind < COMPRESSED) {
        frame->literal_count = (size_t)(length == 1 ? head >> 3 : head >> 4);
        size = kind == RAW ? frame->literal_count : 1;
    } else {
        unsigned bits = length == 3 ? 10 : length == 4 ? 14 : 18;
        frame->literal_count = head >> 4 & ((1u << bits) - 1);
        size = head >> (4 + bits) & ((1u << bits) - 1);
    }
    if (frame->literal_count > BLOCK_MOST || size > rest->size)
        return false;
    struct rest section = {rest->from, size};
    skip(rest, size);
    if (kind >= COMPRESSED)
        return read_huffman(frame, kind, format == 0 ? 1 : 4, section);
    if (kind == RAW)
        memcpy(frame->literals, section.from, size);
    else
        memset(frame->literals, section.from[0], frame->literal_count);
    return true;
}

/* An offset of 1 to 3 means one of the last three, one further when no literals come before. */
static size_t resolve_offset(size_t recent[3], size_t value, bool has_literals)
{
    size_t index = value + (has_literals ? 0 : 1), offset;
    if (value > 3) {
        offset = value - 3;
        index = 3;
    } else if (index == 1) {
        return recent[0];
    } else {
        offset = index == 4 ? recent[0] - 1 : recent[index - 1];
    }
    if (index != 2)
        recent[2] = recent[1];
    recent[1] = recent[0];
    recent[0] = offset;
    return offset;
}

static bool take_literals(struct frame *frame, size_t count)
{
    if (count > frame->literal_count - frame->literals_taken || count > frame->size - frame->done)
        return false;
    memcpy(frame->to + frame->done, frame->literals + frame->literals_taken, count);
    frame->literals_taken += count;
    frame->done += count;
    return true;
}

static bool repeat(struct frame *frame, size_t back, size_t count)
{
    unsigned char *to = frame->to + frame->done;
    if (back == 0 || back > frame->done || count > frame->size - frame->done)
        return false;
    if (back >= count) {
        memcpy(to, to - back, count);
    } else {
        for (size_t i = 0; i < count; i++)
            to[i] = *(to + i - back);
    }
    frame->done += count;
    return true;
}

static bool run_sequences(struct frame *frame, unsigned count, struct rest rest)
{
    const struct ap_fse *tables = frame->tables;
    struct ap_bits bits;
    uint32_t states[3];
    if (!ap_bits_begin(&bits, rest.from, rest.size))
        return false;
    for (int i = 0; i < 3; i++)
        states[i] = ap_fse_begin(&tables[i], &bits);
    for (unsigned i = 0; i < count && bits.left >= 0; i++) {
        unsigned code = tables[OFFSET].states[states[OFFSET]].symbol;
        size_t value = ((size_t)1 << code) + ap_bits_read(&bits, code);
        struct length match =
            match_length(tables[MATCH_LENGTH].states[states[MATCH_LENGTH]].symbol);
        size_t matched = match.base + ap_bits_read(&bits, match.bits);
        struct length literal =
            literal_length(tables[LITERAL_LENGTH].states[states[LITERAL_LENGTH]].symbol);
        size_t literals = literal.base + ap_bits_read(&bits, literal.bits);
        if (!take_literals(frame, literals) ||
            !repeat(frame, resolve_offset(frame->recent, value, literals > 0), matched))
            return false;
        if (i + 1 < count) {
            static const int order[] = {LITERAL_LENGTH, MATCH_LENGTH, OFFSET};
            for (int k = 0; k < 3; k++)
                states[order[k]] = ap_fse_next(&tables[order[k]], states[order[k]], &bits);
        }
    }
    return bits.left == 0;
}

static bool read_count(struct rest *rest, unsigned *count)
{
    if (rest->size == 0)
        return false;
    *count = (unsigned)take(rest, 1);
    if (*count < 128)
        return true;
    unsigned more = *count == 255 ? 2 : 1;
    if (rest->size < more)
        return false;
    unsigned low = (unsigned)take(rest, more);
    *count = more == 2 ? low + 0x7f00 : ((*count - 128) << 8) + low;
    return true;
}

static bool read_compressed(struct frame *frame, struct rest block)
{
    unsigned count;
    if (!read_literals(frame, &block) || !read_count(&block, &count))
        return false;
    if (count > 0) {
        if (block.size == 0)
            return false;
        unsigned modes = (unsigned)take(&block, 1);
        for (int i = 0; i < 3; i++)
            if (!read_table(frame, i, modes >> (6 - 2 * i) & 3, &block))
                return false;
        if (!run_sequences(frame, count, block))
            return false;
    }
    return take_literals(frame, frame->literal_count - frame->literals_taken);
}

static bool read_block(struct frame *frame, struct rest *rest, bool *last)
{
    if (rest->size < 3)
        return false;
    uint32_t head = (uint32_t)take(rest, 3);
    unsigned kind = head >> 1 & 3;
    size_t made = head >> 3, size = kind == REPEATED ? 1 : made;
    *last = head & 1;
    if (size > rest->size)
        return false;
    struct rest block = {rest->from, size};
    skip(rest, size);
    if (kind == COMPRESSED)
        return read_compressed(frame, block);
    if (kind == AS_BEFORE || made > frame->size - frame->done)
        return false;
    if (kind == RAW)
        memcpy(frame->to + frame->done, block.from, made);
    else
        memset(frame->to + frame->done, block.from[0], made);
    frame->done += made;
    return true;
}

/* What the header says of sizes is not needed: `to` has the size that the fat binary tells. */
static bool skip_header(struct rest *rest)
{
    static const unsigned char dictionary[] = {0, 1, 2, 4}, content[] = {0, 2, 4, 8};
    if (rest->size < 5 || take(rest, 4) != MAGIC)
        return false;
    unsigned flags = (unsigned)take(rest, 1);
    bool single = flags & 0x20;
    size_t length = (single ? 0 : 1u) + dictionary[flags & 3] + content[flags >> 6];
    length += single && flags >> 6 == 0 ? 1 : 0;
    if (flags & 3 || length > rest->size)
        return false;
    skip(rest, length);
    return true;
}

bool ap_unpack_zstd(const unsigned char *from, size_t from_size, unsigned char *to, size_t to_size)
{
    struct rest rest = {from, from_size};
    struct frame *frame = ap_map_private(sizeof *frame);
    if (!frame)
        return false;
    frame->to = to;
    frame->size = to_size;
    memcpy(frame->recent, (const size_t[]){1, 4, 8}, sizeof frame->recent);
    bool last = false, good = skip_header(&rest);
    while (good && !last)
        good = read_block(frame, &rest, &last);
    good = good && frame->done == to_size;
    ap_unmap(frame, sizeof *frame);
    return good;
}
