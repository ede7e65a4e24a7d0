#include "device.h"

#include <stdatomic.h>

#include "truth.h"

static bool uuid_of(CUdevice device, CUuuid *uuid)
{
    const struct real_cuda *real = real_cuda();
    /* _v2 tells a MIG instance from its card; an instance is no share, so it must not pass. */
    if (real->cuDeviceGetUuid_v2)
        return real->cuDeviceGetUuid_v2(uuid, device) == CUDA_SUCCESS;
    return real->cuDeviceGetUuid && real->cuDeviceGetUuid(uuid, device) == CUDA_SUCCESS;
}

/* Every call that takes memory or tells of it begins here, before the driver's part, so this is
 * where the charge is compared with the driver's word now and then.
 *
 * Ordinals are fixed once the driver is initialised, whatever CUDA_VISIBLE_DEVICES says later, so
 * they are remembered; the memory is wiped in a forked child, which may see others. */
struct ap_gpu *ap_gpu_of_device(struct ap_process *process, CUdevice device)
{
    CUuuid uuid;
    bool remembered = device >= 0 && (unsigned)device < AP_ORDINAL_MAX;
    if (remembered) {
        struct ap_gpu *gpu =
            atomic_load_explicit(&process->by_ordinal[device], memory_order_acquire);
        if (gpu) {
            ap_truth_refresh(process, gpu, AP_TRUTH_ROUTINE_MS);
            return gpu;
        }
    }
    if (!uuid_of(device, &uuid))
        return NULL;
    struct ap_gpu *gpu = ap_gpu_find(process, uuid.bytes);
    if (gpu && remembered)
        atomic_store_explicit(&process->by_ordinal[device], gpu, memory_order_release);
    return gpu;
}

struct ap_gpu *ap_gpu_of_current(struct ap_process *process)
{
    const struct real_cuda *real = real_cuda();
    CUdevice device = -1;
    if (!real->cuCtxGetDevice || real->cuCtxGetDevice(&device) != CUDA_SUCCESS)
        return NULL;
    return ap_gpu_of_device(process, device);
}

static int device_count(void)
{
    const struct real_cuda *real = real_cuda();
    int count = 0;
    return real->cuDeviceGetCount && real->cuDeviceGetCount(&count) == CUDA_SUCCESS ? count : 0;
}

unsigned ap_architecture(void)
{
    const struct real_cuda *real = real_cuda();
    int found = 0, count = real->cuDeviceGetAttribute ? device_count() : 0;
    for (CUdevice device = 0; device < count; device++) {
        int major = 0, minor = 0;
        if (real->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                                       device) != CUDA_SUCCESS ||
            real->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                                       device) != CUDA_SUCCESS ||
            (found && found != 10 * major + minor))
            return 0;
        found = 10 * major + minor;
    }
    return (unsigned)found;
}

bool ap_is_device(CUdevice device)
{
    return device >= 0 && device < device_count();
}
