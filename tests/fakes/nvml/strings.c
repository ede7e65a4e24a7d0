/* nvmlErrorString, the messages as the real library words them. */
#include "nvml.h"

API const char *nvmlErrorString(nvmlReturn code)
{
	static const char *const text[] = {
		"Success", "Uninitialized", "Invalid Argument", "Not Supported",
		"Insufficient Permissions", "Already Initialized", "Not Found", "Insufficient Size",
		"Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
		"NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost",
		"GPU requires reset", "The operating system has blocked the request",
		"RM has detected an NVML/RM version mismatch.", "In use by another client",
		"Insufficient Memory", "No data", "Requested vGPU operation is not available",
		"Insufficient Resources", "Frequency not supported", "Argument version mismatch",
		"This functionality has been deprecated", "System is not ready", "GPU not found",
		"Invalid state", "Reset type not supported",
	};
	if (code >= 0 && code < (int)(sizeof text / sizeof *text))
		return text[code];
	return "Unknown Error";
}
