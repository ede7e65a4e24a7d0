/* Says on standard error what was refused and why, if APPORTION_SHIM_LOG is set; else silent. */
#ifndef AP_LOG_H
#define AP_LOG_H

__attribute__((format(printf, 1, 2))) void ap_log(const char *format, ...);

#endif
