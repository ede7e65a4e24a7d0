/* --query-gpu and --query-compute-apps: comma-separated values. */
#define _GNU_SOURCE
#include "smi.h"

#include <stdio.h>
#include <string.h>

#define MIB(bytes) ((bytes) >> 20)

enum { MAX_FIELDS = 64, CELL = 256 };

/* Writes a cell without its unit. */
typedef nvmlReturn read_gpu(const struct smi_gpu *gpu, char *out);

static nvmlReturn show(char *out, nvmlReturn rc, unsigned long long value)
{
	if (!rc)
		snprintf(out, CELL, "%llu", value);
	return rc;
}

static nvmlReturn enabled(char *out, nvmlReturn rc, unsigned value)
{
	if (!rc)
		strcpy(out, value ? "Enabled" : "Disabled");
	return rc;
}

static nvmlReturn index_of(const struct smi_gpu *gpu, char *out)
{
	return show(out, NVML_SUCCESS, gpu->index);
}

static nvmlReturn count(const struct smi_gpu *gpu, char *out)
{
	(void)gpu;
	unsigned value = 0;
	nvmlReturn rc = nvml.count(&value);
	return show(out, rc, value);
}

static nvmlReturn uuid(const struct smi_gpu *gpu, char *out)
{
	return nvml.uuid(gpu->device, out, CELL);
}

static nvmlReturn name(const struct smi_gpu *gpu, char *out)
{
	return nvml.name(gpu->device, out, CELL);
}

static nvmlReturn driver(const struct smi_gpu *gpu, char *out)
{
	(void)gpu;
	return nvml.driver_version(out, CELL);
}

static nvmlReturn bus_id(const struct smi_gpu *gpu, char *out)
{
	nvmlPciInfo_v3 pci = {.domain = 0};
	nvmlReturn rc = nvml.pci(gpu->device, &pci);
	if (!rc)
		snprintf(out, CELL, "%s", pci.bus_id);
	return rc;
}

static nvmlReturn total(const struct smi_gpu *gpu, char *out)
{
	nvmlMemory_v2 m;
	nvmlReturn rc = smi_memory(gpu->device, &m);
	return show(out, rc, MIB(m.total));
}

static nvmlReturn used(const struct smi_gpu *gpu, char *out)
{
	nvmlMemory_v2 m;
	nvmlReturn rc = smi_memory(gpu->device, &m);
	return show(out, rc, MIB(m.used));
}

static nvmlReturn available(const struct smi_gpu *gpu, char *out)
{
	nvmlMemory_v2 m;
	nvmlReturn rc = smi_memory(gpu->device, &m);
	return show(out, rc, MIB(m.free));
}

static nvmlReturn reserved(const struct smi_gpu *gpu, char *out)
{
	nvmlMemory_v2 m;
	nvmlReturn rc = smi_memory(gpu->device, &m);
	return show(out, rc, MIB(m.reserved));
}

static nvmlReturn gpu_utilization(const struct smi_gpu *gpu, char *out)
{
	nvmlUtilization rates = {0, 0};
	nvmlReturn rc = nvml.utilization(gpu->device, &rates);
	return show(out, rc, rates.gpu);
}

static nvmlReturn memory_utilization(const struct smi_gpu *gpu, char *out)
{
	nvmlUtilization rates = {0, 0};
	nvmlReturn rc = nvml.utilization(gpu->device, &rates);
	return show(out, rc, rates.memory);
}

static nvmlReturn capability(const struct smi_gpu *gpu, char *out)
{
	int major = 0, minor = 0;
	nvmlReturn rc = nvml.capability(gpu->device, &major, &minor);
	if (!rc)
		snprintf(out, CELL, "%d.%d", major, minor);
	return rc;
}

static nvmlReturn mig_now(const struct smi_gpu *gpu, char *out)
{
	unsigned now = 0, pending = 0;
	nvmlReturn rc = nvml.mig(gpu->device, &now, &pending);
	return enabled(out, rc, now);
}

static nvmlReturn mig_pending(const struct smi_gpu *gpu, char *out)
{
	unsigned now = 0, pending = 0;
	nvmlReturn rc = nvml.mig(gpu->device, &now, &pending);
	return enabled(out, rc, pending);
}

