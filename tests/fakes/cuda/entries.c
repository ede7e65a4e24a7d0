/* The table behind cuGetProcAddress. It needs the functions' addresses only, so their types are
 * left out; no other declaration of them may be seen here. */
#include "entries.h"

#define ENTRY(name, symbol, version, stream) void symbol(void);
#include "entries.def"
#undef ENTRY

const struct cu_entry cu_entries[] = {
#define ENTRY(name, symbol, version, stream) {#name, symbol, version, stream},
#include "entries.def"
#undef ENTRY
};

const unsigned cu_entry_count = sizeof cu_entries / sizeof *cu_entries;
