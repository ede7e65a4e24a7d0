/* Variables of a cubin, an ELF file of its own machine: uninitialised ones are its section
 * .nv.global, initialised ones .nv.global.init; symbols say which of them are managed (st_other 4;
 * sm_75 to sm_100, ptxas 12.9). */
#include "image_parts.h"

#include <elf.h>
#include <string.h>

#define MACHINE_CUDA 190
#define MANAGED 4
#define SYMBOLS_MOST (1u << 20)
#define AT_ONCE 32

/* Some of the `count` entries at `offset`, from `first` on; returns how many, 0 on failure. */
static uint64_t read_entries(struct ap_piece piece, uint64_t offset, uint64_t count, uint64_t first,
                             void *to, size_t size)
{
    uint64_t some = count - first < AT_ONCE ? count - first : AT_ONCE;
    return ap_piece_read(piece, offset + first * size, to, (size_t)some * size) ? some : 0;
}

/* Of a cubin: its sections for variables, and what is in them. */
struct variables {
    uint64_t sections[4];
    unsigned count;
    uint64_t bytes;
    Elf64_Shdr symbols; /* sh_size 0: none seen */
};

/* With its zero; what is behind it may not be there. */
static bool is_named(struct ap_piece cubin, uint64_t at, const char *name, size_t size)
{
    char found[sizeof ".nv.global.init"];
    return size <= sizeof found && ap_piece_read(cubin, at, found, size) &&
           memcmp(found, name, size) == 0;
}

static bool is_for_variables(struct ap_piece cubin, uint64_t names, const Elf64_Shdr *section)
{
    static const char plain[] = ".nv.global", initialised[] = ".nv.global.init";
    uint64_t name = names + section->sh_name;
    return (section->sh_type == SHT_NOBITS || section->sh_type == SHT_PROGBITS) &&
           (section->sh_flags & (SHF_ALLOC | SHF_WRITE)) == (SHF_ALLOC | SHF_WRITE) &&
           (is_named(cubin, name, plain, sizeof plain) ||
            is_named(cubin, name, initialised, sizeof initialised));
}

static void look_at_section(struct ap_piece cubin, uint64_t names, const Elf64_Shdr *section,
                            uint64_t index, struct variables *out)
{
    if (section->sh_type == SHT_SYMTAB)
        out->symbols = *section;
    if (out->count == 4 || !is_for_variables(cubin, names, section))
        return;
    out->sections[out->count++] = index;
    if (__builtin_add_overflow(out->bytes, section->sh_size, &out->bytes))
        out->bytes = UINT64_MAX;
}

static bool is_managed(const struct variables *variables, const Elf64_Sym *symbol)
{
    bool inside = false;
    for (unsigned i = 0; i < variables->count; i++)
        inside = inside || symbol->st_shndx == variables->sections[i];
    return inside && ELF64_ST_TYPE(symbol->st_info) == STT_OBJECT && symbol->st_other & MANAGED;
}

static uint64_t managed_bytes(struct ap_piece cubin, const struct variables *variables)
{
    Elf64_Sym symbols[AT_ONCE];
    uint64_t sum = 0, count = variables->symbols.sh_size / sizeof *symbols;
    for (uint64_t i = 0, some; i < count && i < SYMBOLS_MOST; i += some) {
        some = read_entries(cubin, variables->symbols.sh_offset, count, i, symbols,
                            sizeof *symbols);
        if (some == 0)
            return UINT64_MAX;
        for (uint64_t k = 0; k < some; k++)
            sum += is_managed(variables, &symbols[k]) ? symbols[k].st_size : 0;
    }
    return sum;
}

uint64_t ap_cubin_variables(struct ap_piece cubin)
{
    Elf64_Ehdr head;
    Elf64_Shdr sections[AT_ONCE], names;
    struct variables found = {.count = 0};
    if (!ap_piece_read(cubin, 0, &head, sizeof head) || head.e_ident[EI_CLASS] != ELFCLASS64 ||
        head.e_machine != MACHINE_CUDA || head.e_shentsize != sizeof names ||
        !ap_piece_read(cubin, head.e_shoff + (uint64_t)head.e_shstrndx * sizeof names, &names,
                 sizeof names))
        return 0;
    for (uint64_t i = 0, some; i < head.e_shnum; i += some) {
        some = read_entries(cubin, head.e_shoff, head.e_shnum, i, sections, sizeof names);
        if (some == 0)
            return 0;
        for (uint64_t k = 0; k < some; k++)
            look_at_section(cubin, names.sh_offset, &sections[k], i + k, &found);
    }
    uint64_t managed = found.bytes ? managed_bytes(cubin, &found) : 0;
    return managed < found.bytes ? found.bytes - managed : 0;
}
