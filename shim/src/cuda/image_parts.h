/* The parts of an image of code: pieces of memory of which nobody tells if they can be read. */
#ifndef AP_CUDA_IMAGE_PARTS_H
#define AP_CUDA_IMAGE_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* By its address; `size` is UINT64_MAX where nobody tells. */
struct ap_piece {
    uint64_t at, size;
};

/* Whether all of it is there and was read. */
bool ap_piece_read(struct ap_piece piece, uint64_t offset, void *to, size_t size);

/* Bytes of the variables of a cubin, and of PTX or a cubin. 0: none, or it does not tell. */
uint64_t ap_cubin_variables(struct ap_piece cubin);
uint64_t ap_code_variables(struct ap_piece code);

/* The same of a fat binary on a GPU of compute capability `arch`, see image.h. */
uint64_t ap_fatbin_variables(struct ap_piece fatbin, unsigned arch);

#endif
