/* Mapping a ledger and taking a slot of it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "ledger.h"
#include "log.h"
#include "sys.h"

#define PAGE 4096u

static int check_file(int fd, struct stat *about)
{
    int error = ap_fstat(fd, about);
    if (error < 0)
        return error;
    return S_ISREG(about->st_mode) && about->st_size == APPORTION_LEDGER_SIZE ? 0 : -EPROTO;
}

static bool header_is_good(const struct apportion_ledger_header *head)
{
    return head->magic == APPORTION_LEDGER_MAGIC && head->version == APPORTION_LEDGER_VERSION &&
           head->header_size == APPORTION_LEDGER_HEADER_SIZE &&
           head->slot_size == APPORTION_LEDGER_SLOT_SIZE &&
           head->slot_count == APPORTION_LEDGER_SLOT_COUNT;
}

static int map_whole(struct ap_ledger *ledger, int fd)
{
    struct stat about;
    int error = check_file(fd, &about);
    if (error < 0)
        return error;
    unsigned char *at = ap_map_shared(fd, APPORTION_LEDGER_SIZE, 0);
    if (!at)
        return -ENOMEM;
    if (!header_is_good((const struct apportion_ledger_header *)at)) {
        ap_unmap(at, APPORTION_LEDGER_SIZE);
        return -EPROTO;
    }
    ledger->device = about.st_dev;
    ledger->inode = about.st_ino;
    ledger->head = (struct apportion_ledger_header *)at;
    ledger->slots = (struct apportion_ledger_slot *)(at + APPORTION_LEDGER_SLOTS_OFFSET);
    return 0;
}

int ap_ledger_open(struct ap_ledger *ledger, int fd, const char *path)
{
    int length = snprintf(ledger->path, sizeof ledger->path, "%s", path);
    if (length < 0 || (size_t)length >= sizeof ledger->path)
        return -ENAMETOOLONG;
    return map_whole(ledger, fd);
}

int ap_ledger_reopen(const struct ap_ledger *ledger)
{
    struct stat about;
    int fd = ap_open(AT_FDCWD, ledger->path, O_RDWR | O_NONBLOCK);
    if (fd < 0)
        return fd;
    int error = check_file(fd, &about);
    if (error == 0 && (about.st_dev != ledger->device || about.st_ino != ledger->inode))
        error = -ESTALE;
    if (error == 0)
        return fd;
    ap_close(fd);
    return error;
}

/* Only slots below `top` are looked at by others, so it is raised before the slot is used. */
static void raise_top(struct apportion_ledger_header *head, uint32_t index)
{
    uint32_t top = atomic_load(&head->top);
    bool done = top > index;
    while (!done)
        done = atomic_compare_exchange_weak(&head->top, &top, index + 1) || top > index;
}

struct apportion_ledger_slot *ap_ledger_map_slot(int fd, uint32_t index)
{
    uint64_t at = APPORTION_LEDGER_SLOTS_OFFSET + (uint64_t)index * APPORTION_LEDGER_SLOT_SIZE;
    unsigned char *page = ap_map_shared(fd, PAGE, at / PAGE * PAGE);
    return page ? (struct apportion_ledger_slot *)(page + at % PAGE) : NULL;
}

void ap_ledger_unmap_slot(struct apportion_ledger_slot *slot)
{
    ap_unmap((void *)((uintptr_t)slot / PAGE * PAGE), PAGE);
}

/* The page is mapped before the byte is locked and the caller closes the descriptor afterwards:
 * from then on the lock hangs on the mapping alone, and the kernel drops it when the process's
 * memory goes, by exit, exec or SIGKILL. A child has no such mapping (ap_map_shared), and
 * closefrom() in the application cannot reach it. */
int ap_ledger_take_slot(struct ap_ledger *ledger, int fd, struct apportion_ledger_slot **slot)
{
    for (uint32_t index = 0; index < APPORTION_LEDGER_SLOT_COUNT; index++) {
        struct ap_dead dead;
        if (ap_ledger_owner(ledger, fd, index, &dead) != AP_OWNER_GONE)
            continue;
        int error = ap_ledger_lock_dead(ledger, fd, index, &dead);
        if (error == -EAGAIN || error == -EACCES)
            continue;
        if (error < 0)
            return error;
        *slot = ap_ledger_map_slot(fd, index);
        if (!*slot) {
            ap_byte_unlock(fd, APPORTION_LEDGER_LOCK_SLOTS + (int64_t)index);
            return -ENOMEM;
        }
        raise_top(ledger->head, index);
        ap_ledger_reap(ledger->head, *slot);
        return (int)index;
    }
    return -ENOSPC;
}

int ap_ledger_join(struct ap_ledger *ledger)
{
    struct apportion_ledger_slot *mine = NULL;
    if (atomic_load(&ledger->mine))
        return 0;
    int fd = ap_ledger_reopen(ledger);
    int index = fd < 0 ? fd : ap_ledger_take_slot(ledger, fd, &mine);
    if (index >= 0) {
        atomic_store(&mine->namespace, ap_pid_namespace());
        atomic_store(&mine->pid, ap_pid());
        atomic_store(&mine->started, ap_boot_ns());
        atomic_store(&ledger->mine_index, (uint32_t)index);
        atomic_store(&ledger->mine, mine);
    } else {
        ap_log("%s: no slot: error %d", ledger->path, -index);
    }
    if (fd >= 0)
        ap_close(fd);
    return index < 0 ? index : 0;
}
