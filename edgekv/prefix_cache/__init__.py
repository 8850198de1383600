"""K and V that were computed once: prefixes of conversations, in RAM, in a folder, in a Redis-compatible server."""
