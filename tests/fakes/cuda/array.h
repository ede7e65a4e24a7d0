#ifndef FAKE_CUDA_ARRAY_H
#define FAKE_CUDA_ARRAY_H

#include "cuda.h"

struct cu_shape {
	size_t width, height, depth;
	int format;
	unsigned channels, flags, levels; /* levels 0: not mipmapped */
};

/* Bytes of an array as they lie on the card. */
uint64_t cu_array_bytes(const struct cu_shape *shape);

bool cu_texel_known(int format);

#endif
