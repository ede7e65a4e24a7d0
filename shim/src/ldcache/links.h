/* Links from the driver's usual places to where its libraries were mounted aside. */
#ifndef AP_LINKS_H
#define AP_LINKS_H

#include <stdbool.h>

#include "rootfs.h"

/* Whether `link` is "<place>:<target>", both good paths in a container (see good_path). */
bool good_link(const char *link);

/* Absolute, without "..", and of letters that mean nothing to ldconfig's configuration. */
bool good_path(const char *path);

/* At the container's root, after a chroot there: makes each of the links, in the place of whatever
 * the image has there, unless something was mounted at that place: then it stays as it is. Only
 * the container's root file system is written to, never a volume. FAILED: said why. */
enum outcome make_links(char *const links[], int count);

#endif
