"""No opinion."""

from __future__ import annotations

from edgekv.policies.base import Policy


class NoPolicy(Policy):
    """No scores and no pins: selection rests on the sketches alone, and only prefetch fills the arena."""
