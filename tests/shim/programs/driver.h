/* The driver's functions as an application sees them: by dlopen and dlsym. */
#ifndef TEST_DRIVER_H
#define TEST_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef unsigned long long pointer;

struct driver {
    int (*init)(unsigned);
    int (*retain)(void **, int);
    int (*release)(int);
    int (*reset)(int);
    int (*create)(void **, unsigned, int);
    int (*destroy)(void *);
    int (*set)(void *);
    int (*alloc)(pointer *, size_t);
    int (*pitch)(pointer *, size_t *, size_t, size_t, unsigned);
    int (*managed)(pointer *, size_t, unsigned);
    int (*free)(pointer);
    int (*info)(size_t *, size_t *);
    int (*total)(size_t *, int);
    int (*create_memory)(pointer *, size_t, const void *, unsigned long long);
    int (*release_memory)(pointer);
    int (*reserve)(pointer *, size_t, size_t, pointer, unsigned long long);
    int (*map)(pointer, size_t, size_t, pointer, unsigned long long);
    int (*unmap)(pointer, size_t);
    int (*retain_memory)(pointer *, void *);
};

struct nvml {
    int (*init)(void);
    int (*handle)(unsigned, void **);
    int (*info)(void *, unsigned long long *);
    int (*info_v2)(void *, void *);
};

/* Exits with 99 when the library cannot be loaded. */
void driver_load(struct driver *driver);
void nvml_load(struct nvml *nvml);

/* Does a command whose name begins with vmm-; see client_vmm.c. */
void vmm_command(const struct driver *driver, const char *what, unsigned long a, unsigned long b);

/* Does a command whose name begins with code-; see client_code.c. */
void code_command(const char *what, unsigned long a, unsigned long b);

#endif
