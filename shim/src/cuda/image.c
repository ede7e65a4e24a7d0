/* Images of code, as far as they tell what their variables take: PTX, cubins (image_cubin.c) and
 * fat binaries (image_fatbin.c). cudart passes a wrapper that points to one of the last.
 *
 * An image in memory has no length that we are told. It is read by a system call that fails where
 * there is nothing, so that nonsense is the driver's to refuse. */
#define _GNU_SOURCE
#include "image.h"

#include <elf.h>
#include <fcntl.h>
#include <string.h>

#include "../common/sys.h"
#include "image_parts.h"

#define FATBIN 0xba55ed50u
#define WRAPPER 0x466243b1u
#define TEXT_MOST (UINT64_C(1) << 28)
#define TEXT_STEP 4096
#define FILE_MOST (UINT64_C(1) << 30)

struct wrapper {
    uint32_t magic, version;
    uint64_t fatbin; /* its address */
};

bool ap_piece_read(struct ap_piece piece, uint64_t offset, void *to, size_t size)
{
    if (offset > piece.size || size > piece.size - offset ||
        offset > UINT64_MAX - piece.at)
        return false;
    return ap_read_memory((const void *)(uintptr_t)(piece.at + offset), to, size) == size;
}

/* Bytes before the first zero, which PTX ends with; 0: there is none so far as can be read. */
static uint64_t length_of_text(struct ap_piece text)
{
    unsigned char some[TEXT_STEP];
    uint64_t at = 0;
    while (at < text.size && at < TEXT_MOST) {
        uint64_t left = text.size - at;
        size_t got = ap_read_memory((const void *)(uintptr_t)(text.at + at), some,
                                    left < sizeof some ? left : sizeof some);
        const unsigned char *zero = memchr(some, 0, got);
        if (zero || got == 0)
            return zero ? at + (uint64_t)(zero - some) : 0;
        at += got;
    }
    return at == text.size ? at : 0;
}

static uint64_t of_text(struct ap_piece text)
{
    uint64_t bytes = 0, length = length_of_text(text);
    char *copy = length ? ap_map_private(length) : NULL; /* the original may go meanwhile */
    if (!copy)
        return 0;
    if (ap_piece_read(text, 0, copy, length))
        bytes = ap_ptx_variables(copy, length);
    ap_unmap(copy, length);
    return bytes;
}

uint64_t ap_code_variables(struct ap_piece code)
{
    unsigned char magic[SELFMAG];
    if (!ap_piece_read(code, 0, magic, sizeof magic))
        return 0;
    return memcmp(magic, ELFMAG, SELFMAG) == 0 ? ap_cubin_variables(code) : of_text(code);
}

static uint64_t of_image(struct ap_piece image, unsigned arch)
{
    uint32_t magic;
    if (!ap_piece_read(image, 0, &magic, sizeof magic))
        return 0;
    return magic == FATBIN ? ap_fatbin_variables(image, arch) : ap_code_variables(image);
}

uint64_t ap_image_variables(const void *image, unsigned arch)
{
    struct wrapper wrapper = {0};
    struct ap_piece piece = {(uintptr_t)image, UINT64_MAX};
    if (ap_piece_read(piece, 0, &wrapper.magic, sizeof wrapper.magic) && wrapper.magic == WRAPPER)
        piece.at = ap_piece_read(piece, 0, &wrapper, sizeof wrapper) ? wrapper.fatbin : 0;
    return of_image(piece, arch);
}

static bool read_file(int fd, unsigned char *to, size_t size)
{
    size_t done = 0;
    long got = 1;
    while (done < size && got > 0) {
        got = ap_read(fd, to + done, size - done);
        done += got > 0 ? (size_t)got : 0;
    }
    return done == size;
}

uint64_t ap_image_variables_of_file(const char *path, unsigned arch)
{
    struct stat about;
    uint64_t bytes = 0;
    int fd = path ? ap_open(AT_FDCWD, path, O_RDONLY | O_NONBLOCK) : -1;
    if (fd < 0)
        return 0;
    if (ap_fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0 &&
        (uint64_t)about.st_size <= FILE_MOST) {
        size_t size = (size_t)about.st_size;
        unsigned char *copy = ap_map_private(size);
        if (copy && read_file(fd, copy, size))
            bytes = of_image((struct ap_piece){(uintptr_t)copy, size}, arch);
        if (copy)
            ap_unmap(copy, size);
    }
    ap_close(fd);
    return bytes;
}
