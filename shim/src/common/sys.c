#define _GNU_SOURCE
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define READ_ONLY_MOUNT 0x0001 /* ST_RDONLY in f_flags */
#define FLAGS_ARE_VALID 0x0020 /* ST_VALID: f_flags was filled in */

long ap_sys(long number, long a, long b, long c, long d, long e, long f)
{
    int saved = errno;
    long result = syscall(number, a, b, c, d, e, f);
    if (result == -1)
        result = -errno;
    errno = saved;
    return result;
}

int ap_open(int folder, const char *path, int flags)
{
    return (int)ap_sys(SYS_openat, folder, (long)path, flags | O_CLOEXEC, 0, 0, 0);
}

int ap_close(int fd)
{
    return (int)ap_sys(SYS_close, fd, 0, 0, 0, 0, 0);
}

int ap_fstat(int fd, struct stat *out)
{
    return (int)ap_sys(SYS_fstat, fd, (long)out, 0, 0, 0, 0);
}

long ap_readlink(const char *path, char *buffer, size_t size)
{
    return ap_sys(SYS_readlinkat, AT_FDCWD, (long)path, (long)buffer, (long)size, 0, 0);
}

long ap_read(int fd, void *buffer, size_t size)
{
    return ap_sys(SYS_read, fd, (long)buffer, (long)size, 0, 0, 0);
}

size_t ap_read_memory(const void *from, void *to, size_t size)
{
    const long here[] = {(long)to, (long)size}, there[] = {(long)from, (long)size}; /* iovec */
    long got = ap_sys(SYS_process_vm_readv, (long)ap_pid(), (long)here, 1, (long)there, 1, 0);
    return got > 0 ? (size_t)got : 0;
}

void ap_write(int fd, const void *buffer, size_t size)
{
    (void)ap_sys(SYS_write, fd, (long)buffer, (long)size, 0, 0, 0);
}

long ap_getdents(int fd, void *buffer, size_t size)
{
    return ap_sys(SYS_getdents64, fd, (long)buffer, (long)size, 0, 0, 0);
}

int ap_mount_of(int fd, struct ap_mount *out)
{
    struct statfs about;
    long error = ap_sys(SYS_fstatfs, fd, (long)&about, 0, 0, 0, 0);
    if (error < 0)
        return (int)error;
    out->on_tmpfs = about.f_type == TMPFS_MAGIC;
    out->read_only = (about.f_flags & FLAGS_ARE_VALID) && (about.f_flags & READ_ONLY_MOUNT);
    return 0;
}

long ap_attribute(int fd, const char *name, void *buffer, size_t size)
{
    return ap_sys(SYS_fgetxattr, fd, (long)name, (long)buffer, (long)size, 0, 0);
}

/* The thread sanitizer must see memory come and go: one thread's old table at the address of
 * another's new one is a race to it otherwise. */
#ifdef __SANITIZE_THREAD__
static long map_pages(size_t size, int protection, int flags, int fd, uint64_t offset)
{
    return (long)mmap(NULL, size, protection, flags, fd, (off_t)offset);
}

static void unmap_pages(void *address, size_t size)
{
    (void)munmap(address, size);
}
#else
static long map_pages(size_t size, int protection, int flags, int fd, uint64_t offset)
{
    return ap_sys(SYS_mmap, 0, (long)size, protection, flags, fd, (long)offset);
}

static void unmap_pages(void *address, size_t size)
{
    (void)ap_sys(SYS_munmap, (long)address, (long)size, 0, 0, 0, 0);
}
#endif

#define BOTH (PROT_READ | PROT_WRITE)

static void *map(size_t size, int protection, int flags, int fd, uint64_t offset, int advice)
{
    long at = map_pages(size, protection, flags, fd, offset);
    if (at < 0 && at > -4096)
        return NULL;
    if (ap_sys(SYS_madvise, at, (long)size, advice, 0, 0, 0) < 0) {
        /* A kernel that cannot keep it from a child would let the child spend what is not its. */
        ap_unmap((void *)at, size);
        return NULL;
    }
    return (void *)at;
}

