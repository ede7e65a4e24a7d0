/* A container with whole cards only has no front libraries; the driver's own lie aside there as in
 * all others, and links stand where programs look for them. Where a front was mounted, nothing is
 * done, so it does not matter what else the container was given, or in which order. */
#define _GNU_SOURCE
#include "links.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PART ".apportion.part"

struct place {
    char folder[PATH_MAX];
    char name[NAME_MAX + 1];
    const char *target;
};

bool good_path(const char *path)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789/._+-";
    return path[0] == '/' && strspn(path, letters) == strlen(path) && !strstr(path, "..");
}

static bool split(const char *link, struct place *place)
{
    const char *colon = strchr(link, ':');
    if (!colon || (size_t)(colon - link) >= sizeof place->folder)
        return false;
    memcpy(place->folder, link, (size_t)(colon - link));
    place->folder[colon - link] = '\0';
    place->target = colon + 1;
    char *slash = strrchr(place->folder, '/');
    if (!good_path(place->folder) || !good_path(place->target) || slash == place->folder ||
        slash[1] == '\0' || strlen(slash + 1) > NAME_MAX)
        return false;
    memcpy(place->name, slash + 1, strlen(slash + 1) + 1);
    *slash = '\0';
    return true;
}

bool good_link(const char *link)
{
    struct place place;
    return split(link, &place);
}

/* The mount that a file lies on, links followed; 0: the kernel does not say; <0: errno. */
static int64_t mount_of(int folder, const char *name)
{
    struct statx about;
    if (statx(folder, name, AT_EMPTY_PATH | AT_NO_AUTOMOUNT, STATX_MNT_ID, &about) < 0)
        return -errno;
    return (about.stx_mask & STATX_MNT_ID) ? (int64_t)about.stx_mnt_id : 0;
}

/* Makes the folder and those above it, as a runtime does for what it mounts there. */
static int open_folder(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0755);
        *slash = '/';
    }
    (void)mkdir(path, 0755);
    return open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

static int put_link(int folder, const struct place *place)
{
    (void)unlinkat(folder, PART, 0);
    if (symlinkat(place->target, folder, PART) < 0)
        return -1;
    if (renameat(folder, PART, folder, place->name) == 0)
        return 0;
    int saved = errno;
    (void)unlinkat(folder, PART, 0);
    errno = saved;
    return -1;
}

static int make_link(struct place *place, int64_t root)
{
    int folder = open_folder(place->folder);
    if (folder < 0)
        return -1;
    int result = -1;
    int64_t there = mount_of(folder, place->name), around = mount_of(folder, "");
    if (there == 0 || around == 0)
        errno = ENOSYS;
    else if (there > 0 && there != root)
        result = 0; /* a front, or what the pod itself mounts there */
    else if (around != root)
        errno = around < 0 ? (int)-around : EXDEV;
    else
        result = put_link(folder, place);
    int saved = errno;
    close(folder);
    errno = saved;
    return result;
}

enum outcome make_links(char *const links[], int count)
{
    int64_t root = mount_of(AT_FDCWD, "/");
    for (int i = 0; i < count; i++) {
        struct place place;
        if (!split(links[i], &place)) {
            errno = EINVAL;
        } else if (root > 0 && make_link(&place, root) == 0) {
            continue;
        } else if (root <= 0) {
            errno = root < 0 ? (int)-root : ENOSYS;
        }
        say("cannot link %s: %s; %s", links[i], strerror(errno),
            errno == EXDEV    ? "its folder must not be a volume of the pod's"
            : errno == ENOSYS ? "the kernel must tell mounts apart (Linux 5.8 or newer)"
                              : "change the image so that the folder can be written to");
        return FAILED;
    }
    return DONE;
}
