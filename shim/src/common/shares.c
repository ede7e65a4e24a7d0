/* Which limits count: those that the plugin made. It marks limits and ledger with the share's key,
 * by an attribute that only the node's administrator can set (APPORTION_MARK), on a tmpfs: no
 * image, no volume and no file that a container can write bears such a mark there. An image can
 * bring attributes of any kind along, also as a volume, but not on a tmpfs. Whatever way leads to a
 * marked folder, it is one that the plugin gave to this container. The limits must also lie on a
 * read-only mount, as the plugin mounts them. No environment variable has a say. */
#define _GNU_SOURCE
#include "shares.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "log.h"
#include "schedule.h"
#include "sys.h"

struct entry {
    uint64_t inode;
    int64_t offset;
    uint16_t length;
    uint8_t type;
    char name[];
};

static bool may_come_back(int error)
{
    return error == -EMFILE || error == -ENFILE || error == -ENOMEM || error == -EINTR;
}

/* 0: the file is one that the plugin made for the share of this key, and, unless it may be written
 * to, it lies where the container cannot change it. */
static int made_by_the_plugin(int fd, const char *key, bool may_be_written)
{
    char mark[APPORTION_LIMITS_KEY_MAX + 1];
    struct stat about;
    struct ap_mount mount;
    int error = ap_fstat(fd, &about);
    if (error == 0)
        error = ap_mount_of(fd, &mount);
    if (error < 0)
        return error;
    if (!S_ISREG(about.st_mode) || !mount.on_tmpfs || !(mount.read_only || may_be_written))
        return -EPERM;
    long length = ap_attribute(fd, APPORTION_MARK, mark, sizeof mark);
    if (length < 0)
        return (int)length;
    return (size_t)length == strlen(key) && memcmp(mark, key, (size_t)length) == 0 ? 0 : -EPERM;
}

static int read_all(int fd, char *buffer, size_t size)
{
    size_t have = 0;
    while (have < size) {
        long more = ap_read(fd, buffer + have, size - have);
        if (more == -EINTR)
            continue;
        if (more < 0)
            return (int)more;
        if (more == 0)
            break;
        have += (size_t)more;
    }
    return (int)have;
}

/* A file of the share's folder that nobody but the plugin can have made, and, where the container
 * has it for reading only, change. */
static int open_made(int folder, const char *name, const char *key, int access)
{
    int fd = ap_open(folder, name, access | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return fd;
    int error = made_by_the_plugin(fd, key, access != O_RDONLY);
    if (error == 0)
        return fd;
    ap_close(fd);
    return error;
}

static int read_limits(int folder, const char *key, struct apportion_limits *limits)
{
    char text[APPORTION_LIMITS_MAX_BYTES + 1];
    int fd = open_made(folder, APPORTION_LIMITS_NAME, key, O_RDONLY);
    if (fd < 0)
        return fd;
    int result = read_all(fd, text, sizeof text);
    ap_close(fd);
    if (result < 0)
        return result;
    if (apportion_limits_parse(text, (size_t)result, limits) < 0 || strcmp(limits->share, key) != 0)
        return -EPROTO;
    return 0;
}

static int map_ledger(int folder, const char *key, const char *path, struct ap_ledger *ledger)
{
    int fd = open_made(folder, APPORTION_LEDGER_NAME, key, O_RDWR);
    if (fd < 0)
        return fd;
    int error = ap_ledger_open(ledger, fd, path);
    ap_close(fd);
    return error;
}

static int map_schedule(int folder, const char *key, const struct apportion_schedule **schedule)
{
    int fd = open_made(folder, APPORTION_SCHEDULE_NAME, key, O_RDONLY);
    if (fd < 0)
        return fd;
    int error = ap_schedule_open(schedule, fd);
    ap_close(fd);
    return error;
}

static bool has_schedule(const struct apportion_limits *limits)
{
    return limits->mode == APPORTION_CORES_TIMESLICE && limits->cores < 100;
}

static bool known(const struct ap_process *process, const char *key)
{
    for (uint32_t i = 0; i < process->share_count; i++)
        if (strcmp(process->shares[i].limits.share, key) == 0)
            return true;
    return false;
}

static int add_share(struct ap_process *process, int fd, const char *folder, const char *key)
{
    char path[AP_PATH_MAX];
    if (process->share_count == AP_SHARE_MAX)
        return -ENOSPC;
    struct ap_share *share = &process->shares[process->share_count];
    int length = snprintf(path, sizeof path, "%s/%s/%s", folder, key, APPORTION_LEDGER_NAME);
    if (length < 0 || (size_t)length >= sizeof path)
        return -ENAMETOOLONG;
    int own = ap_open(fd, key, O_PATH | O_DIRECTORY | O_NOFOLLOW);
    if (own < 0)
        return own;
    int error = read_limits(own, key, &share->limits);
    if (error == 0 && has_schedule(&share->limits))
        error = map_schedule(own, key, &share->schedule);
    if (error == 0)
        error = map_ledger(own, key, path, &share->ledger);
    ap_close(own);
    if (error < 0 && share->schedule)
        ap_schedule_close(&share->schedule);
    if (error < 0)
        return error;
    process->share_count++;
    return 0;
}

/* A look at one name; what is no share is passed over, with a word in the log. */
static int consider(struct ap_process *process, int fd, const char *folder, const char *name)
{
    if (name[0] == '.' || strlen(name) > APPORTION_LIMITS_KEY_MAX || known(process, name))
        return 0;
    int error = add_share(process, fd, folder, name);
    if (error == 0)
        return 0;
    ap_log("share %s refused: error %d", name, -error);
    return may_come_back(error) ? error : 0;
}

static int scan_open(struct ap_process *process, int fd, const char *folder)
{
    _Alignas(struct entry) char names[4096];
    int result = 0;
    for (;;) {
        long size = ap_getdents(fd, names, sizeof names);
        if (size < 0)
            return (int)size;
        if (size == 0)
            return result;
        for (long at = 0; at < size;) {
            const struct entry *entry = (const struct entry *)(names + at);
            int error = consider(process, fd, folder, entry->name);
            if (error < 0)
                result = error;
            at += entry->length;
        }
    }
}

static int scan(struct ap_process *process, const char *folder)
{
    int fd = ap_open(AT_FDCWD, folder, O_RDONLY | O_DIRECTORY);
    if (fd < 0) {
        ap_log("%s: error %d", folder, -fd);
        return may_come_back(fd) ? fd : 0;
    }
    int result = scan_open(process, fd, folder);
    ap_close(fd);
    return result;
}

int ap_shares_scan(struct ap_process *process, const char *folder)
{
    int result = scan(process, folder);
    process->shares_read = result == 0;
    return result;
}

int ap_shares_read(struct ap_process *process, const char *folder)
{
    return process->shares_read ? 0 : ap_shares_scan(process, folder);
}
