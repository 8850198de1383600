"""Counters of one attached context."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Stats:
    """What the steps of a context came to. A step is one ubatch; an access is one selected page of one row, KV head and query token."""

    n_steps: int = 0
    n_steps_hooked: int = 0
    """Steps attended by our kernel; the others (prompts, mode off) ran on the stock nodes."""
    n_tokens: int = 0
    n_tokens_hooked: int = 0
    python_seconds: float = 0.0
    """Time spent in the Python layer after steps, observers included."""

    n_accesses: int = 0
    n_hits: int = 0
    """Accesses that were read from the arena."""
    n_visible: int = 0
    """Pages that could have been accessed."""
    mass: float = 0.0
    """Attention mass on the accessed pages, where it is observed."""
    mass_hits: float = 0.0
    n_selections: int = 0
    """One for each row, KV head and query token of mode sparse."""
    coverage_sum: float = 0.0
    """Estimated coverage of the selections, before fallbacks."""
    n_fallbacks: int = 0
    """Selections that attended everything because their estimated coverage was below the floor."""

    n_plans: int = 0
    n_promoted: int = 0
    """Pages that became resident."""
    n_demoted: int = 0
    """Pages that gave up their slot; those whose cells changed are n_invalidated."""
    n_invalidated: int = 0
    n_failed_copies: int = 0
    """Copies that failed or whose page changed meanwhile."""
    n_unplaced: int = 0
    """Pinned pages that had no slot at the last plan: the budget is smaller than the pins."""
    moved_bytes: int = 0
    """Bytes of the copies begun."""
    hierarchy_seconds: float = 0.0
    """Time spent on policy, plan and migration; part of python_seconds."""
    plan_seconds: float = 0.0
    """The plans' part of hierarchy_seconds."""

    @property
    def hit_rate(self) -> float | None:
        """By access; None before the first."""
        return self.n_hits / self.n_accesses if self.n_accesses else None

    @property
    def mass_hit_rate(self) -> float | None:
        """By attention mass."""
        return self.mass_hits / self.mass if self.mass else None

    @property
    def coverage(self) -> float | None:
        """Mean estimated coverage of a selection."""
        return self.coverage_sum / self.n_selections if self.n_selections else None

    @property
    def attended_share(self) -> float | None:
        """Accessed pages out of the visible ones."""
        return self.n_accesses / self.n_visible if self.n_visible else None

    def as_dict(self) -> dict[str, int | float | None]:
        """Every counter, and the rates made of them (None where nothing was counted)."""
        rates = ("hit_rate", "mass_hit_rate", "coverage", "attended_share")
        return asdict(self) | {name: getattr(self, name) for name in rates}
