/* How arrays lie: in tiles of 512 bytes (64 by 8 rows), 16 tiles to a block, upon each other or,
 * in volumes, behind each other. Worked out from what driver 580.159.04 said of 135 arrays. */
#include "array.h"

enum { LAYERED = 0x1, CUBEMAP = 0x4, TILE_ROW = 64, TILE_ROWS = 8, BLOCK = 16 };

static const struct texel {
	int format;
	unsigned bytes; /* of a channel, or of all where it has a side or says so */
	unsigned side;  /* of the square that is compressed into one */
	bool whole;
} texels[] = {
	{0x01, 1, 1, false},  {0x02, 2, 1, false},  {0x03, 4, 1, false},  {0x08, 1, 1, false},
	{0x09, 2, 1, false},  {0x0a, 4, 1, false},  {0x10, 2, 1, false},  {0x20, 4, 1, false},
	{0x50, 4, 1, true},   {0x91, 8, 4, true},   {0x97, 8, 4, true},   {0x9d, 16, 4, true},
	{0xb0, 1, 1, true},   {0xc2, 4, 1, true},
};

static const struct texel *texel_of(int format)
{
	for (unsigned i = 0; i < sizeof texels / sizeof *texels; i++)
		if (texels[i].format == format)
			return &texels[i];
	return NULL;
}

bool cu_texel_known(int format)
{
	return texel_of(format) != NULL;
}

static uint64_t up_to(uint64_t value, uint64_t most)
{
	uint64_t power = 1;
	while (power < value && power < most)
		power *= 2;
	return power;
}

static uint64_t level_bytes(uint64_t row, uint64_t rows, uint64_t depth, uint64_t *block)
{
	uint64_t deep = up_to(depth, BLOCK);
	uint64_t high = up_to((rows + TILE_ROWS - 1) / TILE_ROWS, BLOCK / deep);
	*block = deep * high * TILE_ROW * TILE_ROWS;
	return cu_round(row, TILE_ROW) * cu_round(rows, high * TILE_ROWS) * cu_round(depth, deep);
}

static size_t halved(size_t value, unsigned times, unsigned side)
{
	size_t v = value >> times ? value >> times : 1;
	return (v + side - 1) / side;
}

uint64_t cu_array_bytes(const struct cu_shape *s)
{
	const struct texel *t = texel_of(s->format);
	bool layered = s->flags & (LAYERED | CUBEMAP);
	size_t layers = layered && s->depth ? s->depth : 1, depth = layered ? 0 : s->depth;
	uint64_t texel = t->whole ? t->bytes : t->bytes * s->channels, sum = 0, block = 0, first = 0;
	for (unsigned level = 0; level < (s->levels ? s->levels : 1); level++) {
		sum += level_bytes(halved(s->width, level, t->side) * texel,
				   halved(s->height, level, t->side), halved(depth, level, 1), &block);
		first = level ? first : block;
		if (s->width >> level <= 1 && s->height >> level <= 1 && depth >> level <= 1)
			break;
	}
	return layered ? cu_round(sum, first) * layers : sum;
}
