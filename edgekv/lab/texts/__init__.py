"""Facts, and texts to plant them in."""
