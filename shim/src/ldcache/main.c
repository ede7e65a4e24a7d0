/* apportion-ldcache: an OCI hook (createContainer) that makes a container's dynamic linker know the
 * folders where the driver's libraries were mounted.
 *
 *   apportion-ldcache --ldconfig <host path> --folder <container path> [--folder <…>]…
 *                     [--link <container path>:<target>]…
 *
 * A link is made where nothing was mounted at its path.
 * Reads the container's OCI state on stdin. Exit status 0: done, or nothing to do in this image;
 * 1: one line on stderr says what is wrong and what to do. */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "json.h"
#include "links.h"
#include "rootfs.h"

#define STATE_MOST (1u << 20)
#define CONFIG_MOST (16u << 20)
#define FOLDERS_MOST 32
#define LINKS_MOST 32
#define SECONDS_MOST 20 /* for all but ldconfig */

struct task {
    const char *ldconfig;
    char *folders[FOLDERS_MOST];
    int count;
    char *links[LINKS_MOST];
    int link_count;
};

void say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("apportion-ldcache: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

static bool read_arguments(int argc, char **argv, struct task *task)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--ldconfig") == 0 && !task->ldconfig) {
            task->ldconfig = argv[i + 1];
        } else if (strcmp(argv[i], "--folder") == 0 && task->count < FOLDERS_MOST &&
                   good_path(argv[i + 1])) {
            task->folders[task->count++] = argv[i + 1];
        } else if (strcmp(argv[i], "--link") == 0 && task->link_count < LINKS_MOST &&
                   good_link(argv[i + 1])) {
            task->links[task->link_count++] = argv[i + 1];
        } else {
            say("argument refused: %s %s", argv[i], argv[i + 1]);
            return false;
        }
    }
    if (argc % 2 == 1 && task->ldconfig && task->count > 0)
        return true;
    say("usage: apportion-ldcache --ldconfig <host path> --folder <container path>…"
        " [--link <container path>:<target>]…");
    return false;
}

/* Everything up to the end of the file, at most `most` bytes; NULL: said why. */
static char *read_all(int fd, size_t most, const char *what, size_t *length)
{
    char *text = malloc(most + 1);
    size_t have = 0;
    while (text && have <= most) {
        ssize_t more = read(fd, text + have, most + 1 - have);
        if (more < 0 && errno == EINTR)
            continue;
        if (more < 0) {
            say("cannot read %s: %s", what, strerror(errno));
            free(text);
            return NULL;
        }
        if (more == 0) {
            *length = have;
            return text;
        }
        have += (size_t)more;
    }
    say("%s is larger than %zu bytes", what, most);
    free(text);
    return NULL;
}

static bool string_in(int fd, size_t most, const char *what, const char *outer, const char *inner,
                      char out[PATH_MAX])
{
    size_t length = 0;
    char *text = read_all(fd, most, what, &length);
    if (!text)
        return false;
    bool good = json_string(text, length, outer, inner, out, PATH_MAX) == 0 && out[0];
    if (!good)
        say("%s: no good %s%s%s in it; is this called by a container runtime?", what, outer,
            inner ? "." : "", inner ? inner : "");
    free(text);
    return good;
}

static bool find_rootfs(char rootfs[PATH_MAX])
{
    char bundle[PATH_MAX], path[PATH_MAX], root[PATH_MAX];
    if (!string_in(STDIN_FILENO, STATE_MOST, "the OCI state on stdin", "bundle", NULL, bundle))
        return false;
    if (snprintf(path, sizeof path, "%s/config.json", bundle) >= (int)sizeof path)
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        say("%s: %s; the bundle must hold it", path, strerror(errno));
        return false;
    }
    bool good = string_in(fd, CONFIG_MOST, path, "root", "path", root);
    close(fd);
    if (!good)
        return false;
    int length = root[0] == '/' ? snprintf(rootfs, PATH_MAX, "%s", root)
                                : snprintf(rootfs, PATH_MAX, "%s/%s", bundle, root);
    return length > 0 && length < PATH_MAX;
}

/* A program with an interpreter would run the image's code with our rights. */
static bool is_static(int fd)
{
    Elf64_Ehdr head;
    if (pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head ||
        memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64)
        return false;
    for (unsigned i = 0; i < head.e_phnum; i++) {
        Elf64_Phdr segment;
        off_t at = (off_t)(head.e_phoff + (Elf64_Off)i * head.e_phentsize);
        if (pread(fd, &segment, sizeof segment, at) != (ssize_t)sizeof segment ||
            segment.p_type == PT_INTERP)
            return false;
    }
    return true;
}

static int open_ldconfig(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        say("%s: %s; install ldconfig there or name another with --ldconfig", path,
            strerror(errno));
        return -1;
    }
    if (is_static(fd))
        return fd;
    say("%s: not a static program; name a static ldconfig with --ldconfig", path);
    close(fd);
    return -1;
}

/* The exit status of the hook. ldconfig's own words are not passed on (see rootfs.c). */
static int wait_for(pid_t child)
{
    static const char remedy[] = "look at the image's libraries and /etc/ld.so.conf: the container"
                                 " does not start";
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return EXIT_FAILURE;
    if (WIFSIGNALED(status)) {
        int number = WTERMSIG(status);
        say("ldconfig ended by signal %d%s; %s", number,
            number == SIGALRM || number == SIGXCPU ? " (it took too long)" : "", remedy);
        return EXIT_FAILURE;
    }
    int code = WEXITSTATUS(status);
    if (code == DONE || code == LEFT_ALONE)
        return EXIT_SUCCESS;
    if (code != FAILED)
        say("ldconfig failed with status %d; %s", code, remedy);
    return EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    struct task task = {.ldconfig = NULL};
    char rootfs[PATH_MAX];
    if (!read_arguments(argc, argv, &task))
        return EXIT_FAILURE;
    alarm(SECONDS_MOST);
    int ldconfig = open_ldconfig(task.ldconfig);
    if (ldconfig < 0 || !find_rootfs(rootfs))
        return EXIT_FAILURE;
    alarm(0);
    pid_t child = fork();
    if (child < 0) {
        say("cannot start a process: %s", strerror(errno));
        return EXIT_FAILURE;
    }
    if (child == 0) {
        struct work work = {task.folders, task.count, task.links, task.link_count};
        _exit(refresh_cache(rootfs, ldconfig, &work));
    }
    return wait_for(child);
}
