#define _GNU_SOURCE
#include "front.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "log.h"
#include "sys.h"

/* glibc before 2.34 has these in libdl under the platform's first version; newer ones keep that
 * version, so it serves everywhere. */
#if defined(__x86_64__)
#define FIRST_GLIBC "GLIBC_2.2.5"
#define DLADDR1_GLIBC "GLIBC_2.3.3"
#elif defined(__aarch64__)
#define FIRST_GLIBC "GLIBC_2.17"
#define DLADDR1_GLIBC "GLIBC_2.17"
#endif
#ifdef FIRST_GLIBC
__asm__(".symver dlopen, dlopen@" FIRST_GLIBC);
__asm__(".symver dlsym, dlsym@" FIRST_GLIBC);
__asm__(".symver dladdr, dladdr@" FIRST_GLIBC);
__asm__(".symver dladdr1, dladdr1@" DLADDR1_GLIBC);
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
    for (size_t i = 0; i < count; i++) {
        void *real = library ? dlsym(library, hooks[i].name) : NULL;
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

/* The symbol's entry in this process's copy of our dynamic symbol table. */
static ElfW(Sym) *symbol_of(const void *function)
{
    Dl_info about;
    void *symbol = NULL;
    if (!dladdr1(function, &about, &symbol, RTLD_DL_SYMENT))
        return NULL;
    return symbol;
}

static bool set_protection(const ElfW(Sym) *symbol, int protection)
{
    uintptr_t page = 4096, first = (uintptr_t)symbol / page * page;
    uintptr_t end = ((uintptr_t)(symbol + 1) + page - 1) / page * page;
    return ap_sys(SYS_mprotect, (long)first, (long)(end - first), protection, 0, 0, 0) == 0;
}

/* The dynamic linker passes over a symbol without section and value, as over any import. */
static void hide(const struct ap_hook *hook)
{
    ElfW(Sym) *symbol = symbol_of(hook->front);
    if (!symbol || !set_protection(symbol, PROT_READ | PROT_WRITE)) {
        ap_log("%s stays visible though the driver has not got it", hook->name);
        return;
    }
    symbol->st_shndx = SHN_UNDEF;
    symbol->st_value = 0;
    (void)set_protection(symbol, PROT_READ);
}

void ap_front_hide_missing(const struct ap_hook *hooks, size_t count, const void *table)
{
    for (size_t i = 0; i < count; i++)
        if (hooks[i].front && !real_in(table, &hooks[i]))
            hide(&hooks[i]);
}

void *ap_front_of(const struct ap_hook *hooks, size_t count, const void *table, const void *real)
{
    for (size_t i = 0; i < count; i++)
        if (hooks[i].front && real && real_in(table, &hooks[i]) == real)
            return hooks[i].front;
    return NULL;
}
