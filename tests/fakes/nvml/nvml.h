/* What the files of the simulated libnvidia-ml share. */
#ifndef FAKE_NVML_H
#define FAKE_NVML_H

#include "fakegpu.h"
#include "types.h"

/* Initialised and the driver is there: 0 and the configuration, after [driver] faults. */
nvmlReturn nv_driver(const char *function, const struct fg_conf **conf);

/* The card of a handle: 0 and its configuration, after the card's faults. */
nvmlReturn nv_device(nvmlDevice device, const char *function, const struct fg_gpu **gpu);

/* The handle of a card on record, by key. */
nvmlDevice nv_handle(unsigned key);

/* Copies a string into the caller's buffer, or says that it is too small. */
nvmlReturn nv_string(char *out, unsigned size, const char *text);

#endif
