"""Texts to read, and facts to plant in them."""