static nvmlReturn ecc_now(const struct smi_gpu *gpu, char *out)
{
	unsigned now = 0, pending = 0;
	nvmlReturn rc = nvml.ecc(gpu->device, &now, &pending);
	return enabled(out, rc, now);
}

static nvmlReturn persistence(const struct smi_gpu *gpu, char *out)
{
	unsigned value = 0;
	nvmlReturn rc = nvml.persistence(gpu->device, &value);
	return enabled(out, rc, value);
}

static nvmlReturn compute_mode(const struct smi_gpu *gpu, char *out)
{
	static const char *const names[] = {"Default", "Exclusive_Thread", "Prohibited",
					    "Exclusive_Process"};
	unsigned value = 0;
	nvmlReturn rc = nvml.compute_mode(gpu->device, &value);
	if (!rc)
		strcpy(out, value < 4 ? names[value] : "Unknown");
	return rc;
}

static nvmlReturn temperature(const struct smi_gpu *gpu, char *out)
{
	unsigned value = 0;
	nvmlReturn rc = nvml.temperature(gpu->device, 0, &value);
	return show(out, rc, value);
}

static nvmlReturn fan(const struct smi_gpu *gpu, char *out)
{
	unsigned value = 0;
	nvmlReturn rc = nvml.fan(gpu->device, &value);
	return show(out, rc, value);
}

static nvmlReturn state(const struct smi_gpu *gpu, char *out)
{
	unsigned value = 0;
	nvmlReturn rc = nvml.state(gpu->device, &value);
	if (!rc)
		snprintf(out, CELL, "P%u", value);
	return rc;
}

static nvmlReturn watts(char *out, nvmlReturn rc, unsigned milliwatts)
{
	if (!rc)
		snprintf(out, CELL, "%u.%02u", milliwatts / 1000, milliwatts % 1000 / 10);
	return rc;
}

static nvmlReturn power(const struct smi_gpu *gpu, char *out)
{
	unsigned value = 0;
	nvmlReturn rc = nvml.power(gpu->device, &value);
	return watts(out, rc, value);
}

static nvmlReturn power_limit(const struct smi_gpu *gpu, char *out)
{
	unsigned value = 0;
	nvmlReturn rc = nvml.power_limit(gpu->device, &value);
	return watts(out, rc, value);
}

struct field {
	const char *name, *shown, *unit;
	read_gpu *read;
};

static const struct field gpu_fields[] = {
	{"compute_cap", "compute_cap", NULL, capability},
	{"compute_mode", "compute_mode", NULL, compute_mode},
	{"count", "count", NULL, count},
	{"driver_version", "driver_version", NULL, driver},
	{"ecc.mode.current", "ecc.mode.current", NULL, ecc_now},
	{"enforced.power.limit", "enforced.power.limit", "W", power_limit},
	{"fan.speed", "fan.speed", "%", fan},
	{"gpu_bus_id", "pci.bus_id", NULL, bus_id},
	{"gpu_name", "name", NULL, name},
	{"gpu_uuid", "uuid", NULL, uuid},
	{"index", "index", NULL, index_of},
	{"memory.free", "memory.free", "MiB", available},
	{"memory.reserved", "memory.reserved", "MiB", reserved},
	{"memory.total", "memory.total", "MiB", total},
	{"memory.used", "memory.used", "MiB", used},
	{"mig.mode.current", "mig.mode.current", NULL, mig_now},
	{"mig.mode.pending", "mig.mode.pending", NULL, mig_pending},
	{"name", "name", NULL, name},
	{"pci.bus_id", "pci.bus_id", NULL, bus_id},
	{"persistence_mode", "persistence_mode", NULL, persistence},
	{"power.draw", "power.draw", "W", power},
	{"power.limit", "power.limit", "W", power_limit},
	{"pstate", "pstate", NULL, state},
	{"temperature.gpu", "temperature.gpu", NULL, temperature},
	{"utilization.gpu", "utilization.gpu", "%", gpu_utilization},
	{"utilization.memory", "utilization.memory", "%", memory_utilization},
	{"uuid", "uuid", NULL, uuid},
	{NULL, NULL, NULL, NULL},
};

