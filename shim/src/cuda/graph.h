/* Memory nodes of graphs. What the driver does was measured (driver 580, H200): neither a node nor
 * its instantiation takes anything; the first upload or launch takes chunks of 32 MiB, which other
 * graphs of the device may use when their memory is not in use at the same time; freeing it and
 * destroying the graph give nothing back, only a trim does. What a device's graphs have is its
 * attribute RESERVED to the byte, and may be asked at any time.
 *
 * So that attribute is what is charged, and an upload or launch that may need more than there is
 * charges what its nodes need beforehand. */
#ifndef AP_CUDA_GRAPH_H
#define AP_CUDA_GRAPH_H

#include "../common/process.h"
#include "front.h"

/* What an executable graph takes: its record in the table of graphs has the handle as key, the sum
 * of its memory nodes in `bytes`, and in `context` a bit for each device whose memory it takes. */

/* Sets bytes and context of `record` from the memory nodes of `graph` and its children. */
void ap_graph_need(CUgraph graph, struct ap_record *record);

/* Runs `call`, which may take what `record` says, with its charge; refuses when that does not fit.
 */
typedef CUresult (*ap_graph_call)(void *argument);
CUresult ap_graph_run(struct ap_process *process, const struct ap_record *record,
                      ap_graph_call call, void *argument);

/* Charges every device's graphs with what they have now. Waits for nobody. */
void ap_graphs_look(struct ap_process *process);

/* Gives back what a GPU's graphs have and do not use; true: there was something. */
bool ap_graphs_reclaim(struct ap_process *process, struct ap_gpu *gpu);

#endif
