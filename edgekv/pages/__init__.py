"""Pages: their axes, what is seen of them in a run, and where they are."""
