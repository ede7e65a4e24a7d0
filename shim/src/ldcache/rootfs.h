/* Work inside a container's root file system, whose content is not to be trusted. */
#ifndef AP_ROOTFS_H
#define AP_ROOTFS_H

/* No numbers that ldconfig, which takes the child's place, ends with. */
enum outcome {
    DONE = 0,
    FAILED = 76,     /* said why on stderr */
    LEFT_ALONE = 77, /* nothing to do in this image; said so on stderr */
};

/* What is to be done in there. */
struct work {
    char *const *folders; /* that the dynamic linker is to know */
    int count;
    char *const *links; /* see links.h */
    int link_count;
};

/* In a child process: goes into `rootfs` for good, makes the links, writes the folders to
 * /etc/ld.so.conf.d/00-apportion.conf and becomes ldconfig (an open static program), which
 * rebuilds /etc/ld.so.cache. Returns only if that was not to be. */
enum outcome refresh_cache(const char *rootfs, int ldconfig, const struct work *work);

/* One line on stderr. */
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);

#endif
