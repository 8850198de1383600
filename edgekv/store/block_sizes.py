"""Sizes of what a prefix store handles at once. A plan needs them, and no array."""

BLOCK_TOKENS = 256
"""Tokens of a block that others can follow. A shorter block, a tail, ends its chain."""

LEAST_IN_FLIGHT = 16 << 20


def most_in_flight(block_bytes: int) -> int:
    """The most bytes of rows that are read and not yet in place, besides those that RAM keeps; `block_bytes`: of a whole block. Two blocks, so one
    is read while the other is used."""
    return max(LEAST_IN_FLIGHT, 2 * block_bytes)
