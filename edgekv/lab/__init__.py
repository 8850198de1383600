"""What is learned without a model from recorded attention, and what records and shows it."""
