/* cudamem: asks the CUDA driver for memory and says what it answered. The size `all` is what
 * cuMemGetInfo says is free.
 *
 *   cudamem [--device N] alloc SIZE... [--until-refused STEP] [--hold SECONDS]
 *           [--processes N] [--library FILE] [--json]
 *
 * Status: 0 all granted, 2 something refused for want of memory, 1 anything else. Built with
 * -DLINKED it is linked with libcuda, else it loads it, as the CUDA runtime does, or the library
 * that it is told to. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { GRANTED = 0, FAILED = 1, REFUSED = 2, MAX_SIZES = 64, OUT_OF_MEMORY = 2 };

#define ALL (~0ULL)

typedef int CUresult;

#ifdef LINKED
CUresult cuInit(unsigned flags);
CUresult cuDevicePrimaryCtxRetain(void **ctx, int device);
CUresult cuCtxSetCurrent(void *ctx);
CUresult cuMemAlloc_v2(unsigned long long *address, size_t bytes);
CUresult cuMemGetInfo_v2(size_t *available, size_t *total);
CUresult cuGetErrorName(CUresult code, const char **name);
#endif

static struct {
	CUresult (*init)(unsigned);
	CUresult (*retain)(void **, int);
	CUresult (*set)(void *);
	CUresult (*alloc)(unsigned long long *, size_t);
	CUresult (*info)(size_t *, size_t *);
	CUresult (*name)(CUresult, const char **);
} cu;

struct options {
	int device, hold, processes, sizes;
	const char *library;
	bool json;
	unsigned long long size[MAX_SIZES], step;
};

/* Where the processes wait for each other: with a context each, and when all have asked. */
struct meeting {
	int started, finished;
};

#ifdef LINKED
static bool load(const char *library)
{
	(void)library;
	cu.init = cuInit;
	cu.retain = cuDevicePrimaryCtxRetain;
	cu.set = cuCtxSetCurrent;
	cu.alloc = cuMemAlloc_v2;
	cu.info = cuMemGetInfo_v2;
	cu.name = cuGetErrorName;
	return true;
}
#else
static bool load(const char *name)
{
	static const char *const names[] = {"cuInit", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent",
					    "cuMemAlloc_v2", "cuMemGetInfo_v2", "cuGetErrorName"};
	void *library = dlopen(name, RTLD_NOW);
	if (!library) {
		fprintf(stderr, "cudamem: %s\n", dlerror());
		return false;
	}
	for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
		void *address = dlsym(library, names[i]);
		if (!address) {
			fprintf(stderr, "cudamem: %s\n", dlerror());
			return false;
		}
		memcpy((char *)&cu + i * sizeof address, &address, sizeof address);
	}
	return true;
}
#endif

static const char *code_name(CUresult code)
{
	const char *name = NULL;
	return cu.name(code, &name) == 0 && name ? name : "CUDA_ERROR";
}

/* "4.1 GiB"; bytes when no unit fits. */
static const char *human(unsigned long long bytes, char out[32])
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	unsigned u = 0;
	double value = (double)bytes;
	for (; value >= 1024 && u < 4; u++)
		value /= 1024;
	snprintf(out, 32, "%.4g %s", value, units[u]);
	return out;
}

/* "4.1GiB", "4Gi", "512M", "100": a number and a binary unit; "all". 0 when it is none. */
static unsigned long long parse_size(const char *text)
{
	static const char units[] = "kmgt";
	char *end;
	double value = strtod(text, &end);
	if (!strcmp(text, "all"))
		return ALL;
	if (end == text || value <= 0)
		return 0;
	const char *unit = *end ? strchr(units, *end | 0x20) : NULL;
	if (unit)
		end++;
	for (const char *u = units; unit && u <= unit; u++)
		value *= 1024;
	if (*end && strcasecmp(end, "i") != 0 && strcasecmp(end, "ib") != 0 && strcasecmp(end, "b") != 0)
		return 0;
	return (unsigned long long)value;
}

static void say_call(const struct options *o, int process, const char *call,
		     unsigned long long bytes, CUresult rc)
{
	char size[32] = "";
	if (o->json)
		printf("{\"process\": %d, \"call\": \"%s\", \"bytes\": %llu, \"code\": %d, "
		       "\"result\": \"%s\"}\n", process, call, bytes, rc, code_name(rc));
	else
		printf("%s%s%s -> %s (%d)\n", call, bytes ? " " : "", bytes ? human(bytes, size) : "",
		       code_name(rc), rc);
	fflush(stdout);
}

static int say_info(const struct options *o, int process)
{
	size_t available = 0, total = 0;
	char a[32], t[32];
	CUresult rc = cu.info(&available, &total);
	if (rc) {
		say_call(o, process, "cuMemGetInfo", 0, rc);
		return FAILED;
	}
	if (o->json)
		printf("{\"process\": %d, \"call\": \"cuMemGetInfo\", \"free\": %zu, \"total\": %zu}\n",
		       process, available, total);
	else
		printf("cuMemGetInfo free %s total %s\n", human(available, a), human(total, t));
	fflush(stdout);
	return GRANTED;
}

static int status_of(CUresult rc)
{
	if (rc == OUT_OF_MEMORY)
		return REFUSED;
	return rc ? FAILED : GRANTED;
}