void *ap_map_private(size_t size)
{
    return map(size, BOTH, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, MADV_DONTFORK);
}

void *ap_map_shared(int fd, size_t size, uint64_t offset)
{
    return map(size, BOTH, MAP_SHARED, fd, offset, MADV_DONTFORK);
}

const void *ap_map_to_read(int fd, size_t size)
{
    return map(size, PROT_READ, MAP_SHARED, fd, 0, MADV_DONTFORK);
}

void *ap_map_wiped_on_fork(size_t size)
{
    return map(size, BOTH, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, MADV_WIPEONFORK);
}

void ap_unmap(void *address, size_t size)
{
    unmap_pages(address, size);
}

static int set_lock(int fd, int64_t byte, int64_t count, short type)
{
    struct flock what = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = count};
    return (int)ap_sys(SYS_fcntl, fd, F_OFD_SETLK, (long)&what, 0, 0, 0);
}

static int set_byte_lock(int fd, int64_t byte, short type)
{
    return set_lock(fd, byte, 1, type);
}

int ap_bytes_mark(int fd, int64_t byte, int64_t count)
{
    return set_lock(fd, byte, count, F_RDLCK);
}

int ap_byte_lock_try(int fd, int64_t byte)
{
    return set_byte_lock(fd, byte, F_WRLCK);
}

int ap_byte_share_try(int fd, int64_t byte)
{
    return set_byte_lock(fd, byte, F_RDLCK);
}

void ap_byte_unlock(int fd, int64_t byte)
{
    (void)set_byte_lock(fd, byte, F_UNLCK);
}

bool ap_byte_is_locked(int fd, int64_t byte)
{
    struct flock what = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return ap_sys(SYS_fcntl, fd, F_OFD_GETLK, (long)&what, 0, 0, 0) == 0 && what.l_type != F_UNLCK;
}

void ap_futex_wait(void *word, uint32_t expected)
{
    (void)ap_sys(SYS_futex, (long)word, FUTEX_WAIT_PRIVATE, (long)expected, 0, 0, 0);
}

void ap_futex_wake_one(void *word)
{
    (void)ap_sys(SYS_futex, (long)word, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
}

void ap_nap(long length)
{
    struct timespec time = {.tv_nsec = length};
    (void)ap_sys(SYS_nanosleep, (long)&time, 0, 0, 0, 0, 0);
}

uint64_t ap_random(void)
{
    uint64_t number = 0;
    if (ap_sys(SYS_getrandom, (long)&number, sizeof number, 0, 0, 0, 0) == (long)sizeof number)
        return number;
    return ap_boot_ns() * UINT64_C(0x9e3779b97f4a7c15) ^ ap_pid(); /* before Linux 3.17 */
}

uint32_t ap_pid(void)
{
    return (uint32_t)ap_sys(SYS_getpid, 0, 0, 0, 0, 0, 0);
}

uint64_t ap_pid_namespace(void)
{
    struct stat about;
    long error = ap_sys(SYS_newfstatat, AT_FDCWD, (long)"/proc/self/ns/pid", (long)&about, 0, 0, 0);
    return error < 0 ? 0 : about.st_ino;
}

static uint64_t nanoseconds(clockid_t clock)
{
    struct timespec now = {0, 0};
    (void)clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t ap_coarse_ms(void)
{
    return nanoseconds(CLOCK_MONOTONIC_COARSE) / 1000000u;
}

uint64_t ap_boot_ns(void)
{
    return nanoseconds(CLOCK_BOOTTIME);
}

uint64_t ap_now_ns(void)
{
    return nanoseconds(CLOCK_MONOTONIC);
}

void ap_sleep_until(uint64_t when)
{
    struct timespec time = {.tv_sec = (time_t)(when / 1000000000u),
                            .tv_nsec = (long)(when % 1000000000u)};
    (void)ap_sys(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, (long)&time, 0, 0, 0);
}
