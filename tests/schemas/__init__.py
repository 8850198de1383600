"""JSON schemas of public suites, played through the masks that hold answers to them (tests/README.md)."""
