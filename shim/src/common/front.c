#define _GNU_SOURCE
#include "front.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "log.h"
#include "symbols.h"
#include "sys.h"

/* glibc before 2.34 has these in libdl under the platform's first version; newer ones keep that
 * version, so it serves everywhere. */
#if defined(__x86_64__)
#define FIRST_GLIBC "GLIBC_2.2.5"
#define DLINFO_GLIBC "GLIBC_2.3.3"
#elif defined(__aarch64__)
#define FIRST_GLIBC "GLIBC_2.17"
#define DLINFO_GLIBC "GLIBC_2.17"
#endif
#ifdef FIRST_GLIBC
__asm__(".symver dlopen, dlopen@" FIRST_GLIBC);
__asm__(".symver dlsym, dlsym@" FIRST_GLIBC);
__asm__(".symver dlinfo, dlinfo@" DLINFO_GLIBC);
__asm__(".symver dladdr, dladdr@" FIRST_GLIBC);
#endif

static void *real_in(const void *table, const struct ap_hook *hook)
{
    void *real;
    memcpy(&real, (const char *)table + hook->offset, sizeof real);
    return real;
}

void ap_front_fill(const char *path, const struct ap_hook *hooks, size_t count, void *table)
{
    int saved = errno;
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (!library)
        ap_log("%s is not loaded: every hooked call will fail", path);
    struct link_map *map = NULL;
    struct ap_symbols symbols = {.base = 0};
    if (library && dlinfo(library, RTLD_DI_LINKMAP, &map) == 0)
        symbols = ap_symbols_of(map);
    for (size_t i = 0; i < count; i++) {
        void *real = ap_symbols_function(&symbols, hooks[i].name);
        if (!real && library)
            real = dlsym(library, hooks[i].name);
        memcpy((char *)table + hooks[i].offset, &real, sizeof real);
    }
    errno = saved;
}

bool ap_front_load_beside(const char *name)
{
    int saved = errno;
    Dl_info about;
    char path[4096] = "";
    if (dladdr((void *)ap_front_load_beside, &about) && about.dli_fname) {
        const char *slash = strrchr(about.dli_fname, '/');
        int folder = slash ? (int)(slash - about.dli_fname) + 1 : 0;
        int length = snprintf(path, sizeof path, "%.*s%s", folder, about.dli_fname, name);
        if (length < 0 || (size_t)length >= sizeof path)
            path[0] = '\0';
    }
    void *library = path[0] ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    bool ours = library && dlsym(library, "apportion_shim_build_id");
    errno = saved;
    return ours;
}

/* The pages of our table of dynamic symbols that may be written to for now. */
struct pages {
    uintptr_t from, to;
};

#define PAGE ((uintptr_t)4096)

static bool set_protection(uintptr_t from, uintptr_t to, int protection)
{
    return ap_sys(SYS_mprotect, (long)from, (long)(to - from), protection, 0, 0, 0) == 0;
}

/* Each change costs as much as all the rest of a symbol, so the pages stay open for the next. */
static bool open_for(struct pages *pages, const ElfW(Sym) *symbol)
{
    uintptr_t from = (uintptr_t)symbol / PAGE * PAGE;
    uintptr_t to = ((uintptr_t)(symbol + 1) + PAGE - 1) / PAGE * PAGE;
    if (from >= pages->from && to <= pages->to)
        return true;
    if (pages->to && pages->from < from)
        from = pages->from;
    if (pages->to > to)
        to = pages->to;
    if (!set_protection(from, to, PROT_READ | PROT_WRITE))
        return false;
    *pages = (struct pages){from, to};
    return true;
}

/* The dynamic linker passes over a symbol without section and value, as over any import. */
static void hide(const struct ap_hook *hooks, size_t count, const void *unless_in)
{
    struct ap_symbols own = ap_symbols_own();
    struct pages pages = {0, 0};
    for (size_t i = 0; i < count; i++) {
        if (!hooks[i].front || (unless_in && real_in(unless_in, &hooks[i])))
            continue;
        ElfW(Sym) *symbol = ap_symbols_find(&own, hooks[i].name);
        if (!symbol || !open_for(&pages, symbol)) {
            ap_log("%s stays visible though it should not be", hooks[i].name);
            continue;
        }
        symbol->st_shndx = SHN_UNDEF;
        symbol->st_value = 0;
    }
    if (pages.to)
        (void)set_protection(pages.from, pages.to, PROT_READ);
}

void ap_front_hide_missing(const struct ap_hook *hooks, size_t count, const void *table)
{
    hide(hooks, count, table);
}

void ap_front_hide(const struct ap_hook *hooks, size_t count)
{
    hide(hooks, count, NULL);
}

void *ap_front_of(const struct ap_hook *hooks, size_t count, const void *table, const void *real)
{
    for (size_t i = 0; i < count; i++)
        if (hooks[i].front && real && real_in(table, &hooks[i]) == real)
            return hooks[i].front;
    return NULL;
}
