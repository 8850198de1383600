"""`edgekv chat`."""
