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

#endif
