/* What the simulated driver's two libraries share: the cards on record (gpus.conf) and the
 * accounts of all processes (state). Both files lie in one folder that every container sees,
 * as it would see one kernel module. */
#ifndef FAKEGPU_H
#define FAKEGPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

enum { FG_GRAPHICS = 1, FG_MPS = 2 };

enum {
	FG_MAX_GPUS = 16,
	FG_FOREIGN_PID = 1 << 22, /* more than any PID */
	FG_MAX_FAULTS = 32,
	FG_SLOTS = 1024,
	FG_HEADER_SIZE = 4096,
	FG_SLOT_SIZE = 512,
	FG_NAME = 64,
	FG_HOLDERS = 32,
	FG_FUNCTION = 64,
	FG_CARD_SIZE = 0x220000, /* of struct fg_card, card.h */
};

#define FG_MAGIC UINT64_C(0x31555047454b4146) /* "FAKEGPU1" */
#define FG_VERSION 1u
#define FG_CARDS ((off_t)FG_HEADER_SIZE + (off_t)FG_SLOTS * FG_SLOT_SIZE)
#define FG_FILE_SIZE (FG_CARDS + (off_t)FG_MAX_GPUS * FG_CARD_SIZE) /* most of it holes */
#define MIB (UINT64_C(1) << 20)

/* ---- gpus.conf ---------------------------------------------------------------------- */

struct fg_fault {
	char function[FG_FUNCTION];
	int value; /* a return code, or milliseconds for a hang */
};

struct fg_faults {
	unsigned codes;
	unsigned hangs;
	struct fg_fault code[FG_MAX_FAULTS];
	struct fg_fault hang[FG_MAX_FAULTS];
	struct fg_fault counted; /* its calls are; no name: none */
};

struct fg_gpu {
	bool present;
	bool lost;
	unsigned key; /* N of [gpu N]: the card's column in the accounts */
	unsigned minor;
	unsigned domain, bus, device;
	unsigned brand;        /* NVML_BRAND_* */
	unsigned architecture; /* NVML_DEVICE_ARCH_* */
	unsigned cc_major, cc_minor;
	unsigned multiprocessors;
	unsigned compute_mode; /* 0 default, 2 prohibited, 3 exclusive */
	unsigned mig; /* 0 not supported, 1 disabled, 2 enabled */
	unsigned xid;
	unsigned xid_seq;
	unsigned work; /* lists that name the card's processes: FG_GRAPHICS, FG_MPS beside compute */
	unsigned utilization, temperature, power_mw, power_limit_mw;
	unsigned ecc_uncorrected, recovery_action, clock_reasons;
	unsigned remap; /* 0 not supported (pages are retired), 1 supported */
	unsigned remap_pending, remap_failed;
	bool events; /* whether Xids are reported */
	bool executes; /* kernels take time */
	unsigned slice_us, switch_loss_percent;
	unsigned memory_gb_s; /* 0: fills and copies take no time */
	int numa_node; /* -1: not supported */
	uint64_t memory, reserved, context, stream; /* bytes */
	char uuid[FG_NAME];
	char name[FG_NAME];
	struct fg_faults faults;
};

struct fg_conf {
	char version[32];
	unsigned cuda; /* 13000 is CUDA 13.0 */
	bool nodes_required;
	unsigned dead_ms; /* how long the memory of a dead process stays, from when it is noticed */
	bool raw_pids; /* NVML lists each process by the PID of its own namespace, to all */
	char device_dir[128];
	struct fg_faults faults;
	struct fg_gpu gpu[FG_MAX_GPUS]; /* by key */
};

/* The configuration as it is on disk now, or NULL when there is none that can be read.
 * The pointer stays good for the life of the process. */
const struct fg_conf *fg_conf_get(void);

/* Path of a file in the state folder. Returns false when it does not fit. */
bool fg_path(char *out, size_t size, const char *file);

/* Sleeps as long as a hang asks for; returns the code a fault asks for, or 0. `function` may
 * carry a version suffix that the fault's name leaves out. */