static int start(const struct options *o, int process)
{
	void *ctx = NULL;
	const char *call = "cuInit";
	CUresult rc = cu.init(0);
	if (!rc) {
		call = "cuDevicePrimaryCtxRetain";
		rc = cu.retain(&ctx, o->device);
	}
	if (!rc) {
		call = "cuCtxSetCurrent";
		rc = cu.set(ctx);
	}
	if (rc)
		say_call(o, process, call, 0, rc);
	return status_of(rc);
}

static int fill(const struct options *o, int process)
{
	unsigned long long address, granted = 0;
	char sum[32];
	CUresult rc;
	while (!(rc = cu.alloc(&address, o->step)))
		granted += o->step;
	if (o->json)
		printf("{\"process\": %d, \"call\": \"until-refused\", \"granted\": %llu}\n", process, granted);
	else
		printf("granted %s\n", human(granted, sum));
	say_call(o, process, "cuMemAlloc", o->step, rc);
	return status_of(rc);
}

/* Failure weighs more than refusal, refusal more than success. */
static int worse(int a, int b)
{
	if (a == FAILED || b == FAILED)
		return FAILED;
	return a > b ? a : b;
}

static void meet(const struct options *o, int *arrived)
{
	const struct timespec tick = {0, 5 * 1000 * 1000};
	__atomic_add_fetch(arrived, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(arrived, __ATOMIC_SEQ_CST) < o->processes)
		nanosleep(&tick, NULL);
}

static size_t available(void)
{
	size_t bytes = 0, total;
	return cu.info(&bytes, &total) ? 0 : bytes;
}

static int steps(const struct options *o, int process)
{
	int status = say_info(o, process);
	for (int i = 0; i < o->sizes; i++) {
		unsigned long long address;
		size_t size = o->size[i] == ALL ? available() : o->size[i];
		CUresult rc = cu.alloc(&address, size);
		say_call(o, process, "cuMemAlloc", size, rc);
		status = worse(status, status_of(rc));
	}
	if (o->step)
		status = worse(status, fill(o, process));
	return worse(status, say_info(o, process));
}

/* All processes keep what they have until the last one has asked. */
static int one(const struct options *o, int process, struct meeting *meeting)
{
	int status = load(o->library) ? start(o, process) : FAILED;
	meet(o, &meeting->started);
	if (!status)
		status = steps(o, process);
	meet(o, &meeting->finished);
	for (unsigned left = (unsigned)o->hold; left;)
		left = sleep(left);
	return status;
}

static int many(const struct options *o, struct meeting *meeting)
{
	int status = GRANTED, result;
	for (int i = 0; i < o->processes; i++) {
		pid_t child = fork();
		if (child < 0)
			return FAILED;
		if (child == 0)
			exit(one(o, i, meeting));
	}
	while (wait(&result) > 0) {
		/* A killed child never arrives, and the others shall not wait for it. */
		if (!WIFEXITED(result)) {
			__atomic_add_fetch(&meeting->started, 1, __ATOMIC_SEQ_CST);
			__atomic_add_fetch(&meeting->finished, 1, __ATOMIC_SEQ_CST);
		}
		status = worse(status, WIFEXITED(result) ? WEXITSTATUS(result) : FAILED);
	}
	return status;
}

static bool number(const char *text, int *out)
{
	char *end;
	long value = strtol(text, &end, 10);
	*out = (int)value;
	return end != text && !*end && value >= 0 && value < 1000000;
}

/* An option with a value: 1 taken, 0 not an option of that kind, -1 a bad value. */
static int with_value(struct options *o, const char *option, const char *value)
{
	bool ok;
	if (!strcmp(option, "--device"))
		ok = value && number(value, &o->device);
	else if (!strcmp(option, "--hold"))
		ok = value && number(value, &o->hold);
	else if (!strcmp(option, "--processes"))
		ok = value && number(value, &o->processes) && o->processes > 0;
	else if (!strcmp(option, "--library"))
		ok = (o->library = value) != NULL;
	else if (!strcmp(option, "--until-refused"))
		ok = value && (o->step = parse_size(value)) > 0;
	else
		return 0;
	return ok ? 1 : -1;
}

static bool parse(int argc, char **argv, struct options *o)
{
	bool alloc = false;
	for (int i = 1; i < argc; i++) {
		int taken = with_value(o, argv[i], i + 1 < argc ? argv[i + 1] : NULL);
		if (taken < 0)
			return false;
		if (taken > 0) {
			i++;
		} else if (!strcmp(argv[i], "--json")) {
			o->json = true;
		} else if (!strcmp(argv[i], "alloc")) {
			alloc = true;
		} else {
			if (!alloc || o->sizes == MAX_SIZES || !(o->size[o->sizes++] = parse_size(argv[i])))
				return false;
		}
	}
	return alloc && (o->sizes || o->step);
}

int main(int argc, char **argv)
{
	struct options o = {.processes = 1, .library = "libcuda.so.1"};
	if (!parse(argc, argv, &o)) {
		fputs("usage: cudamem [--device N] alloc SIZE... [--until-refused STEP] "
		      "[--hold SECONDS] [--processes N] [--library FILE] [--json]\n", stderr);
		return FAILED;
	}
	struct meeting *meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE,
				       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (meeting == MAP_FAILED)
		return FAILED;
	return o.processes == 1 ? one(&o, 0, meeting) : many(&o, meeting);
}
