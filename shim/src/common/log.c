#define _GNU_SOURCE
#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "sys.h"

#define PREFIX "apportion-shim: "

void ap_log(const char *format, ...)
{
    char line[512] = PREFIX;
    int saved = errno;
    int length = sizeof PREFIX - 1;
    va_list arguments;

    if (!getenv("APPORTION_SHIM_LOG"))
        return;
    va_start(arguments, format);
    int more = vsnprintf(line + length, sizeof line - (size_t)length - 1, format, arguments);
    va_end(arguments);
    errno = saved;
    if (more < 0)
        return;
    length += more;
    if (length > (int)sizeof line - 2)
        length = (int)sizeof line - 2;
    line[length++] = '\n';
    ap_write(2, line, (size_t)length);
}
