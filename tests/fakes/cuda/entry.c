/* cuGetProcAddress: which exported function answers to a name for a version and a kind of
 * default stream. Names with a version or stream suffix are not found, as in the driver. */
#define _GNU_SOURCE
#include "cuda.h"
#include "entries.h"

#include <string.h>

enum { FOUND, MISSING, TOO_OLD };

enum { PER_THREAD_FLAG = 2, KNOWN_FLAGS = 3 };

static int find(const char *name, int version, unsigned long long flags, void **out)
{
	enum cu_default_stream unwanted = flags & PER_THREAD_FLAG ? LEGACY : PER_THREAD;
	int status = MISSING, best = -1;
	for (unsigned i = 0; i < cu_entry_count; i++) {
		if (strcmp(cu_entries[i].name, name) != 0)
			continue;
		if (status == MISSING)
			status = TOO_OLD;
		if (cu_entries[i].stream == unwanted || cu_entries[i].version > version ||
		    cu_entries[i].version <= best)
			continue;
		best = cu_entries[i].version;
		memcpy(out, &cu_entries[i].address, sizeof *out);
		status = FOUND;
	}
	return status;
}

static CUresult check(const char *name, void **out, int version, unsigned long long flags)
{
	const struct fg_conf *conf = fg_conf_get();
	int newest = conf ? (int)conf->cuda : 13000;
	if (!name || !out || version > newest || flags & ~(unsigned long long)KNOWN_FLAGS)
		return CUDA_INVALID_VALUE;
	return CUDA_SUCCESS;
}

API CUresult cuGetProcAddress_v2(const char *name, void **out, int version,
				 unsigned long long flags, int *status)
{
	CUresult rc = check(name, out, version, flags);
	if (rc)
		return rc;
	*out = NULL;
	int found = find(name, version, flags, out);
	if (status)
		*status = found;
	return CUDA_SUCCESS;
}

/* The first version has no status: what is not there is an error. */
API CUresult cuGetProcAddress(const char *name, void **out, int version, unsigned long long flags)
{
	void *address;
	CUresult rc = check(name, out, version, flags);
	if (rc)
		return rc;
	if (find(name, version, flags, &address) != FOUND)
		return CUDA_NOT_FOUND;
	*out = address;
	return CUDA_SUCCESS;
}

/* The driver's private tables are not simulated. */
API CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	if (!table || !id)
		return CUDA_INVALID_VALUE;
	*table = NULL;
	return CUDA_INVALID_VALUE;
}
