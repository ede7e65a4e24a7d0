/* What both front libraries do with their hook tables. */
#ifndef AP_FRONT_H
#define AP_FRONT_H

#include <stdbool.h>
#include <stddef.h>

#define AP_EXPORT __attribute__((visibility("default")))

struct ap_hook {
    const char *name;
    void *front;   /* our exported function; NULL: we only call the driver's */
    size_t offset; /* of the driver's function in the table that ap_front_fill fills */
};

/* Looks every name up in the library at `path`, which is loaded already (DT_NEEDED), and stores
 * what it finds at `table` + offset (NULL: the driver has not got it). */
void ap_front_fill(const char *path, const struct ap_hook *hooks, size_t count, void *table);

/* Loads the library `name` from the folder that this one was loaded from, if it is one of ours.
 * False: it is not there, or is somebody else's. */
bool ap_front_load_beside(const char *name);

/* Makes our exports vanish that the driver has not got, so that dlsym finds none either. */
void ap_front_hide_missing(const struct ap_hook *hooks, size_t count, const void *table);

/* Makes these exports of ours vanish. */
void ap_front_hide(const struct ap_hook *hooks, size_t count);

/* Our function for a function of the driver's; NULL: not hooked. */
void *ap_front_of(const struct ap_hook *hooks, size_t count, const void *table, const void *real);

#endif
