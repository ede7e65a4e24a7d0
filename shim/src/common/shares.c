/* Which limits count: owned by root, a regular file, on a read-only mount of its own (not the
 * container's root file system, which an image fills), and without a fault. No environment
 * variable has a say. */
#define _GNU_SOURCE
#include "shares.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "log.h"
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

/* Whether the file lies on the container's root file system. Kernels before 5.8 tell no mount IDs;
 * there all of the root's device is taken for it. */
static int on_root(int fd, dev_t device)
{
    uint64_t mine = ap_mount_id(fd, "");
    uint64_t root = ap_mount_id(AT_FDCWD, "/");
    if (mine != 0 && root != 0)
        return mine == root;
    int folder = ap_open(AT_FDCWD, "/", O_PATH | O_DIRECTORY);
    if (folder < 0)
        return folder;
    struct stat about;
    int error = ap_fstat(folder, &about);
    ap_close(folder);
    return error < 0 ? error : about.st_dev == device;
}

static int trusted(int fd)
{
    struct stat about;
    int error = ap_fstat(fd, &about);
    if (error < 0)
        return error;
    if (!S_ISREG(about.st_mode) || about.st_uid != 0)
        return -EPERM;
    int read_only = ap_mount_is_read_only(fd);
    if (read_only < 0)
        return read_only;
    if (!read_only)
        return -EPERM;
    int image = on_root(fd, about.st_dev);
    return image > 0 ? -EPERM : image;
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

static int read_limits(int folder, const char *key, struct apportion_limits *limits)
{
    char path[APPORTION_LIMITS_KEY_MAX + sizeof "/" APPORTION_LIMITS_NAME];
    char text[APPORTION_LIMITS_MAX_BYTES + 1];
    snprintf(path, sizeof path, "%s/%s", key, APPORTION_LIMITS_NAME);
    int fd = ap_open(folder, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return fd;
    int result = trusted(fd);
    if (result == 0)
        result = read_all(fd, text, sizeof text);
    ap_close(fd);
    if (result < 0)
        return result;
    if (apportion_limits_parse(text, (size_t)result, limits) < 0 || strcmp(limits->share, key) != 0)
        return -EPROTO;
    return 0;
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
    int error = read_limits(fd, key, &share->limits);
    if (error < 0)
        return error;
    int length = snprintf(path, sizeof path, "%s/%s/%s", folder, key, APPORTION_LEDGER_NAME);
    if (length < 0 || (size_t)length >= sizeof path)
        return -ENAMETOOLONG;
    error = ap_ledger_open(&share->ledger, path);
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

int ap_shares_scan(struct ap_process *process, const char *folder)
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
