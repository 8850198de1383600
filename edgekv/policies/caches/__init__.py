"""Replacement policies of caches: an access is attention mass above a threshold."""
