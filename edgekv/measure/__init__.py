"""Measures this machine with small models of our own, and plans by the rates."""
