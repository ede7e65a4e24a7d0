/* CUDA_VISIBLE_DEVICES, as the driver reads it: a list of ordinals or UUIDs (or beginnings of
 * UUIDs) that ends at the first entry it cannot use; a card named twice is an error. */
#define _GNU_SOURCE
#include "cuda.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The card that one entry names, by its place in `keys`; -1 when none or several. */
static int by_uuid(const struct fg_conf *conf, const unsigned *keys, unsigned n, const char *entry)
{
	size_t length = strcspn(entry, ",");
	int found = -1;
	if (length <= strlen("GPU-"))
		return -1;
	for (unsigned i = 0; i < n; i++) {
		const char *uuid = conf->gpu[keys[i]].uuid;
		size_t compared = length < strlen(uuid) ? length : strlen(uuid);
		if (strncasecmp(uuid, entry, compared) != 0)
			continue;
		if (found >= 0)
			return -1;
		found = (int)i;
	}
	return found;
}

static int by_ordinal(unsigned n, const char *entry)
{
	char *end;
	long value = strtol(entry, &end, 0);
	return end == entry || value < 0 || value >= (long)n ? -1 : (int)value;
}

CUresult cu_select(const struct fg_conf *conf, unsigned keys[FG_MAX_GPUS], unsigned *count)
{
	unsigned all[FG_MAX_GPUS], n = fg_visible(conf, all);
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	bool taken[FG_MAX_GPUS] = {false};
	unsigned chosen = 0;
	for (unsigned i = 0; !list && i < n; i++)
		keys[chosen++] = all[i];
	while (list && *list) {
		int i = !strncmp(list, "GPU-", 4) ? by_uuid(conf, all, n, list) : by_ordinal(n, list);
		if (i < 0)
			break;
		if (taken[i])
			return CUDA_INVALID_DEVICE;
		taken[i] = true;
		keys[chosen++] = all[i];
		list += strcspn(list, ",");
		list += *list == ',';
	}
	*count = chosen;
	return chosen ? CUDA_SUCCESS : CUDA_NO_DEVICE;
}
