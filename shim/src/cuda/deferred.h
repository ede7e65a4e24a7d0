/* Linear memory that is freed in stream order (cuMemFreeAsync) is held by the driver until the
 * stream gets there and something is synchronised after that (measured). So it stays charged until
 * its stream is synchronised, or is found to be done. */
#ifndef AP_CUDA_DEFERRED_H
#define AP_CUDA_DEFERRED_H

#include "../common/process.h"
#include "front.h"

/* Gives back the charges whose streams are done. Waits for nobody; true: there was one. */
bool ap_deferred_look(struct ap_process *process);

#endif
