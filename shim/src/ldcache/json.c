#include "json.h"

#include <stdbool.h>
#include <string.h>

#define DEPTH_MOST 128

struct parser {
    const char *at, *end;
    const char *path[3]; /* members to go through, then NULL */
    char *out;
    size_t size;
    bool found;
};

static bool value(struct parser *p, unsigned depth, unsigned matched, bool on_path);

static void space(struct parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r'))
        p->at++;
}

static bool take(struct parser *p, char c)
{
    if (p->at == p->end || *p->at != c)
        return false;
    p->at++;
    return true;
}

static bool word(struct parser *p, const char *text)
{
    size_t length = strlen(text);
    if ((size_t)(p->end - p->at) < length || memcmp(p->at, text, length) != 0)
        return false;
    p->at += length;
    return true;
}

/* What a string is decoded into; a text that does not fit, or has a zero in it, is marked bad but
 * still read to its end. */
struct buffer {
    char *out;
    size_t size, used;
    bool bad;
};

static void put(struct buffer *buffer, unsigned byte)
{
    if (byte == 0 || buffer->used + 1 >= buffer->size)
        buffer->bad = true;
    else
        buffer->out[buffer->used++] = (char)byte;
}

static void put_code_point(struct buffer *buffer, unsigned code)
{
    if (code < 0x80) {
        put(buffer, code);
    } else if (code < 0x800) {
        put(buffer, 0xc0 | code >> 6);
        put(buffer, 0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        put(buffer, 0xe0 | code >> 12);
        put(buffer, 0x80 | (code >> 6 & 0x3f));
        put(buffer, 0x80 | (code & 0x3f));
    } else {
        put(buffer, 0xf0 | code >> 18);
        put(buffer, 0x80 | (code >> 12 & 0x3f));
        put(buffer, 0x80 | (code >> 6 & 0x3f));
        put(buffer, 0x80 | (code & 0x3f));
    }
}

static bool four_digits(struct parser *p, unsigned *out)
{
    static const char letters[] = "0123456789abcdef";
    *out = 0;
    for (int i = 0; i < 4; i++) {
        if (p->at == p->end || *p->at == '\0')
            return false;
        char c = *p->at++;
        const char *digit = strchr(letters, c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c);
        if (!digit)
            return false;
        *out = *out << 4 | (unsigned)(digit - letters);
    }
    return true;
}

static bool escaped_unicode(struct parser *p, struct buffer *buffer)
{
    unsigned high, low;
    if (!four_digits(p, &high))
        return false;
    if (high >= 0xd800 && high < 0xdc00) {
        if (!word(p, "\\u") || !four_digits(p, &low) || low < 0xdc00 || low > 0xdfff)
            return false;
        high = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    } else if (high >= 0xdc00 && high < 0xe000) {
        return false;
    }
    put_code_point(buffer, high);
    return true;
}

static bool escape(struct parser *p, struct buffer *buffer)
{
    static const char names[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    if (p->at == p->end || *p->at == '\0')
        return false;
    char c = *p->at++;
    if (c == 'u')
        return escaped_unicode(p, buffer);
    const char *name = strchr(names, c);
    if (!name)
        return false;
    put(buffer, (unsigned char)meanings[name - names]);
    return true;
}

static bool string(struct parser *p, struct buffer *buffer)
{
    if (!take(p, '"'))
        return false;
    while (p->at < p->end) {
        unsigned char c = (unsigned char)*p->at++;
        if (c == '"') {
            if (buffer->size)
                buffer->out[buffer->used] = '\0';
            return true;
        }
        if (c < 0x20)
            return false;
        if (c != '\\')
            put(buffer, c);
        else if (!escape(p, buffer))
            return false;
    }
    return false;
}

static bool digits(struct parser *p)
{
    const char *start = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9')
        p->at++;
    return p->at > start;
}

static bool number(struct parser *p)
{
    (void)take(p, '-');
    if (!take(p, '0') && !digits(p))
        return false;
    if (take(p, '.') && !digits(p))
        return false;
    if (take(p, 'e') || take(p, 'E')) {
        (void)(take(p, '+') || take(p, '-'));
        return digits(p);
    }
    return true;
}

static bool array(struct parser *p, unsigned depth)
{
    space(p);
    if (take(p, ']'))
        return true;
    do {
        if (!value(p, depth, 0, false))
            return false;
    } while (take(p, ','));
    return take(p, ']');
}

static bool object(struct parser *p, unsigned depth, unsigned matched, bool on_path)
{
    space(p);
    if (take(p, '}'))
        return true;
    do {
        char name[64];
        struct buffer buffer = {name, sizeof name, 0, false};
        space(p);
        if (!string(p, &buffer))
            return false;
        space(p);
        bool hit = on_path && matched < 2 && p->path[matched] && !buffer.bad &&
                   strcmp(name, p->path[matched]) == 0;
        if (!take(p, ':') || !value(p, depth, matched + 1, hit))
            return false;
    } while (take(p, ','));
    return take(p, '}');
}

static bool text_value(struct parser *p, unsigned matched, bool on_path)
{
    bool wanted = on_path && matched > 0 && matched < 3 && !p->path[matched];
    struct buffer buffer = {wanted ? p->out : NULL, wanted ? p->size : 0, 0, false};
    if (!string(p, &buffer))
        return false;
    if (!wanted)
        return true;
    /* A name that comes twice is a document that two readers may understand differently. */
    bool twice = p->found;
    p->found = true;
    return !buffer.bad && !twice;
}

static bool value(struct parser *p, unsigned depth, unsigned matched, bool on_path)
{
    bool good = false;
    if (depth == DEPTH_MOST)
        return false;
    space(p);
    if (p->at == p->end)
        return false;
    if (*p->at == '"')
        good = text_value(p, matched, on_path);
    else if (take(p, '{'))
        good = object(p, depth + 1, matched, on_path);
    else if (take(p, '['))
        good = array(p, depth + 1);
    else
        good = word(p, "true") || word(p, "false") || word(p, "null") || number(p);
    space(p);
    return good;
}

int json_string(const char *text, size_t length, const char *outer, const char *inner, char *out,
                size_t size)
{
    struct parser p = {text, text + length, {outer, inner, NULL}, out, size, false};
    return value(&p, 0, 0, true) && p.at == p.end && p.found ? 0 : -1;
}