int fg_fault(const struct fg_faults *faults, const char *function);

/* errno of opening a node below the device folder, 0 when it opens (or need not). */
int fg_node(const struct fg_conf *conf, const char *name);

/* Keys of the cards that this process can open, ordered by PCI address; returns their number. */
unsigned fg_visible(const struct fg_conf *conf, unsigned keys[FG_MAX_GPUS]);

/* ---- state -------------------------------------------------------------------------- */

struct fg_header {
	uint64_t magic;
	uint32_t version, header_size, slot_size, slot_count, max_gpus;
	uint32_t high_water; /* slots from here on were never used */
	uint64_t refused[FG_MAX_GPUS];
};

struct fg_slot {
	uint32_t used;
	int32_t pid;    /* as the process sees itself */
	uint64_t pidns; /* inode of its PID namespace */
	uint64_t start; /* clock ticks after boot */
	char name[FG_NAME];
	uint64_t bytes[FG_MAX_GPUS];
	uint64_t launches[FG_MAX_GPUS];
	uint32_t contexts[FG_MAX_GPUS];
	/* Not 0: no process, but one piece of memory that several hold (object.c). */
	uint64_t object;
	uint16_t holders[FG_HOLDERS]; /* their slots, from 1; the first is who NVML says has it */
	uint64_t died; /* milliseconds, CLOCK_MONOTONIC; 0: alive, or nobody has noticed */
	uint8_t padding[FG_SLOT_SIZE - 40 - 2 * FG_HOLDERS - FG_NAME - 20 * FG_MAX_GPUS];
};

_Static_assert(sizeof(struct fg_slot) == FG_SLOT_SIZE, "the slot's size is part of the layout");
_Static_assert(sizeof(struct fg_header) <= FG_HEADER_SIZE, "the header fits before the slots");

enum fg_result { FG_OK, FG_REFUSED, FG_BROKEN };

/* Takes a slot for this process; the kernel gives it back when the process ends or execs. */
enum fg_result fg_claim(void);

/* True in a child of a process that had claimed a slot: it owns nothing. */
bool fg_forked(void);

/* Adds to this process's account of a card unless all accounts would pass `capacity`. */
enum fg_result fg_charge(unsigned key, uint64_t bytes, uint64_t capacity);
void fg_uncharge(unsigned key, uint64_t bytes);
void fg_count_context(unsigned key, int by);
void fg_count_launch(unsigned key);

/* Memory that several processes hold, and descriptors: alive until the last of them is gone. A
 * number from 0, or -1. */

/* Makes one of what this process was charged. */
int fg_object_make(unsigned key, uint64_t bytes);

/* Holds one more time; `object` is its slot's, so that a number used again is not mistaken. */
bool fg_object_hold(int number, uint64_t object);
void fg_object_drop(int number);
uint64_t fg_object(int number);
uint64_t fg_object_bytes(int number, unsigned key);

/* A descriptor that holds it, and the object that one holds. */
int fg_object_export(int number);
int fg_object_import(int fd);

struct fg_process {
	int pid; /* as the caller sees it */
	uint64_t bytes;
	uint64_t launches;
};

/* Bytes in use on a card, over all live processes; 0 when there is no state yet. */
uint64_t fg_used(unsigned key);

/* Live processes with memory or a context on a card that the caller's PID namespace can name.
 * Returns their number, which may exceed `room`; fills at most `room`. */
unsigned fg_processes(unsigned key, struct fg_process *out, unsigned room);

/* The same, and those that it cannot name, by numbers that are no PIDs here: so the real library
 * answers for samples of utilisation, with the host's PIDs. */
unsigned fg_all_processes(unsigned key, struct fg_process *out, unsigned room);

/* Inode of the caller's PID namespace, 0 when /proc does not tell. */
uint64_t fg_pidns(void);

/* The caller's PID for a process of another namespace, 0 when it cannot see it. */
int fg_translate(uint64_t pidns, int pid);

#endif
