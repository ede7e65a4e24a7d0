#define _GNU_SOURCE
#include "smi.h"

#include <stdio.h>
#include <string.h>

static const char usage[] =
	"NVIDIA System Management Interface (simulated)\n\n"
	"nvidia-smi [OPTION1 [ARG1]] [OPTION2 [ARG2]] ...\n\n"
	"    -h,   --help              Print usage information and exit.\n"
	"          --version           Print version information and exit.\n"
	"    -L,   --list-gpus         Display a list of GPUs connected to the system.\n"
	"    -i,   --id=               Target a specific GPU: index, UUID or PCI bus ID.\n"
	"          --query-gpu=        Information about GPU.\n"
	"          --query-compute-apps= List of currently active compute processes.\n"
	"          --format=           Comma separated list of format options: csv, noheader, nounits.\n";

struct command {
	bool help, version, list;
	const char *id, *gpu_fields, *app_fields, *format;
};

/* The text after "--name=", or NULL when the argument is another option. */
static const char *value(const char *argument, const char *option)
{
	size_t n = strlen(option);
	return !strncmp(argument, option, n) && argument[n] == '=' ? argument + n + 1 : NULL;
}

static int unknown(const char *argument)
{
	printf("ERROR: Option %s is not recognized. Please run 'nvidia-smi -h'.\n\n", argument);
	return SMI_UNKNOWN_OPTION;
}

static bool flag(struct command *c, const char *argument)
{
	if (!strcmp(argument, "-h") || !strcmp(argument, "--help"))
		return c->help = true;
	if (!strcmp(argument, "--version"))
		return c->version = true;
	if (!strcmp(argument, "-L") || !strcmp(argument, "--list-gpus"))
		return c->list = true;
	return false;
}

static bool assignment(struct command *c, const char *argument)
{
	const struct {
		const char *option;
		const char **target;
	} options[] = {
		{"--id", &c->id},
		{"--query-gpu", &c->gpu_fields},
		{"--query-compute-apps", &c->app_fields},
		{"--format", &c->format},
	};
	for (unsigned i = 0; i < sizeof options / sizeof *options; i++)
		if (value(argument, options[i].option)) {
			*options[i].target = value(argument, options[i].option);
			return true;
		}
	return false;
}

static int parse(int argc, char **argv, struct command *c)
{
	for (int i = 1; i < argc; i++) {
		if (flag(c, argv[i]) || assignment(c, argv[i]))
			continue;
		if (strcmp(argv[i], "-i") != 0 || i + 1 == argc)
			return unknown(argv[i]);
		c->id = argv[++i];
	}
	if (c->list && c->id) {
		puts("ERROR: Option -i is not valid for this command. Please run 'nvidia-smi -h' for "
		     "help.\n");
		return SMI_USAGE;
	}
	return SMI_OK;
}

static int format(const char *text, struct smi_format *out)
{
	char copy[256];
	*out = (struct smi_format){true, true};
	snprintf(copy, sizeof copy, "%s", text ? text : "csv");
	for (char *save, *item = strtok_r(copy, ", ", &save); item; item = strtok_r(NULL, ", ", &save)) {
		if (!strcmp(item, "noheader"))
			out->header = false;
		else if (!strcmp(item, "nounits"))
			out->units = false;
		else if (strcmp(item, "csv") != 0) {
			puts("Format modifier is not recognized.");
			return SMI_USAGE;
		}
	}
	return SMI_OK;
}

static int version(void)
{
	char driver[80] = "N/A", library[80] = "N/A";
	int cuda = 0;
	nvml.driver_version(driver, sizeof driver);
	nvml.nvml_version(library, sizeof library);
	nvml.cuda_version(&cuda);
	/* The real one leaves the CUDA major and the last number out of the library's version. */
	char *shown = strchr(library, '.') ? strchr(library, '.') + 1 : library;
	char *last = strrchr(shown, '.');
	if (last && last != strchr(shown, '.'))
		*last = 0;
	printf("NVIDIA-SMI version  : %s\nNVML version        : %s\nDRIVER version      : %s\n"
	       "CUDA Version        : %d.%d\n", driver, shown, driver, cuda / 1000, cuda % 1000 / 10);
	return SMI_OK;
}

static int execute(const struct command *c, struct smi_format f)
{
	struct smi_gpus gpus;
	if (c->version)
		return version();
	int status = smi_select(c->id, &gpus);
	if (status)
		return status;
	if (c->list)
		return smi_list(&gpus);
	if (c->gpu_fields)
		return smi_query_gpus(&gpus, c->gpu_fields, f);
	if (c->app_fields)
		return smi_query_apps(&gpus, c->app_fields, f);
	return smi_table(&gpus);
}

int main(int argc, char **argv)
{
	struct command c = {false};
	struct smi_format f;
	int status = parse(argc, argv, &c);
	if (!status && c.help)
		return fputs(usage, stdout) < 0;
	if (!status)
		status = format(c.format, &f);
	if (!status)
		status = smi_load();
	if (!status)
		status = execute(&c, f);
	return status;
}
