/* Memory without an address, by the driver's handle, and what keeps it: its references, mappings,
 * arrays and multicast groups. All with process->vmm_lock held. */
#ifndef AP_CUDA_MEM_VMM_H
#define AP_CUDA_MEM_VMM_H

#include "../common/process.h"
#include "cuda.h"

/* Notes what the driver made or imported: key, charge (charge.h), one reference. False: no memory
 * to remember it. */
bool ap_memory_note(struct ap_process *process, const struct ap_record *record);

/* Drops one reference; with the last the charge goes back. What is not known is nobody's. */
void ap_memory_let_go(struct ap_process *process, uint64_t handle);

/* The handle of the memory that is mapped at an address; 0: none is. */
uint64_t ap_memory_at(CUdeviceptr pointer);

/* Charges imported memory, known by `object` (0: by nothing) and of `bytes` (0: not known yet), and
 * fills in how. False: it does not fit. */
bool ap_import_charge(struct ap_process *process, struct ap_gpu *gpu, uint64_t object,
                      uint64_t bytes, struct ap_record *record);

/* `owner` (an array, a multicast group) holds `memory` at a place of its own, in place of what it
 * held there. */
void ap_bind(struct ap_process *process, uint64_t owner, uint64_t place, uint64_t memory);
void ap_unbind(struct ap_process *process, uint64_t owner, uint64_t place);

/* The owner is gone. */
void ap_unbind_all(struct ap_process *process, uint64_t owner);

#endif
