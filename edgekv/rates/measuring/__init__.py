"""Measures what this machine does, with small models of its own, and plans by it."""
