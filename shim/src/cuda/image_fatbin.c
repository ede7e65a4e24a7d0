/* Variables of a fat binary: a header and entries, each a header and PTX or a cubin, which may be
 * compressed. `fatbinary --concat` (CUDA 13) packs several cubins into one entry, with a table of
 * them in its header. Layouts as CUDA 13.5 writes them; those of 11 and 12 are the same. */
#include "image_parts.h"

#include "../common/sys.h"
#include "unpack.h"

#define ENTRY_PTX 1
#define ENTRY_CUBIN 2
#define ENTRY_SEVERAL 0x100
#define LZ4 0x2000u
#define ZSTD 0x8000u
#define OTHERWISE 0x1000u /* compressed by a method of long ago */
#define ENTRIES_MOST 1024
#define UNPACKED_MOST (UINT64_C(1) << 30)

struct fatbin {
    uint32_t magic;
    uint16_t version, header_size;
    uint64_t size;
};

struct entry {
    uint16_t kind, version;
    uint32_t header_size;
    uint64_t size; /* of what follows */
    uint32_t packed_size, name_offset, version_of_code, arch, unused[2];
    uint64_t flags, reserved, unpacked_size;
};

/* Behind the header of an entry of several: how many, the table's size, and for each of them: */
struct one {
    uint16_t kind, version;
    uint32_t offset, size, unused[3], version_of_code, arch, more[8];
};

/* What a driver may take on this GPU: PTX of an older or the same architecture, or a cubin of the
 * same major one. */
static bool runs_on(unsigned arch, unsigned kind, unsigned made_for)
{
    if (arch == 0 || made_for == 0)
        return true;
    return made_for <= arch && (kind == ENTRY_PTX || made_for / 10 == arch / 10);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Of an entry's code, which is plain by now. */
static uint64_t of_several(struct ap_piece fatbin, uint64_t at, struct ap_piece code, unsigned arch)
{
    uint32_t head[2] = {0}; /* count, size of the table */
    uint64_t most = 0;
    if (!ap_piece_read(fatbin, at + sizeof(struct entry), head, sizeof head))
        return 0;
    at += sizeof(struct entry) + sizeof head;
    for (uint32_t i = 0; i < head[0] && i < ENTRIES_MOST; i++) {
        struct one one = {0};
        if (!ap_piece_read(fatbin, at + i * sizeof one, &one, sizeof one) ||
            one.offset > code.size || one.size > code.size - one.offset)
            break;
        struct ap_piece cubin = {code.at + one.offset, one.size};
        if (runs_on(arch, one.kind, one.arch))
            most = larger(most, ap_code_variables(cubin));
    }
    return most;
}

static uint64_t of_plain(struct ap_piece fatbin, uint64_t at, const struct entry *entry,
                         struct ap_piece code, unsigned arch)
{
    return entry->kind == ENTRY_SEVERAL ? of_several(fatbin, at, code, arch)
                                        : ap_code_variables(code);
}

static bool unpack(const struct entry *entry, struct ap_piece code, unsigned char *from,
                   unsigned char *to)
{
    if (!ap_piece_read(code, 0, from, entry->packed_size))
        return false;
    return (entry->flags & ZSTD)
               ? ap_unpack_zstd(from, entry->packed_size, to, (size_t)entry->unpacked_size)
               : ap_unpack_lz4(from, entry->packed_size, to, (size_t)entry->unpacked_size);
}

static uint64_t of_packed(struct ap_piece fatbin, uint64_t at, const struct entry *entry,
                          struct ap_piece code, unsigned arch)
{
    uint64_t bytes = 0;
    if (entry->packed_size == 0 || entry->unpacked_size == 0 ||
        entry->packed_size > UNPACKED_MOST || entry->unpacked_size > UNPACKED_MOST)
        return 0;
    unsigned char *from = ap_map_private(entry->packed_size);
    unsigned char *to = ap_map_private((size_t)entry->unpacked_size);
    if (from && to && unpack(entry, code, from, to))
        bytes = of_plain(fatbin, at, entry,
                         (struct ap_piece){(uintptr_t)to, entry->unpacked_size}, arch);
    if (from)
        ap_unmap(from, entry->packed_size);
    if (to)
        ap_unmap(to, (size_t)entry->unpacked_size);
    return bytes;
}

static uint64_t of_entry(struct ap_piece fatbin, uint64_t at, const struct entry *entry,
                         unsigned arch)
{
    struct ap_piece code = {fatbin.at + at + entry->header_size, entry->size};
    bool known = entry->kind == ENTRY_PTX || entry->kind == ENTRY_CUBIN ||
                 entry->kind == ENTRY_SEVERAL;
    if (!known || entry->flags & OTHERWISE || !runs_on(arch, entry->kind, entry->arch))
        return 0;
    return (entry->flags & (LZ4 | ZSTD)) ? of_packed(fatbin, at, entry, code, arch)
                                         : of_plain(fatbin, at, entry, code, arch);
}

/* Which of those that fit the driver takes depends on its options too: so room for the largest. */
uint64_t ap_fatbin_variables(struct ap_piece fatbin, unsigned arch)
{
    struct fatbin head = {0};
    struct entry entry = {0};
    uint64_t most = 0, at = sizeof head;
    if (!ap_piece_read(fatbin, 0, &head, sizeof head) || head.header_size != sizeof head)
        return 0;
    if (head.size < fatbin.size - sizeof head)
        fatbin.size = sizeof head + head.size;
    for (int i = 0; i < ENTRIES_MOST && ap_piece_read(fatbin, at, &entry, sizeof entry); i++) {
        uint64_t left = fatbin.size - at;
        if (entry.header_size < sizeof entry || entry.header_size > left ||
            entry.size > left - entry.header_size)
            break;
        most = larger(most, of_entry(fatbin, at, &entry, arch));
        at += entry.header_size + entry.size;
    }
    return most;
}
