"""What others are compared with."""
