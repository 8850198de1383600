"""What several test modules use; no test stands here."""
