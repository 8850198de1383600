"""Recorded attention, and its replay without a model."""
