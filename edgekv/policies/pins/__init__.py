"""Policies that pin pages by position."""
