/* Arrays: array <place> <which> <width> <height> <depth> <format> <channels> <flags>; which: 1 for
 * cuArrayCreate_v2, 2 and 3 for the first versions, else cuArray3DCreate_v2.
 * mip: the same with levels for which. array-many <count> <width> ... fills and answers how many. */
#include "families.h"

#include <stdio.h>
#include <string.h>

struct flat_v1 {
    unsigned width, height;
    int format;
    unsigned channels;
};

struct flat {
    size_t width, height;
    int format;
    unsigned channels;
};

struct deep_v1 {
    unsigned width, height, depth;
    int format;
    unsigned channels, flags;
};

struct deep {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};

#define LIVE_MOST 4096

static void *arrays[MANY], *mips[MANY], *live[LIVE_MOST];
static unsigned live_count;

static int create(void **out, number which, const struct deep *d)
{
    const struct flat flat = {d->width, d->height, d->format, d->channels};
    const struct flat_v1 flat1 = {(unsigned)d->width, (unsigned)d->height, d->format, d->channels};
    const struct deep_v1 deep1 = {(unsigned)d->width, (unsigned)d->height, (unsigned)d->depth,
                                  d->format, d->channels, d->flags};
    if (which == 1)
        return CALL(cuArrayCreate_v2, out, &flat);
    if (which == 2)
        return CALL(cuArrayCreate, out, &flat1);
    if (which == 3)
        return CALL(cuArray3DCreate, out, &deep1);
    return CALL(cuArray3DCreate_v2, out, d);
}

static struct deep shape(const number *n)
{
    return (struct deep){n[0], n[1], n[2], (int)n[3], (unsigned)n[4], (unsigned)n[5]};
}

static void made(int result, void *array, void **place)
{
    if (result == 0)
        *place = array;
    printf("%d %d\n", result, array != (void *)(size_t)SENTINEL);
}

static void many(number count, const struct deep *d)
{
    int result = 0;
    unsigned before = live_count;
    while (result == 0 && live_count - before < count && live_count < LIVE_MOST) {
        result = CALL(cuArray3DCreate_v2, &live[live_count], d);
        live_count += result == 0;
    }
    printf("%d %u\n", result, live_count - before);
}

static void needs(const struct deep *d, unsigned levels)
{
    struct {
        size_t size, alignment;
        unsigned reserved[4];
    } needs = {0, 0, {0}};
    void *array = NULL;
    int result;
    if (levels) {
        result = CALL(cuMipmappedArrayCreate, &array, d, levels);
        if (result == 0)
            result = CALL(cuMipmappedArrayGetMemoryRequirements, &needs, array, 0);
        CALL(cuMipmappedArrayDestroy, array);
    } else {
        result = CALL(cuArray3DCreate_v2, &array, d);
        if (result == 0)
            result = CALL(cuArrayGetMemoryRequirements, &needs, array, 0);
        CALL(cuArrayDestroy, array);
    }
    printf("%d %zu %zu\n", result, needs.size, needs.alignment);
}

void array_command(const char *what, const struct words *w)
{
    unsigned place = (unsigned)w->n[0] % MANY;
    struct deep d = shape(w->n + 2);
    void *array = (void *)(size_t)SENTINEL;
    if (!strcmp(what, "array")) {
        int result = create(&array, w->n[1], &d);
        made(result, array, &arrays[place]);
    } else if (!strcmp(what, "mip")) {
        int result = CALL(cuMipmappedArrayCreate, &array, &d, (unsigned)w->n[1]);
        made(result, array, &mips[place]);
    } else if (!strcmp(what, "array-destroy")) {
        printf("%d\n", CALL(cuArrayDestroy, arrays[place]));
    } else if (!strcmp(what, "mip-destroy")) {
        printf("%d\n", CALL(cuMipmappedArrayDestroy, mips[place]));
    } else if (!strcmp(what, "array-many")) {
        many(w->n[1], &d);
    } else if (!strcmp(what, "array-none")) {
        int result = 0;
        while (live_count > 0 && result == 0)
            result = CALL(cuArrayDestroy, live[--live_count]);
        printf("%d\n", result);
    } else if (!strcmp(what, "array-needs")) {
        needs(&d, (unsigned)w->n[1]);
    } else if (!strcmp(what, "array-null")) {
        int one = CALL(cuArrayCreate_v2, NULL, &d), two = CALL(cuArray3DCreate_v2, &array, NULL);
        printf("%d %d %d\n", one, two, CALL(cuMipmappedArrayCreate, &array, &d, 0u));
    } else {
        printf("? %s\n", what);
    }
}
