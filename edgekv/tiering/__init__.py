"""The memory hierarchy of one context: pure decisions, and the phases of a run that carry them out."""
