/* The table that nvidia-smi prints without options, and its list. */
#define _GNU_SOURCE
#include "smi.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define MIB(bytes) ((bytes) >> 20)

static const char line[] =
	"+-----------------------------------------------------------------------------------------+";
static const char columns[] =
	"+-----------------------------------------+------------------------+----------------------+";

static void head(void)
{
	char now[64], driver[80] = "N/A", cuda_text[16];
	int cuda = 0;
	time_t t = time(NULL);
	strftime(now, sizeof now, "%a %b %e %H:%M:%S %Y", localtime(&t));
	nvml.driver_version(driver, sizeof driver);
	nvml.cuda_version(&cuda);
	snprintf(cuda_text, sizeof cuda_text, "%d.%d", cuda / 1000, cuda % 1000 / 10);
	printf("%s       \n%s\n", now, line);
	printf("| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-9s|\n", driver, driver, cuda_text);
	printf("%s\n", columns);
	puts("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
	     "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
	     "|                                         |                        |               MIG M. |\n"
	     "|=========================================+========================+======================|");
}

/* "On" or "Off"; "N/A" when the card has no answer. */
static const char *on_off(nvmlReturn (*ask)(nvmlDevice, unsigned *), nvmlDevice device)
{
	unsigned value = 0;
	if (ask(device, &value) != NVML_SUCCESS)
		return "N/A";
	return value ? "On" : "Off";
}

static void first_row(const struct smi_gpu *gpu)
{
	char name[96] = "ERR!", ecc[24] = "N/A";
	nvmlPciInfo_v3 pci = {.bus_id = "N/A"};
	unsigned now = 0, pending = 0;
	unsigned long long errors = 0;
	nvml.name(gpu->device, name, sizeof name);
	nvml.pci(gpu->device, &pci);
	if (nvml.ecc(gpu->device, &now, &pending) == NVML_SUCCESS && !now)
		strcpy(ecc, "Off");
	else if (now && nvml.ecc_errors(gpu->device, 1, 0, &errors) == NVML_SUCCESS)
		snprintf(ecc, sizeof ecc, "%llu", errors);
	printf("| %3u  %-24.24s%9s  | %18.18s %3s | %20s |\n", gpu->index, name,
	       on_off(nvml.persistence, gpu->device), pci.bus_id, on_off(nvml.display, gpu->device), ecc);
}

static void number(char *out, size_t size, nvmlReturn rc, unsigned value, const char *unit)
{
	if (rc == NVML_SUCCESS)
		snprintf(out, size, "%u%s", value, unit);
	else
		snprintf(out, size, "%s", rc == NVML_NOT_SUPPORTED ? "N/A" : "ERR!");
}

static const char *compute_mode(nvmlDevice device)
{
	static const char *const names[] = {"Default", "E. Thread", "Prohibited", "E. Process"};
	unsigned mode = 0;
	return nvml.compute_mode(device, &mode) == NVML_SUCCESS && mode < 4 ? names[mode] : "N/A";
}

static void second_row(const struct smi_gpu *gpu)
{
	char fan[16], heat[16], used[16], cap[16], busy[16], state[16], memory[48] = "ERR!";
	unsigned value = 0;
	nvmlUtilization rates = {0, 0};
	nvmlMemory_v2 m;
	nvmlReturn rc = nvml.fan(gpu->device, &value);
	number(fan, sizeof fan, rc, value, "%");
	rc = nvml.temperature(gpu->device, 0, &value);
	number(heat, sizeof heat, rc, value, "C");
	rc = nvml.power(gpu->device, &value);
	number(used, sizeof used, rc, value / 1000, "W");
	rc = nvml.power_limit(gpu->device, &value);
	number(cap, sizeof cap, rc, value / 1000, "W");
	rc = nvml.utilization(gpu->device, &rates);
	number(busy, sizeof busy, rc, rates.gpu, "%");
	rc = nvml.state(gpu->device, &value);
	snprintf(state, sizeof state, rc ? "N/A" : "P%u", value);
	if (smi_memory(gpu->device, &m) == NVML_SUCCESS)
		snprintf(memory, sizeof memory, "%lluMiB / %lluMiB", MIB(m.used), MIB(m.total));
	printf("| %3s %5s %5s %15s / %5s | %22s | %7s %12s |\n", fan, heat, state, used, cap, memory,
	       busy, compute_mode(gpu->device));
}

static void third_row(const struct smi_gpu *gpu)
{
	unsigned now = 0, pending = 0;
	const char *mode = "N/A";
	if (nvml.mig(gpu->device, &now, &pending) == NVML_SUCCESS)
		mode = now ? "Enabled" : "Disabled";
	printf("| %39s | %22s | %20s |\n%s\n", "", "", mode, columns);
}

static bool process_rows(const struct smi_gpu *gpu)
{
	static nvmlProcess_v2 list[SMI_MAX_PROCESSES];
	unsigned n = smi_processes(gpu->device, list);
	for (unsigned i = 0; i < n; i++) {
		char name[256] = "[Not Found]", memory[24];
		nvml.process_name(list[i].pid, name, sizeof name);
		snprintf(memory, sizeof memory, "%lluMiB", MIB(list[i].used));
		printf("| %4u   N/A  N/A %15u %6s   %-36.36s%10s |\n", gpu->index, list[i].pid, "C", name,
		       memory);
	}
	return n > 0;
}

int smi_table(const struct smi_gpus *gpus)
{
	head();
	for (unsigned i = 0; i < gpus->count; i++) {
		first_row(&gpus->gpu[i]);
		second_row(&gpus->gpu[i]);
		third_row(&gpus->gpu[i]);
	}
	printf("\n%s\n", line);
	puts("| Processes:                                                                              |\n"
	     "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |\n"
	     "|        ID   ID                                                               Usage      |\n"
	     "|=========================================================================================|");
	bool any = false;
	for (unsigned i = 0; i < gpus->count; i++)
		any |= process_rows(&gpus->gpu[i]);
	if (!any)
		printf("|  %-87s|\n", "No running processes found");
	puts(line);
	return SMI_OK;
}

int smi_list(const struct smi_gpus *gpus)
{
	for (unsigned i = 0; i < gpus->count; i++) {
		char name[96] = "Unknown", uuid[96] = "Unknown";
		nvml.name(gpus->gpu[i].device, name, sizeof name);
		nvml.uuid(gpus->gpu[i].device, uuid, sizeof uuid);
		printf("GPU %u: %s (UUID: %s)\n", gpus->gpu[i].index, name, uuid);
	}
	return SMI_OK;
}
