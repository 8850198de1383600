"""The memory of contexts, on the host and on a device, and the speed of a device."""
