#define _GNU_SOURCE
#include "descriptor.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "account.h"
#include "hold.h"
#include "sys.h"

#define FIRST_OBJECT (UINT64_C(1) << 61)
#define INFO_MOST 4096
#define PATH_MOST 64
#define AT_ONCE 32

enum { DEVICE, OWN_FILE };      /* kinds of records in `descriptors` */
enum { KEPT = 1, LOOKED_AT = 2 }; /* their tags: all, and those that a sweep has seen already */

uint64_t ap_descriptor_object(void)
{
    return FIRST_OBJECT | (ap_random() & (FIRST_OBJECT - 1));
}

/* Where that fails, who gets the descriptor is charged for himself: too much, not too little. */
void ap_descriptor_mark(int fd, uint64_t object, uint64_t bytes)
{
    (void)ap_bytes_mark(fd, (int64_t)object, (int64_t)(bytes >> AP_BLOCK_SHIFT));
}

static uint64_t number_at(const char **at)
{
    uint64_t number = 0;
    while (**at == ' ')
        ++*at;
    for (; **at >= '0' && **at <= '9'; ++*at)
        number = number * 10 + (uint64_t)(**at - '0');
    return number;
}

/* "lock:  1: OFDLCK ADVISORY  READ -1 00:06:142 <first byte> <last byte>" */
static uint64_t read_line(const char *line, uint64_t *bytes)
{
    const char *at = strchr(line, '\n'), *end = at;
    if (!end || strncmp(line, "lock:", 5) != 0)
        return 0;
    for (int spaces = 0; at > line && spaces < 2; at--)
        spaces += at[-1] == ' ';
    uint64_t first = number_at(&at), last = number_at(&at);
    if (first < FIRST_OBJECT || first >= 2 * FIRST_OBJECT || last < first)
        return 0;
    *bytes = (last - first + 1) << AP_BLOCK_SHIFT;
    return first;
}

uint64_t ap_descriptor_read(int fd, uint64_t *bytes)
{
    char path[PATH_MOST], text[INFO_MOST];
    uint64_t object = 0;
    (void)snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    int info = ap_open(AT_FDCWD, path, O_RDONLY);
    if (info < 0)
        return 0;
    long size = ap_read(info, text, sizeof text - 1);
    ap_close(info);
    if (size <= 0)
        return 0;
    text[size] = 0;
    for (const char *line = text; line && !object; line = strchr(line, '\n')) {
        line += *line == '\n';
        object = read_line(line, bytes);
    }
    return object;
}

/* One path for all: the driver's descriptors are of one device. */
static bool know_path(struct ap_process *process, int fd)
{
    char link[PATH_MOST];
    if (process->device_path[0])
        return true;
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long size = ap_readlink(link, process->device_path, sizeof process->device_path - 1);
    process->device_path[size > 0 ? size : 0] = 0;
    return size > 0;
}

static bool is_of(int fd, uint32_t inode)
{
    struct stat about;
    return ap_fstat(fd, &about) == 0 && (uint32_t)about.st_ino == inode;
}

static bool device_is_out(const struct ap_process *process, const struct ap_record *record)
{
    int fd = ap_open(AT_FDCWD, process->device_path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return true; /* not known: rather too much */
    bool out = !is_of(fd, record->count) || ap_byte_is_locked(fd, (int64_t)record->bytes);
    ap_close(fd);
    return out;
}

struct linux_dirent {
    uint64_t inode;
    int64_t offset;
    unsigned short length;
    unsigned char type;
    char name[];
};

static bool leads_to(const char *name, uint32_t inode)
{
    uint64_t fd = number_at(&name);
    return *name == 0 && is_of((int)fd, inode);
}

static bool own_file_is_open(const struct ap_record *record)
{
    _Alignas(8) char buffer[INFO_MOST];
    bool found = false;
    long size = 0;
    int folder = ap_open(AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return true; /* not known: rather too much */
    while (!found && (size = ap_getdents(folder, buffer, sizeof buffer)) > 0)
        for (long at = 0; at < size && !found;) {
            const struct linux_dirent *entry = (const void *)(buffer + at);
            found = leads_to(entry->name, record->count);
            at += entry->length;
        }
    ap_close(folder);
    return found;
}

static bool is_out(const struct ap_process *process, const struct ap_record *record)
{
    return record->kind == DEVICE ? device_is_out(process, record) : own_file_is_open(record);
}

void ap_descriptor_keep(struct ap_process *process, uint32_t hold, int fd, bool own_file)
{
    struct stat about;
    struct ap_record record = {.key = hold, .context = KEPT}, old;
    bool had_old = false;
    record.bytes = ap_hold_object(process, hold);
    if (ap_fstat(fd, &about) < 0)
        return;
    record.count = (uint32_t)about.st_ino;
    record.kind = own_file ? OWN_FILE : DEVICE;
    if (record.kind == DEVICE && !know_path(process, fd))
        return;
    ap_hold_again(process, hold);
    bool put = ap_table_put(&process->descriptors, &record, &old, &had_old);
    if (put && had_old)
        ap_hold_drop(process, hold);
}

static void look(struct ap_process *process, const struct ap_record *record, uint64_t tag)
{
    struct ap_record kept = *record, old;
    bool had_old;
    kept.context = tag;
    if (is_out(process, record))
        (void)ap_table_put(&process->descriptors, &kept, &old, &had_old);
    else
        ap_hold_drop(process, (uint32_t)record->key);
}

void ap_descriptor_look(struct ap_process *process, uint32_t hold)
{
    struct ap_record record;
    if (ap_table_take(&process->descriptors, hold, &record))
        look(process, &record, KEPT);
}

void ap_descriptors_sweep(struct ap_process *process)
{
    struct ap_record records[AT_ONCE];
    size_t count;
    while ((count = ap_table_take_context(&process->descriptors, KEPT, records, AT_ONCE)) > 0)
        for (size_t i = 0; i < count; i++)
            look(process, &records[i], LOOKED_AT);
    ap_table_retag(&process->descriptors, LOOKED_AT, KEPT);
}
