"""Texts to plant sentences in."""
