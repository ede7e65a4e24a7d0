/* The few types of the CUDA driver interface that the front needs, as publicly documented. */
#ifndef AP_CUDA_H
#define AP_CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef struct CUstream_st *CUstream;
typedef unsigned long long CUdeviceptr;
typedef unsigned int CUdeviceptr_v1;
typedef struct {
    unsigned char bytes[16];
} CUuuid;

typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;

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

typedef struct {
    unsigned char reserved[64];
} CUipcMemHandle;

enum { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1, CU_MEM_HANDLE_TYPE_FABRIC = 8 };
enum { CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1 };

typedef struct CUstream_st *CUstream;
typedef struct CUexternalMemory_st *CUexternalMemory;
typedef struct {
    int type;
    union {
        int fd;
        void *pointers[2];
    } handle;
    unsigned long long size;
    unsigned int flags, reserved[16];
} CUDA_EXTERNAL_MEMORY_HANDLE_DESC;
enum { CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD = 1, CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD = 9 };

typedef struct {
    int resource_type;
    void *resource;
    int subresource_type;
    union {
        struct {
            unsigned int level, layer, x, y, z, width, height, depth;
        } level;
        struct {
            unsigned int layer;
            unsigned long long offset, size;
        } tail;
    } subresource;
    int operation, handle_type;
    unsigned long long handle, offset;
    unsigned int devices, flags, reserved[2];
} CUarrayMapInfo;
enum { CU_MEM_OPERATION_TYPE_MAP = 1, CU_MEM_OPERATION_TYPE_UNMAP = 2 };

_Static_assert(sizeof(CUDA_EXTERNAL_MEMORY_HANDLE_DESC) == 104, "as in the driver");
_Static_assert(sizeof(CUarrayMapInfo) == 96, "as in the driver");
_Static_assert(sizeof(CUmemAllocationProp) == 32, "as in the driver");

enum { CU_MEM_LOCATION_TYPE_DEVICE = 1 };
enum { CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9 };

typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct {
    unsigned int Width, Height;
    int Format;
    unsigned int NumChannels;
} CUDA_ARRAY_DESCRIPTOR_v1;
typedef struct {
    size_t Width, Height;
    int Format;
    unsigned int NumChannels;
} CUDA_ARRAY_DESCRIPTOR;
typedef struct {
    unsigned int Width, Height, Depth;
    int Format;
    unsigned int NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;
typedef struct {
    size_t Width, Height, Depth;
    int Format;
    unsigned int NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR;
typedef struct {
    size_t size, alignment;
    unsigned int reserved[4];
} CUDA_ARRAY_MEMORY_REQUIREMENTS;

enum {
    CUDA_ARRAY3D_LAYERED = 0x01,
    CUDA_ARRAY3D_CUBEMAP = 0x04,
    CUDA_ARRAY3D_SPARSE = 0x40,
    CUDA_ARRAY3D_DEFERRED_MAPPING = 0x80,
};

enum {
    CU_AD_FORMAT_UNSIGNED_INT8 = 0x01,
    CU_AD_FORMAT_UNSIGNED_INT16 = 0x02,
    CU_AD_FORMAT_UNSIGNED_INT32 = 0x03,
    CU_AD_FORMAT_SIGNED_INT8 = 0x08,
    CU_AD_FORMAT_SIGNED_INT16 = 0x09,
    CU_AD_FORMAT_SIGNED_INT32 = 0x0a,
    CU_AD_FORMAT_HALF = 0x10,
    CU_AD_FORMAT_FLOAT = 0x20,
    CU_AD_FORMAT_UNORM_INT_101010_2 = 0x50,
    CU_AD_FORMAT_BC1_UNORM = 0x91,
    CU_AD_FORMAT_BC4_UNORM = 0x97,
    CU_AD_FORMAT_BC7_UNORM_SRGB = 0x9e,
    CU_AD_FORMAT_UNORM_INT8X1 = 0xc0,
    CU_AD_FORMAT_SNORM_INT16X4 = 0xcb,
};
typedef struct {
    int type, handle_types;
    CUmemLocation location;
    void *windows;
    size_t most;
    unsigned char others[56];
} CUmemPoolProps;

_Static_assert(sizeof(CUmemPoolProps) == 88, "as in the driver");

enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1, CU_MEM_ALLOCATION_TYPE_MANAGED = 2 };

typedef struct {
    CUmemPoolProps pool;
    const void *access;
    size_t access_count, bytes;
    CUdeviceptr pointer;
} CUDA_MEM_ALLOC_NODE_PARAMS;

_Static_assert(sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) == 120, "as in the driver");

typedef struct {
    uint64_t flags;
    CUstream stream;
    CUgraphNode bad_node;
    int result;
} CUDA_GRAPH_INSTANTIATE_PARAMS;

typedef struct {
    unsigned int grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
    CUstream stream;
    void *attributes;
    unsigned int attribute_count;
} CUlaunchConfig;

typedef struct {
    CUfunction function;
    unsigned int grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
    CUstream stream;
    void **parameters;
} CUDA_LAUNCH_PARAMS;

/* One end of a copy. */
typedef struct {
    size_t x, y;
    int type;
    void *host;
    CUdeviceptr device;
    CUarray array;
    size_t pitch;
} CUmemcpyEnd2D;
typedef struct {
    CUmemcpyEnd2D from, to;
    size_t width, height;
} CUDA_MEMCPY2D;
typedef struct {
    size_t x, y, z, level;
    int type;
    void *host;
    CUdeviceptr device;
    CUarray array;
    void *reserved;
    size_t pitch, height;
} CUmemcpyEnd3D;
typedef struct {
    CUmemcpyEnd3D from, to;
    size_t width, height, depth;
} CUDA_MEMCPY3D;

_Static_assert(sizeof(CUDA_MEMCPY2D) == 128, "as in the driver");
_Static_assert(sizeof(CUDA_MEMCPY3D) == 200, "as in the driver");
_Static_assert(offsetof(CUlaunchConfig, stream) == 32, "as in the driver");
_Static_assert(sizeof(CUlaunchConfig) == 56, "as in the driver");
_Static_assert(offsetof(CUDA_LAUNCH_PARAMS, stream) == 40, "as in the driver");
_Static_assert(sizeof(CUDA_LAUNCH_PARAMS) == 56, "as in the driver");

enum { CU_LIMIT_STACK_SIZE = 0, CU_LIMIT_MALLOC_HEAP_SIZE = 2 };

enum {
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
};

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_MPS_CONNECTION_FAILED = 805,
};

#endif
