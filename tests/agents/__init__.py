"""Published clients against our server, without a network (tests/README.md)."""
