#ifndef FAKEGPU_INI_H
#define FAKEGPU_INI_H

#include "fakegpu.h"

/* Fills `conf` from the file. False, with one line on stderr, when it has an error. */
bool fg_ini_read(const char *path, struct fg_conf *conf);

#endif
