/* Arrays lie in tiles of 64 bytes by 8 rows (512 bytes), and tiles in blocks of up to 16: upon each
 * other, in volumes behind each other first. A row is padded to whole tiles, rows and depth to
 * whole blocks; a layer with all its levels to whole blocks of its first level.
 *
 * Worked out from 135 arrays and mipmapped arrays on an H200 (driver 580.159.04): rounded up to
 * 64 KiB it is what cuArrayGetMemoryRequirements says of each, to the byte. Planar video formats
 * are the exception: they count too little here. */
#include "array_size.h"

#include <stdbool.h>

#define TILE_WIDTH 64u
#define TILE_ROWS 8u
#define TILES_IN_BLOCK 16u
#define DEEPEST_BLOCK 16u
#define LEVELS_MOST 32u

struct element {
    uint64_t bytes;
    unsigned int side; /* texels in a row, and rows, that are compressed into one */
};

/* Bytes of one channel of a plain format, else 0. */
static uint64_t bytes_of_channel(int format)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4;
    default:
        return 0;
    }
}

static bool in_range(int format, int first, int last)
{
    return format >= first && format <= last;
}

static struct element element_of(int format, unsigned int channels)
{
    bool half = format == CU_AD_FORMAT_BC1_UNORM || format == CU_AD_FORMAT_BC1_UNORM + 1 ||
                format == CU_AD_FORMAT_BC4_UNORM || format == CU_AD_FORMAT_BC4_UNORM + 1;
    if (in_range(format, CU_AD_FORMAT_BC1_UNORM, CU_AD_FORMAT_BC7_UNORM_SRGB))
        return (struct element){half ? 8 : 16, 4};
    /* Normalised integers: one, two or four channels of 8 bits, then of 16, unsigned and signed. */
    if (in_range(format, CU_AD_FORMAT_UNORM_INT8X1, CU_AD_FORMAT_SNORM_INT16X4)) {
        unsigned int place = (unsigned int)(format - CU_AD_FORMAT_UNORM_INT8X1) % 6;
        return (struct element){UINT64_C(1) << (place % 3 + place / 3), 1};
    }
    if (format == CU_AD_FORMAT_UNORM_INT_101010_2)
        return (struct element){4, 1};
    /* What is not known counts as one byte: rather too little, since the driver's own figure is
     * asked first. */
    uint64_t bytes = bytes_of_channel(format) * channels;
    return (struct element){bytes ? bytes : 1, 1};
}

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t pad(uint64_t value, uint64_t step)
{
    return value > UINT64_MAX - step ? UINT64_MAX : (value + step - 1) / step * step;
}

static uint64_t at_least_one(uint64_t value)
{
    return value ? value : 1;
}

/* The power of two that holds `value`, but not more than `most`. */
static uint64_t block_for(uint64_t value, uint64_t most)
{
    uint64_t block = 1;
    while (block < value && block < most)
        block *= 2;
    return block;
}

struct extent {
    uint64_t width, rows, depth; /* of elements */
};

static uint64_t block_depth(const struct extent *e)
{
    return block_for(e->depth, DEEPEST_BLOCK);
}

static uint64_t block_tiles(const struct extent *e)
{
    return block_for(pad(e->rows, TILE_ROWS) / TILE_ROWS, TILES_IN_BLOCK / block_depth(e));
}

static uint64_t level_size(const struct extent *e, uint64_t element)
{
    uint64_t row = pad(times(e->width, element), TILE_WIDTH);
    uint64_t rows = pad(e->rows, TILE_ROWS * block_tiles(e));
    return times(times(row, rows), pad(e->depth, block_depth(e)));
}

static struct extent extent_of(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int side,
                               bool layered, unsigned int level)
{
    uint64_t texels = side;
    return (struct extent){
        at_least_one(pad(at_least_one(shape->Width >> level), texels) / texels),
        at_least_one(pad(at_least_one(shape->Height >> level), texels) / texels),
        layered ? 1 : at_least_one(shape->Depth >> level),
    };
}

static bool is_last(const CUDA_ARRAY3D_DESCRIPTOR *shape, bool layered, unsigned int level)
{
    uint64_t depth = layered ? 0 : shape->Depth;
    return (shape->Width >> level) <= 1 && (shape->Height >> level) <= 1 && (depth >> level) <= 1;
}

uint64_t ap_array_size(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels)
{
    bool layered = shape->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    struct element element = element_of(shape->Format, shape->NumChannels);
    struct extent first = extent_of(shape, element.side, layered, 0);
    uint64_t sum = 0;
    for (unsigned int level = 0; level < levels && level < LEVELS_MOST; level++) {
        struct extent e = extent_of(shape, element.side, layered, level);
        uint64_t size = level_size(&e, element.bytes);
        sum = size > UINT64_MAX - sum ? UINT64_MAX : sum + size;
        if (is_last(shape, layered, level))
            break;
    }
    uint64_t block = TILE_WIDTH * TILE_ROWS * block_tiles(&first) * block_depth(&first);
    return layered ? times(pad(sum, block), at_least_one(shape->Depth)) : sum;
}
