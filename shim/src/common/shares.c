/* Which limits count: owned by root, a regular file, without a fault, and mounted as the plugin
 * mounts them: the share's folder, read-only, is itself the mount, straight below the folder of all
 * shares. So neither what an image holds counts, nor a link to a volume, nor a file mounted by
 * itself. The ledger is taken from that same folder. No environment variable has a say. */
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

/* Open descriptors of one share. */
struct place {
    int above;  /* the folder of all shares */
    int folder; /* the share's */
};

/* Whether the file lies on the container's root file system, by the device. */
static int on_root(dev_t device)
{
    struct stat about;
    int folder = ap_open(AT_FDCWD, "/", O_PATH | O_DIRECTORY);
    if (folder < 0)
        return folder;
    int error = ap_fstat(folder, &about);
    ap_close(folder);
    return error < 0 ? error : about.st_dev == device;
}

/* Whether the share's folder is a mount and the file lies in that one. Kernels before 5.8 tell no
 * mount IDs; there it must do that the file is not on the device of the root. */
static int mounted_as_a_share(const struct place *place, int fd, dev_t device)
{
    uint64_t above = ap_mount_id(place->above);
    uint64_t folder = ap_mount_id(place->folder);
    uint64_t file = ap_mount_id(fd);
    if (above != 0 && folder != 0 && file != 0)
        return file == folder && folder != above;
    int image = on_root(device);
    return image < 0 ? image : !image;
}

static int trusted(const struct place *place, int fd)
{
    struct stat about;
    int error = ap_fstat(fd, &about);
    if (error < 0)
        return error;
    if (!S_ISREG(about.st_mode) || about.st_uid != 0)
        return -EPERM;
    int good = ap_mount_is_read_only(fd);
    if (good > 0)
        good = mounted_as_a_share(place, fd, about.st_dev);
    return good < 0 ? good : good ? 0 : -EPERM;
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

static int read_limits(const struct place *place, const char *key, struct apportion_limits *limits)
{
    char text[APPORTION_LIMITS_MAX_BYTES + 1];
    int fd = ap_open(place->folder, APPORTION_LIMITS_NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return fd;
    int result = trusted(place, fd);
    if (result == 0)
        result = read_all(fd, text, sizeof text);
    ap_close(fd);
    if (result < 0)
        return result;
    if (apportion_limits_parse(text, (size_t)result, limits) < 0 || strcmp(limits->share, key) != 0)
        return -EPROTO;
    return 0;
}

static int map_ledger(const struct place *place, const char *path, struct ap_ledger *ledger)
{
    int fd = ap_open(place->folder, APPORTION_LEDGER_NAME, O_RDWR | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return fd;
    int error = ap_ledger_open(ledger, fd, path);
    ap_close(fd);
    return error;
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
    struct place place = {fd, ap_open(fd, key, O_PATH | O_DIRECTORY | O_NOFOLLOW)};
    if (place.folder < 0)
        return place.folder;
    int error = read_limits(&place, key, &share->limits);
    if (error == 0)
        error = map_ledger(&place, path, &share->ledger);
    ap_close(place.folder);
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
    int fd = ap_open_straight(folder, O_RDONLY | O_DIRECTORY);
    if (fd < 0) {
        ap_log("%s: error %d", folder, -fd);
        return may_come_back(fd) ? fd : 0;
    }
    int result = scan_open(process, fd, folder);
    ap_close(fd);
    return result;
}
