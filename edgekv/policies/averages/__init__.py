"""Policies that average attention mass."""
