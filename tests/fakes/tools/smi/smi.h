/* A look-alike of nvidia-smi over whatever libnvidia-ml it finds. */
#ifndef FAKE_SMI_H
#define FAKE_SMI_H

#include "../../nvml/types.h"

#include <stdbool.h>
#include <stddef.h>

enum { SMI_MAX_GPUS = 32, SMI_MAX_PROCESSES = 1024 };

/* Exit statuses of the real one. */
enum { SMI_OK = 0, SMI_USAGE = 2, SMI_NO_DEVICE = 6, SMI_NO_LIBRARY = 12, SMI_UNKNOWN_OPTION = 255 };

/* Functions that the library lacks are NULL. */
struct nvml {
	nvmlReturn (*init)(void);
	const char *(*error_string)(nvmlReturn);
	nvmlReturn (*driver_version)(char *, unsigned);
	nvmlReturn (*nvml_version)(char *, unsigned);
	nvmlReturn (*cuda_version)(int *);
	nvmlReturn (*count)(unsigned *);
	nvmlReturn (*by_index)(unsigned, nvmlDevice *);
	nvmlReturn (*uuid)(nvmlDevice, char *, unsigned);
	nvmlReturn (*name)(nvmlDevice, char *, unsigned);
	nvmlReturn (*pci)(nvmlDevice, nvmlPciInfo_v3 *);
	nvmlReturn (*memory_v1)(nvmlDevice, nvmlMemory *);
	nvmlReturn (*memory_v2)(nvmlDevice, nvmlMemory_v2 *);
	nvmlReturn (*capability)(nvmlDevice, int *, int *);
	nvmlReturn (*persistence)(nvmlDevice, unsigned *);
	nvmlReturn (*display)(nvmlDevice, unsigned *);
	nvmlReturn (*compute_mode)(nvmlDevice, unsigned *);
	nvmlReturn (*fan)(nvmlDevice, unsigned *);
	nvmlReturn (*temperature)(nvmlDevice, unsigned, unsigned *);
	nvmlReturn (*state)(nvmlDevice, unsigned *);
	nvmlReturn (*power)(nvmlDevice, unsigned *);
	nvmlReturn (*power_limit)(nvmlDevice, unsigned *);
	nvmlReturn (*utilization)(nvmlDevice, nvmlUtilization *);
	nvmlReturn (*mig)(nvmlDevice, unsigned *, unsigned *);
	nvmlReturn (*ecc)(nvmlDevice, unsigned *, unsigned *);
	nvmlReturn (*ecc_errors)(nvmlDevice, unsigned, unsigned, unsigned long long *);
	nvmlReturn (*processes)(nvmlDevice, unsigned *, nvmlProcess_v2 *);
	nvmlReturn (*process_name)(unsigned, char *, unsigned);
};

extern struct nvml nvml;

struct smi_gpu {
	unsigned index;
	nvmlDevice device;
};

/* The cards that the command is about. */
struct smi_gpus {
	unsigned count;
	struct smi_gpu gpu[SMI_MAX_GPUS];
};

struct smi_format {
	bool header, units;
};

/* Loads and initialises NVML: 0 or the exit status, after a message. */
int smi_load(void);

/* All cards, or those that `-i` names (NULL: all): 0 or the exit status, after a message. */
int smi_select(const char *names, struct smi_gpus *out);

/* The newest memory information that the library has. */
nvmlReturn smi_memory(nvmlDevice device, nvmlMemory_v2 *memory);

unsigned smi_processes(nvmlDevice device, nvmlProcess_v2 out[SMI_MAX_PROCESSES]);

int smi_table(const struct smi_gpus *gpus);
int smi_list(const struct smi_gpus *gpus);
int smi_query_gpus(const struct smi_gpus *gpus, const char *fields, struct smi_format format);
int smi_query_apps(const struct smi_gpus *gpus, const char *fields, struct smi_format format);

#endif
