"""What becomes of messages under the chat templates of a folder (tests/README.md)."""
