/* Finding the shares that this container was given. */
#ifndef AP_SHARES_H
#define AP_SHARES_H

#include "process.h"

/* Reads every trusted limits file under `folder` into `process` (each share key once, in order of
 * the keys) and maps its ledger and its
 * schedule. 0, or a negative error number when some share could not be read
 * for want of something that may come back (descriptors, memory): then look again later. */
int ap_shares_scan(struct ap_process *process, const char *folder);

/* The same, unless that was done before and nothing was wanting: a container has its mounts before
 * it has a process. */
int ap_shares_read(struct ap_process *process, const char *folder);

#endif
