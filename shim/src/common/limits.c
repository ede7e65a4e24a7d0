/* Parser of the limits file: pure, strict, no locale, no allocation. */
#include "apportion/limits.h"

#include <stdbool.h>
#include <string.h>

#define UUID_TEXT "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"

enum {
    HAS_SHARE = 1,
    HAS_UUID = 2,
    HAS_MEMORY = 4,
    HAS_CORES = 8,
    HAS_POLICY = 16,
    HAS_ALL = 31,
    HAS_MODE = 32, /* not needed */
};

struct text {
    const char *at;
    size_t size;
};

static bool equals(struct text text, const char *word)
{
    return text.size == strlen(word) && memcmp(text.at, word, text.size) == 0;
}

static bool number(struct text text, uint64_t most, uint64_t *out)
{
    uint64_t value = 0;
    if (text.size == 0 || (text.size > 1 && text.at[0] == '0'))
        return false;
    for (size_t i = 0; i < text.size; i++) {
        unsigned digit = (unsigned)(unsigned char)text.at[i] - '0';
        if (digit > 9 || value > (most - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *out = value;
    return true;
}

static bool share_key(struct text text, char out[APPORTION_LIMITS_KEY_MAX + 1])
{
    if (text.size == 0 || text.size > APPORTION_LIMITS_KEY_MAX || text.at[0] == '.')
        return false;
    for (size_t i = 0; i < text.size; i++) {
        char c = text.at[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && c != '-' && c != '_' && c != '.')
            return false;
    }
    memcpy(out, text.at, text.size);
    out[text.size] = '\0';
    return true;
}

static int nibble(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

int apportion_uuid_parse(const char *text, size_t size, uint8_t out[16])
{
    uint8_t bytes[16] = {0};
    size_t digits = 0;
    if (size != sizeof UUID_TEXT - 1)
        return -1;
    for (size_t i = 0; i < size; i++) {
        if (UUID_TEXT[i] != 'x') {
            if (text[i] != UUID_TEXT[i])
                return -1;
            continue;
        }
        int value = nibble(text[i]);
        if (value < 0)
            return -1;
        bytes[digits / 2] = (uint8_t)(bytes[digits / 2] << 4 | value);
        digits++;
    }
    memcpy(out, bytes, sizeof bytes);
    return 0;
}

static int cores_mode(struct text value, uint32_t *out)
{
    static const char *const words[] = {"none", "timeslice", "mps"};
    for (uint32_t i = 0; i < sizeof words / sizeof *words; i++)
        if (equals(value, words[i])) {
            *out = i;
            return HAS_MODE;
        }
    return 0;
}

static int pair(struct text key, struct text value, struct apportion_limits *out)
{
    uint64_t cores = 0;
    if (equals(key, "share"))
        return share_key(value, out->share) ? HAS_SHARE : 0;
    if (equals(key, "uuid"))
        return apportion_uuid_parse(value.at, value.size, out->uuid) == 0 ? HAS_UUID : 0;
    if (equals(key, "memory"))
        return number(value, INT64_MAX, &out->memory) ? HAS_MEMORY : 0;
    if (equals(key, "cores")) {
        if (!number(value, 100, &cores))
            return 0;
        out->cores = (uint32_t)cores;
        return HAS_CORES;
    }
    if (equals(key, "cores-policy")) {
        out->burst = equals(value, "burst");
        return out->burst || equals(value, "cap") ? HAS_POLICY : 0;
    }
    if (equals(key, "cores-mode"))
        return cores_mode(value, &out->mode);
    return 0;
}

static bool next_line(struct text *rest, struct text *line)
{
    const char *end = memchr(rest->at, '\n', rest->size);
    if (!end)
        return false;
    *line = (struct text){rest->at, (size_t)(end - rest->at)};
    rest->at += line->size + 1;
    rest->size -= line->size + 1;
    return true;
}

int apportion_limits_parse(const char *text, size_t size, struct apportion_limits *out)
{
    struct text rest = {text, size}, line;
    struct apportion_limits limits = {.memory = 0};
    int seen = 0;

    if (size > APPORTION_LIMITS_MAX_BYTES || !next_line(&rest, &line))
        return -1;
    if (!equals(line, APPORTION_LIMITS_FIRST_LINE))
        return -1;
    while (rest.size > 0) {
        if (!next_line(&rest, &line))
            return -1;
        const char *space = memchr(line.at, ' ', line.size);
        if (!space)
            return -1;
        size_t key_size = (size_t)(space - line.at);
        struct text key = {line.at, key_size};
        struct text value = {space + 1, line.size - key_size - 1};
        int bit = pair(key, value, &limits);
        if (bit == 0 || (seen & bit))
            return -1;
        seen |= bit;
    }
    if ((seen & HAS_ALL) != HAS_ALL)
        return -1;
    *out = limits;
    return 0;
}
