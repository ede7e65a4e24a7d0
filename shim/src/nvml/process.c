/* Lists of processes: those of the share, with what the ledger says that they hold. So they agree
 * with the memory information and say nothing of a neighbour, whom the driver lists wherever PID
 * namespaces are shared. Compute work is all of the ledger's; graphics work and MPS clients are
 * those of the ledger's processes that the driver lists as such. */
#include <string.h>

#include "share.h"

/* The first drivers of series 535 wrote 32 bytes where the others write 24. */
#define ENTRY_MOST 32

enum { COMPUTE = 0, GRAPHICS = 1, MPS = 2 }; /* as the modes of a detail list */

typedef nvmlReturn_t list_function(nvmlDevice_t device, unsigned int *count, void *infos);

struct question {
    list_function *real;
    nvmlDevice_t device;
    int mode;
    size_t entry; /* bytes */
};

static nvmlReturn_t ask(const void *context, unsigned int *count, void *infos)
{
    const struct question *question = context;
    return question->real(question->device, count, infos);
}

static bool lists(const struct ap_fetched *theirs, size_t entry, uint32_t pid)
{
    for (unsigned int i = 0; i < theirs->count; i++)
        if (memcmp(theirs->at + i * entry, &pid, sizeof pid) == 0)
            return true;
    return false;
}

/* Drops whom the driver does not list. */
static nvmlReturn_t keep_listed(const struct question *question, struct ap_holders *holders)
{
    struct ap_fetched theirs;
    uint32_t kept = 0;
    nvmlReturn_t result = ap_nvml_fetch(ask, question, ENTRY_MOST, &theirs);
    for (uint32_t i = 0; i < holders->count; i++)
        if (lists(&theirs, question->entry, holders->list[i].pid))
            holders->list[kept++] = holders->list[i];
    holders->count = kept;
    ap_fetched_free(&theirs);
    return result;
}

static nvmlReturn_t gather(const struct question *question, struct ap_holders *holders)
{
    nvmlReturn_t result = ap_nvml_holders(question->device, holders);
    if (result == NVML_SUCCESS && question->mode != COMPUTE && holders->count > 0)
        result = question->real ? keep_listed(question, holders) : NVML_ERROR_FUNCTION_NOT_FOUND;
    return result;
}

static void write_entry(unsigned char *at, size_t size, const struct ap_holder *holder)
{
    const nvmlProcessDetail_v1_t whole = {
        .pid = holder->pid,
        .usedGpuMemory = holder->bytes,
        .gpuInstanceId = NVML_NO_INSTANCE,
        .computeInstanceId = NVML_NO_INSTANCE,
    };
    memcpy(at, &whole, size); /* the shorter kinds of entry begin like the longest */
}

static nvmlReturn_t answer(const struct question *question, size_t entry, unsigned int *count,
                           unsigned char *infos)
{
    struct ap_holders holders;
    nvmlReturn_t result = gather(question, &holders);
    if (result == NVML_SUCCESS)
        result = ap_nvml_room(count, infos, holders.count);
    for (uint32_t i = 0; result == NVML_SUCCESS && i < holders.count; i++)
        write_entry(infos + i * entry, entry, &holders.list[i]);
    ap_holders_free(&holders);
    return result;
}

/* What is wrong with a call the driver says. */
static nvmlReturn_t list(const struct question *question, unsigned int *count, void *infos)
{
    unsigned int none = 0;
    if (!question->real)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn_t result = question->real(question->device, count ? &none : NULL, NULL);
    if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE)
        return result;
    return answer(question, question->entry, count, infos);
}

#define LIST(name, mode, type)                                                                     \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, void *infos)                       \
    {                                                                                              \
        const struct question question = {real_nvml()->name, device, mode, sizeof(type)};          \
        return list(&question, count, infos);                                                      \
    }

LIST(nvmlDeviceGetComputeRunningProcesses, COMPUTE, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, COMPUTE, nvmlProcessInfo_t)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE, nvmlProcessInfo_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses, GRAPHICS, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, GRAPHICS, nvmlProcessInfo_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, GRAPHICS, nvmlProcessInfo_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, MPS, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, MPS, nvmlProcessInfo_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, MPS, nvmlProcessInfo_t)

/* The driver judges version and mode; a version that it knows and we do not is refused as by an
 * older driver. */
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                   nvmlProcessDetailList_t *list)
{
    const struct real_nvml *real = real_nvml();
    if (!real->nvmlDeviceGetRunningProcessDetailList)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (!list)
        return real->nvmlDeviceGetRunningProcessDetailList(device, list);
    if (list->version != NVML_VERSION_OF(nvmlProcessDetailList_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlProcessDetailList_t bare = {.version = list->version, .mode = list->mode};
    nvmlReturn_t result = real->nvmlDeviceGetRunningProcessDetailList(device, &bare);
    if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE)
        return result;
    const struct question question = {
        .real = list->mode == GRAPHICS ? real->nvmlDeviceGetGraphicsRunningProcesses_v3
                                       : real->nvmlDeviceGetMPSComputeRunningProcesses_v3,
        .device = device,
        .mode = (int)list->mode,
        .entry = sizeof(nvmlProcessInfo_t),
    };
    return answer(&question, sizeof(nvmlProcessDetail_v1_t), &list->numProcArrayEntries,
                  (unsigned char *)list->procArray);
}
