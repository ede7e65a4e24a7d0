/* What an array takes of the device's memory, by its shape. */
#ifndef AP_CUDA_ARRAY_SIZE_H
#define AP_CUDA_ARRAY_SIZE_H

#include <stdint.h>

#include "cuda.h"

/* Bytes of an array (`levels` 1) or of a mipmapped array with as many levels as its shape has, up
 * to `levels`. As good as endless when that overflows. See array_size.c for the rule. */
uint64_t ap_array_size(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels);

#endif
