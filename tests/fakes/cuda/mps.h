/* This process as a client of an MPS daemon. */
#ifndef FAKE_CUDA_MPS_H
#define FAKE_CUDA_MPS_H

#include "cuda.h"

/* Joins the daemon whose folder the environment names, if one listens there: part of cuInit. */
CUresult cu_mps_join(void);

/* Whether it is a client, and with what part of the cores. */
bool cu_mps(unsigned *percent);

/* What each call begins with: 0, or the error that a client has since its server or another client
 * failed. */
CUresult cu_mps_state(void);

/* This client has a fatal fault: `code` is what it gets itself. */
CUresult cu_mps_fault(CUresult code);

#endif
