/* What compressors made, as far as fat binaries use them: blocks of LZ4 and frames of Zstandard.
 *
 * Written here and not linked: the libraries that do it call malloc and stdio, which a library in
 * other people's programs must not, and this is the tenant's own data in its own process, so that
 * speed and hardening are the lesser need (docs/decisions/0028). */
#ifndef AP_CUDA_UNPACK_H
#define AP_CUDA_UNPACK_H

#include <stdbool.h>
#include <stddef.h>

/* Fill `to` with exactly `to_size` bytes. false: `from` is damaged, or makes more or less. Nothing
 * outside the two is touched. Of Zstandard: one frame without a dictionary; its checksum is not
 * looked at. Sources: LZ4 block format 1.6, RFC 8878. */
bool ap_unpack_lz4(const unsigned char *from, size_t from_size, unsigned char *to, size_t to_size);
bool ap_unpack_zstd(const unsigned char *from, size_t from_size, unsigned char *to, size_t to_size);

#endif
