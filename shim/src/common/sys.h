/* System calls, made directly: no wrapper that another preloaded library replaces, no cancellation
 * point, no large-file symbol version, and no change of the application's errno (see ap_sys). */
#ifndef AP_SYS_H
#define AP_SYS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

/* The system call's result, or minus the error number. errno stays as it was. */
long ap_sys(long number, long a, long b, long c, long d, long e, long f);

int ap_open(int folder, const char *path, int flags);
int ap_close(int fd);
int ap_fstat(int fd, struct stat *out);
long ap_readlink(const char *path, char *buffer, size_t size);
long ap_read(int fd, void *buffer, size_t size);
/* Copies from this process's memory what can be read there, up to `size`; returns how much. Where
 * the system call for it is forbidden: nothing. */
size_t ap_read_memory(const void *from, void *to, size_t size);
void ap_write(int fd, const void *buffer, size_t size);
long ap_getdents(int fd, void *buffer, size_t size);

/* What an open file lies on. 0, or a negative error number. */
struct ap_mount {
    bool on_tmpfs, read_only;
};
int ap_mount_of(int fd, struct ap_mount *out);

/* Length of an extended attribute, whose value goes to `buffer`; a negative error number. */
long ap_attribute(int fd, const char *name, void *buffer, size_t size);

/* NULL on failure. Both kinds are zeroed; a forked child has not got (`shared`: a file's pages). */
void *ap_map_private(size_t size);
void *ap_map_shared(int fd, size_t size, uint64_t offset);
const void *ap_map_to_read(int fd, size_t size);
/* As ap_map_private, but a forked child finds the same addresses filled with zeros. */
void *ap_map_wiped_on_fork(size_t size);
void ap_unmap(void *address, size_t size);

/* Open-file-description locks on one byte. try: 0 taken, -EAGAIN held by another. */
int ap_byte_lock_try(int fd, int64_t byte);
void ap_byte_unlock(int fd, int64_t byte);
/* The same for reading, beside other readers; an own lock for writing becomes one for reading. */
int ap_byte_share_try(int fd, int64_t byte);
/* Whether another open file description, whoever's, has the byte locked. */
bool ap_byte_is_locked(int fd, int64_t byte);

/* Marks `count` bytes from `byte` on for as long as a descriptor of this file description is open,
 * in any process; others may mark the same. Negative: error. */
int ap_bytes_mark(int fd, int64_t byte, int64_t count);

void ap_futex_wait(void *word, uint32_t expected);
void ap_futex_wake_one(void *word);
void ap_nap(long nanoseconds); /* less than a second */

uint64_t ap_random(void);
uint32_t ap_pid(void);
/* Inode of this process's PID namespace, which no other has while it lives; 0: no /proc. */
uint64_t ap_pid_namespace(void);
uint64_t ap_coarse_ms(void); /* CLOCK_MONOTONIC_COARSE */
uint64_t ap_boot_ns(void);   /* CLOCK_BOOTTIME */
uint64_t ap_now_ns(void);    /* CLOCK_MONOTONIC */

/* Sleeps until CLOCK_MONOTONIC shows `when`, or a signal comes. */
void ap_sleep_until(uint64_t when);

#endif
