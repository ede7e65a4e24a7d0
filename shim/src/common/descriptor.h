/* Descriptors that stand for device memory and go from process to process: how one is known again,
 * and whether one is left.
 *
 * The kernel does not say what memory a descriptor of the driver's is for. So it is marked with a
 * lock on bytes far beyond any end: where they begin is the object's number, how many they are its
 * size in blocks of 2 MiB. The lock belongs to the file description, so it travels with the
 * descriptor and goes with its last copy; the descriptor's holder reads it in /proc/self/fdinfo,
 * and anybody who opens the same device can ask whether it is there. */
#ifndef AP_DESCRIPTOR_H
#define AP_DESCRIPTOR_H

#include "process.h"

/* A new number for memory that descriptors will be given out for. */
uint64_t ap_descriptor_object(void);

void ap_descriptor_mark(int fd, uint64_t object, uint64_t bytes);

/* The object that a descriptor is for, with its size; 0: not marked. */
uint64_t ap_descriptor_read(int fd, uint64_t *bytes);

/* Keeps `hold` until no descriptor like `fd` is left: one of the driver's, marked with its object,
 * in any process; one with a file of its own (a dma-buf) in this process. */
void ap_descriptor_keep(struct ap_process *process, uint32_t hold, int fd, bool own_file);

/* Looks whether descriptors are left that keep `hold`; and the same for all of the process's. */
void ap_descriptor_look(struct ap_process *process, uint32_t hold);
void ap_descriptors_sweep(struct ap_process *process);

#endif
