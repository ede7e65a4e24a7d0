/* The grammar of gpus.conf: [driver] and [gpu N] sections of `key = value` lines. A mistake
 * makes the whole file invalid, since a test on a half-read configuration proves nothing. */
#define _GNU_SOURCE
#include "ini.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct word {
	const char *name;
	unsigned value;
};

static const struct word brands[] = {{"Unknown", 0}, {"Quadro", 1}, {"Tesla", 2}, {"GeForce", 5},
				     {"Titan", 6}, {"Nvidia", 14}, {NULL, 0}};
static const struct word architectures[] = {{"Kepler", 2},  {"Maxwell", 3}, {"Pascal", 4},
					    {"Volta", 5},   {"Turing", 6},  {"Ampere", 7},
					    {"Ada", 8},     {"Hopper", 9},  {"Blackwell", 10},
					    {NULL, 0}};
static const struct word switches[] = {{"no", 0}, {"yes", 1}, {NULL, 0}};
static const struct word works[] = {
	{"compute", 0}, {"graphics", FG_GRAPHICS}, {"mps", FG_MPS}, {NULL, 0},
};

static const struct word mig_modes[] = {
	{"unsupported", 0}, {"disabled", 1}, {"enabled", 2}, {NULL, 0}};
static const struct word node_rules[] = {{"ignored", 0}, {"required", 1}, {NULL, 0}};

static bool word(const struct word *table, const char *text, unsigned *out)
{
	for (; table->name; table++)
		if (!strcasecmp(table->name, text)) {
			*out = table->value;
			return true;
		}
	return false;
}

static bool flag(const struct word *table, const char *text, bool *out)
{
	unsigned value;
	if (!word(table, text, &value))
		return false;
	*out = value != 0;
	return true;
}

static bool number(const char *text, unsigned *out)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);
	if (!isdigit((unsigned char)*text) || *end || value > 0x7fffffff)
		return false;
	*out = (unsigned)value;
	return true;
}

static bool mebibytes(const char *text, uint64_t *out)
{
	unsigned value;
	if (!number(text, &value))
		return false;
	*out = value * MIB;
	return true;
}

static bool copy(char *out, size_t size, const char *text)
{
	if (!*text || strlen(text) >= size)
		return false;
	strcpy(out, text);
	return true;
}

static bool pair(const char *text, const char *format, unsigned *a, unsigned *b)
{
	char rest;
	return sscanf(text, format, a, b, &rest) == 2;
}

/* "function:value", several with commas between them. */
static bool faults(char *text, struct fg_fault *list, unsigned *count)
{
	for (char *save, *item = strtok_r(text, ", ", &save); item; item = strtok_r(NULL, ", ", &save)) {
		char *colon = strchr(item, ':');
		unsigned value;
		if (!colon || *count == FG_MAX_FAULTS || !number(colon + 1, &value))
			return false;
		*colon = 0;
		if (!copy(list[*count].function, FG_FUNCTION, item))
			return false;
		list[(*count)++].value = (int)value;
	}
	return true;
}

static bool fault_key(struct fg_faults *f, const char *key, char *value, bool *known)
{
	*known = true;
	if (!strcmp(key, "fault"))
		return faults(value, f->code, &f->codes);
	if (!strcmp(key, "count"))
		return copy(f->counted.function, FG_FUNCTION, value);
	if (!strcmp(key, "hang_ms"))
		return faults(value, f->hang, &f->hangs);
	*known = false;
	return false;
}

static bool driver_key(struct fg_conf *c, const char *key, char *value)
{
	bool known;
	bool ok = fault_key(&c->faults, key, value, &known);
	if (known)
		return ok;
	if (!strcmp(key, "version"))
		return copy(c->version, sizeof c->version, value);
	if (!strcmp(key, "cuda")) {
		unsigned major, minor;
		if (!pair(value, "%u.%u%c", &major, &minor))
			return false;
		c->cuda = major * 1000 + minor * 10;
		return true;
	}
	if (!strcmp(key, "device_nodes"))
		return flag(node_rules, value, &c->nodes_required);
	if (!strcmp(key, "dead_ms"))
		return number(value, &c->dead_ms);
	if (!strcmp(key, "raw_pids"))
		return flag(switches, value, &c->raw_pids);
	return !strcmp(key, "device_dir") && copy(c->device_dir, sizeof c->device_dir, value);
}

static bool pci(struct fg_gpu *g, const char *text)
{
	char rest;
	return sscanf(text, "%x:%x:%x.0%c", &g->domain, &g->bus, &g->device, &rest) == 3;
}

static bool numa(struct fg_gpu *g, const char *text)
{
	unsigned node;
	if (!strcmp(text, "-1")) {
		g->numa_node = -1;
		return true;
	}
	if (!number(text, &node))
		return false;
	g->numa_node = (int)node;
	return true;
}

static bool plain_number_key(struct fg_gpu *g, const char *key, const char *value, bool *known)
{
	struct {
		const char *name;
		unsigned *out;
	} const table[] = {
		{"minor", &g->minor},
		{"multiprocessors", &g->multiprocessors},
		{"xid", &g->xid},
		{"xid_seq", &g->xid_seq},
		{"utilization", &g->utilization},
		{"temperature", &g->temperature},
		{"power_mw", &g->power_mw},
		{"power_limit_mw", &g->power_limit_mw},
		{"ecc_uncorrected", &g->ecc_uncorrected},
		{"recovery_action", &g->recovery_action},
		{"clock_reasons", &g->clock_reasons},
		{"remap", &g->remap},
		{"compute_mode", &g->compute_mode},
		{"remap_pending", &g->remap_pending},
		{"remap_failed", &g->remap_failed},
		{"slice_us", &g->slice_us},
		{"switch_loss_percent", &g->switch_loss_percent},
		{"memory_gb_s", &g->memory_gb_s},
	};
	*known = true;
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (!strcmp(table[i].name, key))
			return number(value, table[i].out);
	*known = false;
	return false;
}

