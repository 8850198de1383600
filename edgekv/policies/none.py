"""No opinion."""

from edgekv.policies.base import Policy


class NoPolicy(Policy):
    """No scores and no pins: only prefetch fills the arena."""

    kernels_only = True
