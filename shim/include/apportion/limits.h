/* The `limits` file of a share: what the shim reads in the container, what the plugin writes.
 *
 *   apportion-limits 1
 *   share <share key>
 *   uuid GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx
 *   memory <bytes, decimal>
 *   cores <0..100>
 *   cores-policy cap|burst
 *   cores-mode none|timeslice|mps
 *
 * The first line comes first, then exactly these keys, each once, in any order; only `cores-mode`
 * may be missing, as in files of older plugins, and is then `none`; one space between
 * key and value; every line ends with '\n', no other white space, no sign and no leading zero in
 * numbers (a lone 0 is a number). Anything else: the whole file is refused.
 */
#ifndef APPORTION_LIMITS_H
#define APPORTION_LIMITS_H

#include <stddef.h>
#include <stdint.h>

#define APPORTION_LIMITS_FIRST_LINE "apportion-limits 1"
#define APPORTION_LIMITS_MAX_BYTES 1024 /* a longer file is refused */
#define APPORTION_LIMITS_KEY_MAX 63     /* characters of a share key: [A-Za-z0-9._-]+ */

#define APPORTION_SHARES_DIR "/run/apportion/shares"
#define APPORTION_LIMITS_NAME "limits"
#define APPORTION_LEDGER_NAME "ledger"

/* The attribute of both files that holds the share's key. The kernel lets it be set by those only
 * who have CAP_SYS_ADMIN where the file system was mounted, and read by all. */
#define APPORTION_MARK "security.apportion"

/* How `cores` is enforced. */
enum apportion_cores_mode {
    APPORTION_CORES_NONE = 0,      /* it is not */
    APPORTION_CORES_TIMESLICE = 1, /* by the share's `schedule` file */
    APPORTION_CORES_MPS = 2,       /* by the GPU's MPS daemon */
};

struct apportion_limits {
    char share[APPORTION_LIMITS_KEY_MAX + 1];
    uint8_t uuid[16];
    uint64_t memory; /* bytes */
    uint32_t cores;  /* percent */
    uint32_t burst;  /* 1: cores-policy burst, 0: cap */
    uint32_t mode;   /* enum apportion_cores_mode */
};

/* Reads `size` bytes of a limits file. Returns 0 and fills `out`, or -1: refused and `out`
 * untouched. */
int apportion_limits_parse(const char *text, size_t size, struct apportion_limits *out);

/* Reads the 40 characters "GPU-xxxxxxxx-…" (either case). Returns 0, or -1 when it is none. */
int apportion_uuid_parse(const char *text, size_t size, uint8_t out[16]);

#endif
