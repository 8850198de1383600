"""The attention and the roles of single KV heads."""
