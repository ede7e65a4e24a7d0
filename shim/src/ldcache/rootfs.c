/* How an image is kept from leading us out of it: we chroot into it first; the two folders that we
 * write to may not be symbolic links; and in a mount namespace of our own its /proc is covered,
 * since the links in there (/proc/1/root) lead out of a chroot. ldconfig is a static program of
 * the host's, so no code of the image runs. But the image's ld.so.conf can make it print, wait and
 * write without end: what it prints goes nowhere, since a runtime keeps all of a hook's output in
 * memory, and time, memory and the size of its files are bounded. */
#define _GNU_SOURCE
#include "rootfs.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "links.h"

#define CONF_FOLDER "ld.so.conf.d"
#define CONF_NAME "00-apportion.conf"
#define CONF_PART ".00-apportion.conf.part"
#define SECONDS_MOST 30     /* a pod with little CPU, or a slow disk */
#define CPU_SECONDS_MOST 10 /* an image without end */
#define MEMORY_MOST (256u << 20) /* its own; libraries that it maps, of any size, do not count */
#define FILE_MOST (16u << 20)    /* some 100,000 libraries; ours is 20 KiB */
#define ARGUMENTS_MOST 64

static enum outcome failed(const char *what, const char *remedy)
{
    say("%s: %s; %s", what, strerror(errno), remedy);
    return FAILED;
}

static int enter(const char *rootfs)
{
    int folder = open(rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return -1;
    int result = fchdir(folder) == 0 && chroot(".") == 0 && chdir("/") == 0 ? 0 : -1;
    close(folder);
    return result;
}

/* No /proc, or one that is a link, needs no cover: O_NOFOLLOW, and we stand at the root. */
static int cover_proc(void)
{
    int proc = open("proc", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (proc < 0)
        return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? 0 : -1;
    int result = fchdir(proc);
    if (result == 0)
        result = mount("none", ".", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "");
    int saved = errno;
    close(proc);
    if (chdir("/") < 0)
        return -1;
    errno = saved;
    return result;
}

static bool has_glibc(void)
{
    static const char *const loaders[] = {
        "/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-x86-64.so.2",
        "/lib/ld-linux-aarch64.so.1", "/lib64/ld-linux-aarch64.so.1",
    };
    for (size_t i = 0; i < sizeof loaders / sizeof loaders[0]; i++)
        if (access(loaders[i], F_OK) == 0)
            return true;
    return false;
}

static int write_conf(int folder, char *const folders[], int count)
{
    (void)unlinkat(folder, CONF_PART, 0);
    int fd = openat(folder, CONF_PART, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return -1;
    bool good = fchmod(fd, 0644) == 0;
    for (int i = 0; i < count && good; i++)
        good = dprintf(fd, "%s\n", folders[i]) == (int)strlen(folders[i]) + 1;
    good = close(fd) == 0 && good;
    return good ? renameat(folder, CONF_PART, folder, CONF_NAME) : -1;
}

static enum outcome configure(char *const folders[], int count)
{
    int etc = open("etc", O_DIRECTORY | O_NOFOLLOW | O_RDONLY | O_CLOEXEC);
    if (etc < 0 && errno == ENOENT) {
        say("left alone: the image has no /etc");
        return LEFT_ALONE;
    }
    if (etc < 0)
        return failed("the image's /etc", "it must be a folder, not a link; change the image");
    if (!has_glibc()) {
        close(etc);
        say("left alone: the image has no glibc");
        return LEFT_ALONE;
    }
    (void)mkdirat(etc, CONF_FOLDER, 0755);
    int conf = openat(etc, CONF_FOLDER, O_DIRECTORY | O_NOFOLLOW | O_RDONLY | O_CLOEXEC);
    int result = conf < 0 ? -1 : write_conf(conf, folders, count);
    int saved = errno;
    if (conf >= 0)
        close(conf);
    close(etc);
    errno = saved;
    if (result < 0 && errno == EROFS) {
        say("the image's /etc/" CONF_FOLDER "/" CONF_NAME ": %s; gone without: the driver is found"
            " until somebody runs ldconfig in the container", strerror(errno));
        return DONE;
    }
    if (result < 0)
        return failed("cannot write the image's /etc/" CONF_FOLDER "/" CONF_NAME,
                      "the folder must be writable and no link; change the image");
    return DONE;
}

static bool bound(int resource, rlim_t most)
{
    struct rlimit limit;
    if (getrlimit(resource, &limit) < 0)
        return false;
    /* The soft bound lies below the hard one, whose signal for CPU time is a plain SIGKILL. */
    if (limit.rlim_max > most)
        limit.rlim_max = most + 1;
    limit.rlim_cur = limit.rlim_max > most ? most : limit.rlim_max;
    return setrlimit(resource, &limit) == 0;
}

/* Signals as at first, whatever the runtime left us: they end a ldconfig that is out of bounds. */
static bool bound_all(void)
{
    static const int fatal[] = {SIGALRM, SIGXCPU, SIGXFSZ};
    sigset_t none;
    sigemptyset(&none);
    for (size_t i = 0; i < sizeof fatal / sizeof fatal[0]; i++)
        if (signal(fatal[i], SIG_DFL) == SIG_ERR)
            return false;
    alarm(SECONDS_MOST);
    return sigprocmask(SIG_SETMASK, &none, NULL) == 0 && bound(RLIMIT_CPU, CPU_SECONDS_MOST) &&
           bound(RLIMIT_DATA, MEMORY_MOST) && bound(RLIMIT_FSIZE, FILE_MOST) &&
           bound(RLIMIT_CORE, 0);
}

/* The folders are named to ldconfig as well, for images whose ld.so.conf does not read ours. -X:
 * it makes no links in them. */
static enum outcome become_ldconfig(int ldconfig, int nowhere, char *const folders[], int count)
{
    char *arguments[ARGUMENTS_MOST] = {(char[]){"ldconfig"}, (char[]){"-X"}};
    char *environment[] = {NULL};
    int used = 2;
    for (int i = 0; i < count && used < ARGUMENTS_MOST - 1; i++)
        arguments[used++] = folders[i];
    int ours = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    if (ours < 0 || !bound_all())
        return failed("cannot bound ldconfig", "the hook must run as root");
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        (void)dup2(nowhere, fd);
    fexecve(ldconfig, arguments, environment);
    int saved = errno;
    (void)dup2(ours, STDERR_FILENO);
    errno = saved;
    return failed("cannot start ldconfig", "check the program given with --ldconfig");
}

enum outcome refresh_cache(const char *rootfs, int ldconfig, const struct work *work)
{
    int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (nowhere < 0)
        return failed("/dev/null", "the host must have it");
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return failed("cannot make a mount namespace", "the hook must run as root");
    if (enter(rootfs) < 0)
        return failed(rootfs, "the container's root file system must be there for a hook of the"
                              " kind createContainer");
    if (cover_proc() < 0)
        return failed("cannot cover the image's /proc", "the hook must run as root");
    umask(022);
    enum outcome outcome = make_links(work->links, work->link_count);
    if (outcome == DONE)
        outcome = configure(work->folders, work->count);
    if (outcome != DONE)
        return outcome;
    return become_ldconfig(ldconfig, nowhere, work->folders, work->count);
}
