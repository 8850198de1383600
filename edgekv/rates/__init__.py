"""The speed of this machine: rates that were measured once and are kept."""
