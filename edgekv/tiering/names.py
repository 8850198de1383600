"""Checks the names of policy and prefetch among the options."""

from edgekv.config import PlacementOptions


def check_names(placement: PlacementOptions) -> None:
    """Raise ConfigError if there is no such policy or prefetch, or a live context cannot run the policy. The defaults are known: only other names need
    the modules, which bring NumPy."""
    if placement.policy != PlacementOptions.policy:
        from edgekv import policies

        policies.check_live(placement.policy)
    if placement.prefetch != PlacementOptions.prefetch:
        from edgekv.tiering.prefetch import PREFETCHERS

        PREFETCHERS.get(placement.prefetch)
