#ifndef FAKE_CUDA_ENTRIES_H
#define FAKE_CUDA_ENTRIES_H

/* ANY: the same function for both kinds of default stream. */
enum cu_default_stream { ANY, LEGACY, PER_THREAD };

struct cu_entry {
	const char *name;
	void (*address)(void);
	int version; /* the first that gets it */
	enum cu_default_stream stream;
};

extern const struct cu_entry cu_entries[];
extern const unsigned cu_entry_count;

#endif
