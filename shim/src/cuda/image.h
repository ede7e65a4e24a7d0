/* What an image of code (PTX, a cubin, a fat binary) says about the device memory that its
 * variables will take. */
#ifndef AP_CUDA_IMAGE_H
#define AP_CUDA_IMAGE_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of its variables, managed ones left out: what loading it takes at least, whatever comes on
 * top for code. Of a fat binary: of the entry with the most among those that a GPU of compute
 * capability `arch` (75 for 7.5) may be given; 0: of all. 0: it has none, or does not tell. Never
 * faults, whatever `image` points to; reads no more than the driver would. */
uint64_t ap_image_variables(const void *image, unsigned arch);

/* The same for the file that cuModuleLoad and cuLibraryLoadFromFile are given. */
uint64_t ap_image_variables_of_file(const char *path, unsigned arch);

/* Bytes of the variables that `length` bytes of PTX declare (image_ptx.c). */
uint64_t ap_ptx_variables(const char *text, size_t length);

#endif
