"""Policies that judge a prompt by the attention of the tokens after it."""
