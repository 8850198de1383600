"""What single KV heads attend, and what they are for."""
