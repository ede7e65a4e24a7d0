/* The few types of the CUDA driver interface that the front needs, as publicly documented. */
#ifndef AP_CUDA_H
#define AP_CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef unsigned long long CUdeviceptr;
typedef unsigned int CUdeviceptr_v1;
typedef struct {
    unsigned char bytes[16];
} CUuuid;

typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct {
    int type, id;
} CUmemLocation;
typedef struct {
    int type, requested_handle_types;
    CUmemLocation location;
    void *windows;
    unsigned char flags[8];
} CUmemAllocationProp;

_Static_assert(sizeof(CUmemAllocationProp) == 32, "as in the driver");

enum { CU_MEM_LOCATION_TYPE_DEVICE = 1 };

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_FOUND = 500,
};

#endif
