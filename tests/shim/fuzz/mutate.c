/* Runs a target on mutations of a corpus, where there is no libFuzzer.
 *   fuzz-<target> <seconds> <seed> <last input> <file of the corpus>…
 * What it runs on is kept in <last input>, whatever becomes of the process. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "target.h"

#define SIZE_MOST 4096u
#define SEEDS_MOST 64
#define STUCK_S 20

struct input {
    size_t size;
    uint8_t data[SIZE_MOST];
};

static struct input seeds[SEEDS_MOST];
static unsigned seed_count;
static unsigned chance;

static unsigned below(size_t most)
{
    return (unsigned)((size_t)rand_r(&chance) % most);
}

static void insert(struct input *input, const uint8_t *from, size_t size)
{
    size_t at = below(input->size + 1);
    if (input->size + size > SIZE_MOST)
        return;
    memmove(input->data + at + size, input->data + at, input->size - at);
    memcpy(input->data + at, from, size);
    input->size += size;
}

static void take_out(struct input *input)
{
    size_t at = below(input->size), size = 1 + below(input->size - at);
    memmove(input->data + at, input->data + at + size, input->size - at - size);
    input->size -= size;
}

static void mutate(struct input *input)
{
    static const uint8_t telling[] = {0, 1, 0x7f, 0x80, 0xff, '\n', ' ', '0', '9', '.'};
    const struct input *other = &seeds[below(seed_count)];
    uint8_t byte = telling[below(sizeof telling)];
    size_t from = other->size ? below(other->size) : 0;
    switch (input->size ? below(6) : 3) {
    case 0:
        input->data[below(input->size)] ^= (uint8_t)(1u << below(8));
        break;
    case 1:
        input->data[below(input->size)] = byte;
        break;
    case 2:
        input->data[below(input->size)] = (uint8_t)rand_r(&chance);
        break;
    case 3:
        insert(input, &byte, 1);
        break;
    case 4:
        insert(input, other->data + from, other->size ? 1 + below(other->size - from) : 0);
        break;
    default:
        take_out(input);
    }
}

static void read_seed(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct input *seed = &seeds[seed_count];
    ssize_t size = fd < 0 ? -1 : read(fd, seed->data, SIZE_MOST);
    MUST(size >= 0 && seed_count < SEEDS_MOST);
    seed->size = (size_t)size;
    seed_count++;
    close(fd);
}

static struct input *kept_in(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    MUST(fd >= 0 && ftruncate(fd, sizeof(struct input)) == 0);
    void *at = mmap(NULL, sizeof(struct input), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(at != MAP_FAILED);
    close(fd);
    return at;
}

int main(int argc, char **argv)
{
    unsigned long runs = 0;
    MUST(argc > 4);
    time_t end = time(NULL) + atoi(argv[1]);
    chance = (unsigned)atoi(argv[2]);
    struct input *input = kept_in(argv[3]);
    for (int i = 4; i < argc; i++)
        read_seed(argv[i]);
    do {
        if (runs % 256 == 0)
            alarm(STUCK_S);
        *input = seeds[runs < seed_count ? runs : below(seed_count)];
        for (unsigned i = runs < seed_count ? 0 : 1 + below(8); i > 0; i--)
            mutate(input);
        LLVMFuzzerTestOneInput(input->data, input->size);
        runs++;
    } while (runs % 256 || time(NULL) < end);
    printf("%lu\n", runs);
    return 0;
}
