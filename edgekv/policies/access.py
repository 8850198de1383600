"""The definition of a page's access."""

from dataclasses import dataclass

from edgekv.policies.base import Settings, at_least


@dataclass(frozen=True)
class AccessSettings(Settings):
    access_mass: float = at_least(0, 0.01)
    """A page with more attention mass than this, per token, was accessed."""
