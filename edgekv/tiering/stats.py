"""Counters of one attached context."""

from msgspec import Struct, to_builtins


class Stats(Struct):
    """Counts over the ubatches of a context, up to the policy's last run. Selection has counts of its own: `SelectionReport`."""

    n_ubatches: int = 0
    n_ubatches_hooked: int = 0
    """Ubatches attended by our kernels; the others (mode off, prompts on a device) ran on the stock nodes."""
    n_tokens: int = 0
    n_tokens_hooked: int = 0
    python_seconds: float = 0.0
    """Time spent in the Python layer after ubatches, observers included."""

    n_dropped: int = 0
    """Pages that a head of mode evict gave up while others keep them; a page is one of a layer and KV head."""
    n_freed: int = 0
    """Tokens whose cells mode evict emptied."""

    n_plans: int = 0
    n_promoted: int = 0
    """Pages that became resident."""
    n_demoted: int = 0
    """Pages that gave up their slot; pages whose cells changed are n_invalidated."""
    n_invalidated: int = 0
    n_failed_copies: int = 0
    """Copies that failed or whose page changed meanwhile."""
    n_unplaced: int = 0
    """Pinned pages that had no slot at the last plan: the budget is smaller than the pins."""
    moved_bytes: int = 0
    """Bytes of the copies begun."""
    moved_bytes_last: int = 0
    """Bytes of the copies begun in the last run of the policy."""
    hierarchy_seconds: float = 0.0
    """Time spent on policy, plan and migration; part of python_seconds."""
    plan_seconds: float = 0.0
    """Time spent on plans; part of hierarchy_seconds."""
    stall_seconds: float = 0.0
    """Time that ubatches waited for the arena; part of hierarchy_seconds. In host memory that is the copies themselves; on a device it is
    beginning and collecting them, and the questions of plans."""
    n_late_answers: int = 0
    """Runs of the policy in which a plan was due and the device had not answered yet."""

    def as_dict(self) -> dict[str, int | float]:
        return to_builtins(self)
