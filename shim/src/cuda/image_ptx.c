/* The variables that a PTX text declares: `[linkage] .global [attributes] .type name[n][m], ...;`,
 * in the syntax of the PTX ISA 9.0. Those that are declared only (.extern), managed ones and opaque
 * ones (.texref and the like) take no device memory of their own. */
#define _GNU_SOURCE
#include <stdbool.h>
#include <string.h>

#include "image.h"

struct scan {
    const char *at, *end;
    const char *token; /* the last one, of `length` characters; 0: the text is over */
    size_t length;
    bool first_of_line;
};

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           c == '.' || c == '_' || c == '$' || c == '%';
}

/* Behind what is no token: space, comments, strings. */
static void skip(struct scan *s)
{
    s->first_of_line = false;
    while (s->at < s->end) {
        size_t left = (size_t)(s->end - s->at);
        const char *over = NULL;
        s->first_of_line = s->first_of_line || *s->at == '\n';
        if (*s->at == ' ' || *s->at == '\n' || *s->at == '\t' || *s->at == '\r') {
            s->at++;
            continue;
        }
        if (left > 1 && s->at[0] == '/' && s->at[1] == '/')
            over = memchr(s->at, '\n', left), s->first_of_line = true;
        else if (left > 1 && s->at[0] == '/' && s->at[1] == '*')
            over = memmem(s->at + 2, left - 2, "*/", 2);
        else if (*s->at == '"')
            over = memchr(s->at + 1, '"', left - 1);
        else
            return;
        s->at = over ? over + 1 : s->end;
        if (over && *over == '*')
            s->at++;
    }
}

static bool next(struct scan *s)
{
    skip(s);
    s->token = s->at;
    while (s->at < s->end && is_word(*s->at))
        s->at++;
    if (s->at == s->token && s->at < s->end)
        s->at++;
    s->length = (size_t)(s->at - s->token);
    return s->length > 0;
}

static bool is(const struct scan *s, const char *word)
{
    return s->length == strlen(word) && memcmp(s->token, word, s->length) == 0;
}

static bool is_one_of(const struct scan *s, const char *const words[], size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (is(s, words[i]))
            return true;
    return false;
}

static unsigned digit(char c)
{
    if (c >= '0' && c <= '9')
        return (unsigned)(c - '0');
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10 : 16;
}

/* Decimal, octal (0...) or hexadecimal (0x...); a U may follow. */
static uint64_t number(const struct scan *s)
{
    bool zero = s->length > 1 && s->token[0] == '0';
    bool hex = zero && (s->token[1] | 0x20) == 'x';
    unsigned base = hex ? 16 : zero ? 8 : 10;
    uint64_t value = 0;
    for (size_t i = hex ? 2 : 0; i < s->length && digit(s->token[i]) < base; i++)
        if (__builtin_mul_overflow(value, base, &value) ||
            __builtin_add_overflow(value, digit(s->token[i]), &value))
            return UINT64_MAX;
    return value;
}

/* Bytes of an element; 0: the word is no type of a variable with bytes. */
static uint64_t size_of_type(const struct scan *s)
{
    static const char *const one[] = {".b8", ".u8", ".s8"};
    static const char *const two[] = {".b16", ".u16", ".s16", ".f16", ".bf16"};
    static const char *const four[] = {".b32", ".u32", ".s32", ".f32", ".f16x2", ".bf16x2"};
    static const char *const eight[] = {".b64", ".u64", ".s64", ".f64"};
    if (is_one_of(s, one, sizeof one / sizeof *one))
        return 1;
    if (is_one_of(s, two, sizeof two / sizeof *two))
        return 2;
    if (is_one_of(s, four, sizeof four / sizeof *four))
        return 4;
    if (is_one_of(s, eight, sizeof eight / sizeof *eight))
        return 8;
    return is(s, ".b128") ? 16 : 0;
}

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* Behind `= ...`: to the comma or semicolon after it, which is the token then. */
static void skip_value(struct scan *s)
{
    int depth = 0;
    while (next(s)) {
        char c = *s->token;
        depth += (c == '{') - (c == '}');
        if (c == ';' || (c == ',' && depth == 0))
            return;
    }
}

/* Behind .global, to its semicolon: the bytes of what is declared. */
static uint64_t declared(struct scan *s)
{
    uint64_t sum = 0, element = 0, vector = 1, count = 1;
    bool managed = false;
    while (next(s)) {
        if (*s->token == '=')
            skip_value(s);
        if (s->length == 0 || *s->token == ';' || *s->token == ',') {
            if (__builtin_add_overflow(sum, times(times(element, vector), count), &sum))
                sum = UINT64_MAX;
            count = 1;
            if (s->length == 0 || *s->token == ';')
                break;
        } else if (is(s, ".v2") || is(s, ".v4") || is(s, ".v8")) {
            vector = (uint64_t)(s->token[2] - '0');
        } else if (*s->token == '[' && next(s)) {
            count = times(count, *s->token == ']' ? 0 : number(s));
        } else {
            managed = managed || is(s, ".managed");
            element = size_of_type(s) ? size_of_type(s) : element;
        }
    }
    return managed ? 0 : sum;
}

uint64_t ap_ptx_variables(const char *text, size_t length)
{
    static const char *const linkage[] = {".visible", ".weak", ".common"};
    struct scan s = {.at = text, .end = text + length};
    uint64_t sum = 0;
    if (!next(&s) || !is(&s, ".version")) /* which PTX begins with */
        return 0;
    bool starts = true, pointer = false; /* a statement, but for its linkage; `.ptr` is before */
    while (next(&s)) {
        /* .version, .target, .address_size, .file and .loc end with their line. */
        starts = starts || (s.first_of_line && !pointer);
        pointer = is(&s, ".ptr");
        if (starts && is(&s, ".global")) {
            if (__builtin_add_overflow(sum, declared(&s), &sum))
                return UINT64_MAX;
        } else {
            char c = *s.token;
            bool was = starts;
            starts = c == ';' || c == '{' || c == '}' || c == ':' ||
                     (was && is_one_of(&s, linkage, 3));
        }
    }
    return sum;
}
