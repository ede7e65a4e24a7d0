/* Stream capture: while a stream is captured into a graph, allocations on it are nodes of the graph
 * and take nothing, and asking about pools would spoil the capture (measured: error 900). */
#ifndef AP_CUDA_CAPTURE_H
#define AP_CUDA_CAPTURE_H

#include "../common/process.h"
#include "front.h"

/* Whether work on `stream` goes into a graph. `per_thread`: 0 is the thread's own stream. */
bool ap_capturing(struct ap_process *process, CUstream stream, bool per_thread);

/* From now on captures of whatever kind may be under way. */
void ap_capture_possible(struct ap_process *process);

/* Between these two this thread may ask about pools and trim them whatever is being captured. */
int ap_capture_relax(struct ap_process *process);
void ap_capture_restore(int mode);

#endif
