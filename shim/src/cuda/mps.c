#define _GNU_SOURCE
#include "mps.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../common/account.h"
#include "../common/log.h"
#include "../common/shares.h"

#define FOLDER "/run/apportion/mps/"
#define PREFIX "CUDA_MPS_"
#define PIPES PREFIX "PIPE_DIRECTORY=" FOLDER
#define PERCENTAGE PREFIX "ACTIVE_THREAD_PERCENTAGE="
#define MEMORY PREFIX "PINNED_DEVICE_MEM_LIMIT=0="
#define VISIBLE "CUDA_VISIBLE_DEVICES="

#define ALL_CORES 100
#define ENTRIES 4096 /* variables in a program's environment */
#define MPS_ENABLED 133 /* CU_DEVICE_ATTRIBUTE_MPS_ENABLED */
#define MIB_SHIFT 20

/* What is asked of the daemon of one GPU: its shares in this container, added up. */
struct part {
    uint8_t uuid[16];
    uint32_t cores; /* 0: there is none */
    uint64_t memory;
};

/* The environment that the program has from then on; a forked child must have it as well. */
static char *entries[ENTRIES];
static char variables[3][128];
#define VARIABLES (sizeof variables / sizeof *variables)

/* A share of all cores has the GPU for itself, and needs no daemon. */
static bool by_mps(const struct apportion_limits *limits)
{
    return limits->mode == APPORTION_CORES_MPS && limits->cores < ALL_CORES;
}

static const char *variable(const char *name)
{
    size_t length = strlen(name);
    for (char **entry = environ; entry && *entry; entry++)
        if (strncmp(*entry, name, length) == 0)
            return *entry + length;
    return NULL;
}

/* A process can reach the daemon of one GPU. With shares of several it is the one that
 * CUDA_VISIBLE_DEVICES names first, by its UUID; else the one with the lowest UUID. */
static bool choose(const struct ap_process *process, uint8_t uuid[16])
{
    const char *visible = variable(VISIBLE);
    uint8_t named[16], lowest[16];
    size_t length = visible ? strcspn(visible, ",") : 0;
    bool names = visible && apportion_uuid_parse(visible, length, named) == 0, found = false;
    for (uint32_t i = 0; i < process->share_count; i++) {
        const struct apportion_limits *limits = &process->shares[i].limits;
        if (!by_mps(limits))
            continue;
        if (names && memcmp(limits->uuid, named, sizeof named) == 0) {
            memcpy(uuid, named, sizeof named);
            return true;
        }
        if (!found || memcmp(limits->uuid, lowest, sizeof lowest) < 0)
            memcpy(lowest, limits->uuid, sizeof lowest);
        found = true;
    }
    if (found)
        memcpy(uuid, lowest, sizeof lowest);
    return found;
}

static struct part part_of(struct ap_process *process)
{
    struct part part = {.cores = 0};
    ap_lock(&process->lock);
    (void)ap_shares_read(process, APPORTION_SHARES_DIR);
    if (choose(process, part.uuid))
        for (uint32_t i = 0; i < process->share_count; i++) {
            const struct apportion_limits *limits = &process->shares[i].limits;
            if (memcmp(limits->uuid, part.uuid, sizeof part.uuid) != 0)
                continue;
            /* 0 would be no limit to the driver. */
            part.cores += limits->cores ? limits->cores : 1;
            part.memory += limits->memory;
        }
    ap_unlock(&process->lock);
    return part;
}

static bool is_set(const char *entry)
{
    return strncmp(entry, PREFIX, sizeof PREFIX - 1) == 0;
}

/* Not by setenv, which asks the application's allocator for memory. A thread that reads meanwhile
 * finds the old environment or the new one. */
static bool replace_environment(void)
{
    size_t count = 0;
    for (char **entry = environ; entry && *entry; entry++) {
        if (is_set(*entry))
            continue;
        if (count == ENTRIES - VARIABLES - 1)
            return false;
        entries[count++] = *entry;
    }
    for (size_t i = 0; i < VARIABLES; i++)
        entries[count++] = variables[i];
    entries[count] = NULL;
    environ = entries;
    return true;
}

static void describe(const struct part *part)
{
    char name[AP_UUID_TEXT];
    ap_uuid_name(part->uuid, name);
    snprintf(variables[0], sizeof variables[0], PIPES "%s", name);
    snprintf(variables[1], sizeof variables[1], PERCENTAGE "%u",
             part->cores < ALL_CORES ? part->cores : ALL_CORES);
    snprintf(variables[2], sizeof variables[2], MEMORY "%lluM",
             (unsigned long long)(part->memory >> MIB_SHIFT));
}

CUresult cuInit(unsigned int flags)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    if (!real->cuInit)
        return CUDA_ERROR_NOT_FOUND;
    struct part part = process ? part_of(process) : (struct part){.cores = 0};
    if (part.cores == 0)
        return real->cuInit(flags);
    ap_lock(&process->start_lock);
    describe(&part);
    if (!replace_environment())
        ap_log("more than %zu environment variables: MPS is not used; start with fewer",
               (size_t)(ENTRIES - VARIABLES - 1));
    CUresult result = real->cuInit(flags);
    ap_unlock(&process->start_lock);
    return result;
}

CUresult ap_mps_permit(const struct ap_gpu *gpu, CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    int enabled = 0;
    bool wanted = false;
    for (uint32_t i = 0; i < gpu->share_count; i++)
        wanted = wanted || by_mps(&gpu->shares[i]->limits);
    if (!wanted)
        return CUDA_SUCCESS;
    if (real->cuDeviceGetAttribute &&
        real->cuDeviceGetAttribute(&enabled, MPS_ENABLED, device) == CUDA_SUCCESS && enabled)
        return CUDA_SUCCESS;
    char name[AP_UUID_TEXT];
    ap_uuid_name(gpu->uuid, name);
    ap_log("no context on %s: this process is no client of its MPS daemon, which was away when it "
           "started or serves another GPU (the first of CUDA_VISIBLE_DEVICES); start it again",
           name);
    return CUDA_ERROR_MPS_CONNECTION_FAILED;
}
