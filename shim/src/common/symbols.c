#include "symbols.h"

#include <stdbool.h>
#include <string.h>

/* The linker's name for the beginning of what it links; _DYNAMIC is in link.h. */
extern const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden")));

/* glibc writes addresses in the place of offsets there; other linkers leave them. */
static void *address(uintptr_t base, const ElfW(Dyn) *entry)
{
    uintptr_t at = entry->d_un.d_ptr;
    return (void *)(at < base ? base + at : at);
}

static struct ap_symbols read_table(uintptr_t base, const ElfW(Dyn) *entry)
{
    struct ap_symbols found = {.base = base};
    for (; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB)
            found.table = address(base, entry);
        else if (entry->d_tag == DT_STRTAB)
            found.names = address(base, entry);
        else if (entry->d_tag == DT_GNU_HASH)
            found.hash = address(base, entry);
        else if (entry->d_tag == DT_VERDEF)
            found.has_versions = true;
    }
    return found;
}

struct ap_symbols ap_symbols_own(void)
{
    return read_table((uintptr_t)&__ehdr_start, _DYNAMIC);
}

struct ap_symbols ap_symbols_of(const struct link_map *library)
{
    return read_table(library->l_addr, library->l_ld);
}

static uint32_t hash_of(const char *name)
{
    uint32_t hash = 5381;
    for (const char *c = name; *c; c++)
        hash = hash * 33 + (unsigned char)*c;
    return hash;
}

/* The table's head: how many buckets, the first symbol that is in one, the words of the filter that
 * follows, a shift. Then the buckets, each the number of its first symbol, and for each symbol its
 * hash, whose lowest bit is set in a bucket's last one. */
ElfW(Sym) *ap_symbols_find(const struct ap_symbols *symbols, const char *name)
{
    if (!symbols->table || !symbols->names || !symbols->hash)
        return NULL;
    const uint32_t *head = symbols->hash, hash = hash_of(name);
    const uint32_t *buckets = head + 4 + head[2] * (sizeof(ElfW(Addr)) / sizeof *head);
    const uint32_t *hashes = buckets + head[0];
    uint32_t index = head[0] ? buckets[hash % head[0]] : 0;
    for (bool last = index < head[1]; !last; index++) {
        uint32_t found = hashes[index - head[1]];
        ElfW(Sym) *symbol = &symbols->table[index];
        if ((found | 1) == (hash | 1) && strcmp(symbols->names + symbol->st_name, name) == 0)
            return symbol->st_shndx == SHN_UNDEF ? NULL : symbol;
        last = found & 1;
    }
    return NULL;
}

void *ap_symbols_function(const struct ap_symbols *symbols, const char *name)
{
    const ElfW(Sym) *symbol = symbols->has_versions ? NULL : ap_symbols_find(symbols, name);
    if (!symbol || ELF64_ST_TYPE(symbol->st_info) != STT_FUNC)
        return NULL;
    return (void *)(symbols->base + symbol->st_value);
}
