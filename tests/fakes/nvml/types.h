/* The part of NVML's interface that the simulated library has: sizes and numbers are facts of
 * the interface, checked against pynvml's by tests/shim/test_fakes.py. */
#ifndef FAKE_NVML_TYPES_H
#define FAKE_NVML_TYPES_H

typedef int nvmlReturn;

enum {
	NVML_SUCCESS = 0,
	NVML_UNINITIALIZED = 1,
	NVML_INVALID_ARGUMENT = 2,
	NVML_NOT_SUPPORTED = 3,
	NVML_NO_PERMISSION = 4,
	NVML_NOT_FOUND = 6,
	NVML_INSUFFICIENT_SIZE = 7,
	NVML_DRIVER_NOT_LOADED = 9,
	NVML_TIMEOUT = 10,
	NVML_FUNCTION_NOT_FOUND = 13,
	NVML_GPU_IS_LOST = 15,
	NVML_VERSION_MISMATCH = 25,
	NVML_UNKNOWN = 999,
};

typedef struct nvmlDevice *nvmlDevice;
typedef struct nvmlEventSet *nvmlEventSet;

typedef struct {
	unsigned long long total, free, used;
} nvmlMemory;

typedef struct {
	unsigned version;
	unsigned long long total, reserved, free, used;
} nvmlMemory_v2;

typedef struct {
	char bus_id_legacy[16];
	unsigned domain, bus, device, device_id, subsystem_id;
	char bus_id[32];
} nvmlPciInfo_v3;

typedef struct {
	char bus_id[16];
	unsigned domain, bus, device, device_id, subsystem_id, reserved[4];
} nvmlPciInfo_v2;

typedef struct {
	unsigned gpu, memory;
} nvmlUtilization;

typedef struct {
	unsigned pid;
	unsigned long long used;
} nvmlProcess_v1;

typedef struct {
	unsigned pid;
	unsigned long long used;
	unsigned gpu_instance, compute_instance;
} nvmlProcess_v2;

typedef struct {
	unsigned pid;
	unsigned long long used;
	unsigned gpu_instance, compute_instance;
	unsigned long long protected_used;
} nvmlProcessDetail;

typedef struct {
	unsigned version, mode, count;
	nvmlProcessDetail *processes;
} nvmlProcessDetailList;

typedef struct {
	unsigned pid;
	unsigned long long time; /* microseconds */
	unsigned sm, memory, encoder, decoder;
} nvmlSample;

typedef struct {
	unsigned long long time;
	unsigned pid, sm, memory, encoder, decoder, jpeg, ofa;
} nvmlSampleInfo;

typedef struct {
	unsigned version, count;
	unsigned long long since;
	nvmlSampleInfo *samples;
} nvmlSampleList;

typedef struct {
	unsigned gpu, memory;
	unsigned long long most, time, start;
	unsigned running, reserved[5];
} nvmlAccounting;

typedef struct {
	nvmlDevice device;
	unsigned long long type, data;
	unsigned gpu_instance, compute_instance;
} nvmlEventData;

typedef struct {
	unsigned field, scope;
	long long timestamp, latency;
	unsigned type;
	nvmlReturn result;
	union {
		double d;
		unsigned u;
		unsigned long long ull;
	} value;
} nvmlFieldValue;

#define NVML_VALUE_UNSIGNED 1u

#define NVML_STRUCT_VERSION(type, n) ((unsigned)(sizeof(type) | ((n) << 24)))
#define NVML_NO_INSTANCE 0xffffffffu
#define NVML_XID_EVENT 8ull

#endif
