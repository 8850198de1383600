"""What this machine does, as it was measured and is kept."""
