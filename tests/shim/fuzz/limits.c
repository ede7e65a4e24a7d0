/* Fuzz target: a limits file. Nothing may do more than be refused, or mean what it says: written
 * out in the one way that there is but for the order of the lines, it reads as the same. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apportion/limits.h"
#include "target.h"

static size_t write_out(const struct apportion_limits *limits, char *to, size_t size)
{
    const uint8_t *u = limits->uuid;
    int length = snprintf(
        to, size,
        "apportion-limits 1\nshare %s\nuuid GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-"
        "%02x%02x%02x%02x%02x%02x\nmemory %" PRIu64 "\ncores %" PRIu32 "\ncores-policy %s\n",
        limits->share, u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11],
        u[12], u[13], u[14], u[15], limits->memory, limits->cores, limits->burst ? "burst" : "cap");
    return (size_t)length;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct apportion_limits limits, again, untouched;
    char text[APPORTION_LIMITS_MAX_BYTES];
    char *exact = malloc(size ? size : 1); /* so that a sanitizer sees any step beyond the end */
    MUST(exact);
    memcpy(exact, data, size);
    memset(&limits, 0x5a, sizeof limits);
    untouched = limits;
    int result = apportion_limits_parse(exact, size, &limits);
    free(exact);
    if (result != 0) {
        MUST(result == -1 && memcmp(&limits, &untouched, sizeof limits) == 0);
        return 0;
    }
    MUST(limits.cores <= 100 && limits.memory <= INT64_MAX && limits.burst <= 1);
    MUST(limits.share[0] && limits.share[0] != '.' && !strpbrk(limits.share, "/ \n"));
    MUST(apportion_limits_parse(text, write_out(&limits, text, sizeof text), &again) == 0);
    MUST(strcmp(again.share, limits.share) == 0 && memcmp(again.uuid, limits.uuid, 16) == 0);
    MUST(again.memory == limits.memory && again.cores == limits.cores);
    MUST(again.burst == limits.burst);
    return 0;
}
