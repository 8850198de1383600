"""Contexts of this process: what is attached to them, and what they say about themselves."""
