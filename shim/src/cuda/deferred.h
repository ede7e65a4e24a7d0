/* Linear memory that is freed in stream order (cuMemFreeAsync) is held by the driver until the
 * stream gets there and something is synchronised after that (measured). So it stays charged until
 * an event that was put behind it has happened, which any thread may ask, also when the stream was
 * destroyed meanwhile; or until its context, or the stream's, has ended. Nothing here waits for a
 * stream: what it waits for may be the caller. */
#ifndef AP_CUDA_DEFERRED_H
#define AP_CUDA_DEFERRED_H

#include "../common/process.h"
#include "front.h"

/* Gives back the charges of what is done. Waits for nobody; true: there was one. */
bool ap_deferred_look(struct ap_process *process);

/* All that is of context `from` is of context `to`; an odd number is one that is being ended, about
 * which nothing is asked. */
void ap_deferred_retag(struct ap_process *process, uint64_t from, uint64_t to);

/* The context is gone, with its streams and events: so are the charges. */
void ap_deferred_context_ended(struct ap_process *process, uint64_t context);

#endif
