"""What fits into memory, on the host and on a device, and how fast a device is."""
