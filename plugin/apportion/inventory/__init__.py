"""The GPUs of this node, as NVML and sysfs describe them."""
