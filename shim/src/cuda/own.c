#define _GNU_SOURCE
#include "own.h"

#include <errno.h>
#include <string.h>

#include "../common/account.h"
#include "../common/front.h"
#include "../common/sys.h"

#define LIBRARY "libnvidia-ml.so.1"
#define DRIVER "/run/apportion/driver/" LIBRARY
#define NOT_AVAILABLE UINT64_MAX

enum { SUCCESS = 0, UNINITIALIZED = 1 };

typedef int (*list_function)(void *device, unsigned int *count, void *list);

static struct functions {
    int (*nvmlInit_v2)(void);
    int (*nvmlDeviceGetHandleByUUID)(const char *uuid, void **device);
    list_function nvmlDeviceGetComputeRunningProcesses_v3, nvmlDeviceGetComputeRunningProcesses_v2,
        nvmlDeviceGetComputeRunningProcesses;
} real;

#define FUNCTION(name) {#name, NULL, offsetof(struct functions, name)}

/* The library's own front is loaded first: both have the SONAME that a program asks for, and the
 * dynamic linker gives it the one that came first. Where there is no front there is no telling what
 * a program would get, so nothing is loaded. */
static bool load(void)
{
    const struct ap_hook functions[] = {
        FUNCTION(nvmlInit_v2),
        FUNCTION(nvmlDeviceGetHandleByUUID),
        FUNCTION(nvmlDeviceGetComputeRunningProcesses_v3),
        FUNCTION(nvmlDeviceGetComputeRunningProcesses_v2),
        FUNCTION(nvmlDeviceGetComputeRunningProcesses),
    };
    if (!ap_front_load_beside(LIBRARY))
        return false;
    ap_front_fill(DRIVER, functions, sizeof functions / sizeof functions[0], &real);
    return real.nvmlInit_v2 && real.nvmlDeviceGetHandleByUUID && real.nvmlInit_v2() == SUCCESS;
}

static bool ready(struct ap_own *own)
{
    if (own->state == AP_OWN_UNTRIED)
        own->state = load() ? AP_OWN_READY : AP_OWN_NONE;
    return own->state == AP_OWN_READY;
}

static bool look_up(struct ap_gpu *gpu)
{
    char text[AP_UUID_TEXT];
    ap_uuid_name(gpu->uuid, text);
    return gpu->overhead.nvml ||
           real.nvmlDeviceGetHandleByUUID(text, &gpu->overhead.nvml) == SUCCESS;
}

/* An entry: PID, bytes, and from version 2 on two more numbers. (The first drivers of series 535
 * have a fifth in version 3.) */
static size_t choose(list_function *list)
{
    *list = real.nvmlDeviceGetComputeRunningProcesses_v2;
    if (!*list)
        *list = real.nvmlDeviceGetComputeRunningProcesses_v3;
    if (*list)
        return 24;
    *list = real.nvmlDeviceGetComputeRunningProcesses;
    return 16;
}

static enum ap_own_answer find(const unsigned char *list, unsigned int count, size_t size,
                               uint32_t wanted, uint64_t *bytes)
{
    for (unsigned int i = 0; i < count; i++) {
        uint32_t pid;
        memcpy(&pid, list + i * size, sizeof pid);
        if (pid != wanted)
            continue;
        memcpy(bytes, list + i * size + 8, sizeof *bytes);
        return *bytes == NOT_AVAILABLE ? AP_OWN_UNKNOWN : AP_OWN_TOLD;
    }
    return AP_OWN_ABSENT;
}

static enum ap_own_answer ask(struct ap_own *own, struct ap_gpu *gpu, uint32_t pid,
                              uint64_t *bytes)
{
    unsigned int count = AP_LISTED_MAX;
    list_function list;
    size_t size = choose(&list);
    if (!list || !look_up(gpu))
        return AP_OWN_UNKNOWN;
    int result = list(gpu->overhead.nvml, &count, own->list);
    /* The program shut it down once more often than it had begun: begin again. */
    if (result == UNINITIALIZED && real.nvmlInit_v2() == SUCCESS) {
        count = AP_LISTED_MAX;
        gpu->overhead.nvml = NULL;
        result = look_up(gpu) ? list(gpu->overhead.nvml, &count, own->list) : UNINITIALIZED;
    }
    return result == SUCCESS ? find(own->list, count, size, pid, bytes) : AP_OWN_UNKNOWN;
}

enum ap_own_answer ap_own_memory(struct ap_process *process, struct ap_gpu *gpu, uint64_t *bytes)
{
    int saved = errno;
    enum ap_own_answer answer = AP_OWN_UNKNOWN;
    ap_lock(&process->own.lock);
    if (ready(&process->own))
        answer = ask(&process->own, gpu, ap_pid(), bytes);
    ap_unlock(&process->own.lock);
    errno = saved;
    return answer;
}

/* Loads nothing: the caller may hold any lock. Who is charged has asked before. */
bool ap_driver_lists(const struct ap_ledger *ledger, uint32_t pid)
{
    int saved = errno;
    uint64_t bytes = 0;
    enum ap_own_answer answer = AP_OWN_UNKNOWN;
    struct ap_process *process = ap_process();
    struct ap_gpu *gpu = process ? ap_gpu_of_ledger(process, ledger) : NULL;
    if (!gpu || atomic_load(&gpu->overhead.distrusted))
        return false;
    ap_lock(&process->own.lock);
    if (process->own.state == AP_OWN_READY)
        answer = ask(&process->own, gpu, pid, &bytes);
    ap_unlock(&process->own.lock);
    errno = saved;
    return answer == AP_OWN_TOLD && bytes > 0;
}