/* Read by name from the process that a row is about. */
static const struct field app_fields[] = {
	{"gpu_bus_id", "gpu_bus_id", NULL, bus_id},
	{"gpu_name", "gpu_name", NULL, name},
	{"gpu_uuid", "gpu_uuid", NULL, uuid},
	{"name", "process_name", NULL, NULL},
	{"pid", "pid", NULL, NULL},
	{"process_name", "process_name", NULL, NULL},
	{"used_gpu_memory", "used_gpu_memory", "MiB", NULL},
	{"used_memory", "used_gpu_memory", "MiB", NULL},
	{NULL, NULL, NULL, NULL},
};

/* Number of fields, -1 after a message. */
static int choose(const struct field *known, const char *text, const struct field **out)
{
	char copy[1024];
	int n = 0;
	snprintf(copy, sizeof copy, "%s", text);
	for (char *save, *item = strtok_r(copy, ", ", &save); item; item = strtok_r(NULL, ", ", &save)) {
		const struct field *f = known;
		while (f->name && strcmp(f->name, item) != 0)
			f++;
		if (!f->name || n == MAX_FIELDS) {
			printf("Field \"%s\" is not a valid field to query.\n\n", item);
			return -1;
		}
		out[n++] = f;
	}
	return n;
}

static void header(const struct field **fields, int n, struct smi_format format)
{
	for (int i = 0; format.header && i < n; i++) {
		printf("%s%s", i ? ", " : "", fields[i]->shown);
		if (fields[i]->unit && format.units)
			printf(" [%s]", fields[i]->unit);
	}
	if (format.header)
		putchar('\n');
}

static void cell(const struct field *f, nvmlReturn rc, const char *text, bool first, bool units)
{
	printf("%s", first ? "" : ", ");
	if (rc == NVML_NOT_SUPPORTED || rc == 13)
		printf("[N/A]");
	else if (rc)
		printf("[%s]", nvml.error_string(rc));
	else
		printf("%s%s%s", text, f->unit && units ? " " : "", f->unit && units ? f->unit : "");
}

int smi_query_gpus(const struct smi_gpus *gpus, const char *text, struct smi_format format)
{
	const struct field *fields[MAX_FIELDS];
	int n = choose(gpu_fields, text, fields);
	if (n < 0)
		return SMI_USAGE;
	header(fields, n, format);
	for (unsigned g = 0; g < gpus->count; g++) {
		for (int i = 0; i < n; i++) {
			char out[CELL] = "";
			nvmlReturn rc = fields[i]->read(&gpus->gpu[g], out);
			cell(fields[i], rc, out, i == 0, format.units);
		}
		putchar('\n');
	}
	return SMI_OK;
}

static nvmlReturn read_app(const struct field *f, const struct smi_gpu *gpu,
			   const nvmlProcess_v2 *process, char *out)
{
	if (f->read)
		return f->read(gpu, out);
	if (!strcmp(f->shown, "pid"))
		return show(out, NVML_SUCCESS, process->pid);
	if (!strcmp(f->shown, "used_gpu_memory"))
		return show(out, NVML_SUCCESS, MIB(process->used));
	return nvml.process_name(process->pid, out, CELL);
}

int smi_query_apps(const struct smi_gpus *gpus, const char *text, struct smi_format format)
{
	static nvmlProcess_v2 list[SMI_MAX_PROCESSES];
	const struct field *fields[MAX_FIELDS];
	int n = choose(app_fields, text, fields);
	if (n < 0)
		return SMI_USAGE;
	header(fields, n, format);
	for (unsigned g = 0; g < gpus->count; g++) {
		unsigned processes = smi_processes(gpus->gpu[g].device, list);
		for (unsigned p = 0; p < processes; p++) {
			for (int i = 0; i < n; i++) {
				char out[CELL] = "";
				nvmlReturn rc = read_app(fields[i], &gpus->gpu[g], &list[p], out);
				cell(fields[i], rc, out, i == 0, format.units);
			}
			putchar('\n');
		}
	}
	return SMI_OK;
}
