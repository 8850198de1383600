"""Policies that judge a prompt once, by the attention of its last tokens."""
