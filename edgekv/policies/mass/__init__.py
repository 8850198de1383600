"""Policies that compare or add up attention mass."""
