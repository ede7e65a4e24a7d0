/* Just enough JSON to take one string out of a document, strictly: a document that is not JSON
 * gives nothing. */
#ifndef AP_JSON_H
#define AP_JSON_H

#include <stddef.h>

/* Writes the string at object member outer (inner == NULL) or outer.inner to `out`, decoded and
 * zero-terminated. 0; -1: not JSON, no such string, too long for `size`, or with a zero in it. */
int json_string(const char *text, size_t length, const char *outer, const char *inner, char *out,
                size_t size);

#endif
