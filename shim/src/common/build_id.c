/* Which build this is: as a symbol, and as an ELF note that is found without loading the library
 * (name "Apportion", type 1). The Makefile sets both from the sources. */
#include "front.h"

#include <stdint.h>

extern const char apportion_shim_build_id[];
extern const char apportion_shim_version[];
AP_EXPORT const char apportion_shim_build_id[] = APPORTION_BUILD_ID;
AP_EXPORT const char apportion_shim_version[] = APPORTION_VERSION;

static const struct {
    uint32_t name_size, description_size, type;
    char name[12], description[(sizeof APPORTION_BUILD_ID + 3) / 4 * 4];
} note __attribute__((section(".note.apportion"), used, aligned(4))) = {
    sizeof "Apportion", sizeof APPORTION_BUILD_ID, 1, "Apportion", APPORTION_BUILD_ID};
