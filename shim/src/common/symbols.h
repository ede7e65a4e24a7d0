/* A loaded library's dynamic symbols, read as the dynamic linker reads them. */
#ifndef AP_SYMBOLS_H
#define AP_SYMBOLS_H

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

struct ap_symbols {
    uintptr_t base;       /* where the library lies */
    ElfW(Sym) *table;
    const char *names;
    const uint32_t *hash; /* DT_GNU_HASH */
    bool has_versions;    /* a name may mean several symbols */
};

/* Our own. */
struct ap_symbols ap_symbols_own(void);

struct ap_symbols ap_symbols_of(const struct link_map *library);

/* The entry of a symbol that the library defines; NULL: it defines none of that name. */
ElfW(Sym) *ap_symbols_find(const struct ap_symbols *symbols, const char *name);

/* The function of that name, where this needs none of the dynamic linker's rules (versions,
 * choice by processor, other libraries); NULL: ask dlsym. */
void *ap_symbols_function(const struct ap_symbols *symbols, const char *name);

#endif