static bool gpu_key(struct fg_gpu *g, const char *key, char *value)
{
	bool known;
	bool ok = fault_key(&g->faults, key, value, &known);
	if (known)
		return ok;
	ok = plain_number_key(g, key, value, &known);
	if (known)
		return ok;
	if (!strcmp(key, "uuid"))
		return copy(g->uuid, sizeof g->uuid, value);
	if (!strcmp(key, "name"))
		return copy(g->name, sizeof g->name, value);
	if (!strcmp(key, "pci"))
		return pci(g, value);
	if (!strcmp(key, "brand"))
		return word(brands, value, &g->brand);
	if (!strcmp(key, "architecture"))
		return word(architectures, value, &g->architecture);
	if (!strcmp(key, "compute_capability"))
		return pair(value, "%u.%u%c", &g->cc_major, &g->cc_minor);
	if (!strcmp(key, "memory_mib"))
		return mebibytes(value, &g->memory);
	if (!strcmp(key, "reserved_mib"))
		return mebibytes(value, &g->reserved);
	if (!strcmp(key, "context_mib"))
		return mebibytes(value, &g->context);
	if (!strcmp(key, "work"))
		return word(works, value, &g->work);
	if (!strcmp(key, "stream_mib"))
		return mebibytes(value, &g->stream);
	if (!strcmp(key, "mig"))
		return word(mig_modes, value, &g->mig);
	if (!strcmp(key, "numa_node"))
		return numa(g, value);
	if (!strcmp(key, "events"))
		return flag(switches, value, &g->events);
	if (!strcmp(key, "executes"))
		return flag(switches, value, &g->executes);
	return !strcmp(key, "lost") && flag(switches, value, &g->lost);
}

/* A Tesla T4, so that a section need name only what differs. */
static void defaults(struct fg_gpu *g, unsigned key)
{
	*g = (struct fg_gpu){.present = true, .key = key, .minor = key, .bus = 0x3b + key,
			     .brand = 2, .architecture = 6, .cc_major = 7, .cc_minor = 5,
			     .multiprocessors = 40, .temperature = 38, .power_mw = 9420,
			     .power_limit_mw = 70000, .events = true, .slice_us = 2000,
			     .switch_loss_percent = 9, .numa_node = -1, .memory = 15360 * MIB,
			     .reserved = 443 * MIB, .context = 100 * MIB, .name = "Tesla T4"};
}

static char *trim(char *text)
{
	while (isspace((unsigned char)*text))
		text++;
	size_t n = strlen(text);
	while (n && isspace((unsigned char)text[n - 1]))
		text[--n] = 0;
	return text;
}

enum section { NOWHERE, DRIVER, GPU };

static bool section(struct fg_conf *c, const char *text, enum section *in, struct fg_gpu **gpu)
{
	unsigned key;
	char bracket, rest;
	if (!strcmp(text, "[driver]")) {
		*in = DRIVER;
		return true;
	}
	if (sscanf(text, "[gpu %u%c%c", &key, &bracket, &rest) != 2 || bracket != ']' ||
	    key >= FG_MAX_GPUS || c->gpu[key].present)
		return false;
	*in = GPU;
	*gpu = &c->gpu[key];
	defaults(*gpu, key);
	return true;
}

static bool line(struct fg_conf *c, char *text, enum section *in, struct fg_gpu **gpu)
{
	if (!*text || *text == '#' || *text == ';')
		return true;
	if (*text == '[')
		return section(c, text, in, gpu);
	char *equals = strchr(text, '=');
	if (!equals || *in == NOWHERE)
		return false;
	*equals = 0;
	char *key = trim(text), *value = trim(equals + 1);
	return *in == DRIVER ? driver_key(c, key, value) : gpu_key(*gpu, key, value);
}

static bool complete(const struct fg_conf *c)
{
	for (unsigned i = 0; i < FG_MAX_GPUS; i++) {
		const struct fg_gpu *g = &c->gpu[i];
		if (g->present && (!*g->uuid || g->reserved > g->memory || !g->slice_us ||
				   g->switch_loss_percent > 99))
			return false;
	}
	return true;
}

bool fg_ini_read(const char *path, struct fg_conf *conf)
{
	FILE *file = fopen(path, "re");
	if (!file)
		return false;
	strcpy(conf->version, "580.159.04");
	strcpy(conf->device_dir, "/dev");
	conf->cuda = 13000;
	conf->nodes_required = true;
	char buffer[1024];
	enum section in = NOWHERE;
	struct fg_gpu *gpu = NULL;
	bool ok = true;
	for (unsigned n = 1; ok && fgets(buffer, sizeof buffer, file); n++) {
		ok = line(conf, trim(buffer), &in, &gpu);
		if (!ok)
			fprintf(stderr, "fakegpu: %s:%u: not understood\n", path, n);
	}
	fclose(file);
	if (ok && !complete(conf)) {
		fprintf(stderr, "fakegpu: %s: a card without uuid, with too much reserved, or without slices\n", path);
		ok = false;
	}
	return ok;
}
