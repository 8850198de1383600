"""How fast this machine is: rates that were measured once and are kept."""
