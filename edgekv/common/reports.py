"""Reports of a context: its layers, memory, selection and tiers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct


class LayerReport(Struct, frozen=True):
    """One layer's attention."""

    il: int
    hooked: bool
    """EdgeKV attends it, and it has pages."""
    reason: str
    """The reason why it is hooked, or not."""
    n_head: int
    n_head_kv: int
    head_dim: int
    type_k: str
    type_v: str
    index: int = -1
    """Its place in arrays by layer, among the hooked layers; -1: it has none."""
    refused: bool = False
    """EdgeKV would attend it, but memory is missing."""
    whole: bool = False
    """EdgeKV attends it whole in every mode: its window slides, or it has ALiBi. It has no pages."""

    @property
    def attended(self) -> bool:
        return self.hooked or self.whole


class MemoryReport(Struct, frozen=True):
    """Bytes and cells of one context."""

    home_bytes: int
    """K and V of the layers with a plain KV cache, if every cell had rows; in mode evict what the bound allows."""
    observation_bytes: int
    workspace_bytes: int
    sketch_bytes: int
    arena_bytes: int
    table_bytes: int
    """Page table, scores, pins and what selection keeps."""
    n_cells: int
    """Tokens that `home_bytes` hold."""
    n_cells_used: int
    """Tokens; in mode evict, where each layer keeps its own, the mean of the layers."""
    device_bytes: int = 0
    """The part of these bytes in the device's memory; 0: the context runs on the host."""
    pinned: bool = False
    """The device reads home at the link's full speed."""

    @property
    def used_bytes(self) -> int:
        """Home bytes of the cells in use."""
        return self.home_bytes * self.n_cells_used // max(1, self.n_cells)

    @property
    def extra_bytes(self) -> int:
        """Native bytes of this context that stock llama.cpp does not need."""
        return self.observation_bytes + self.workspace_bytes + self.sketch_bytes + self.arena_bytes + self.table_bytes


class SelectionReport(Struct, frozen=True):
    """What mode sparse read: sums over all layers, KV heads and query tokens since the context was attached. Tokens that attend everything, as
    in a short context or a prompt, do not count."""

    n_selections: int = 0
    """One for each layer, KV head and query token."""
    n_visible: int = 0
    """Tokens that the selections see."""
    n_read: int = 0
    """Tokens whose K and V they read."""
    n_certain: int = 0
    """Tokens that they read for certain, not by chance."""
    n_hits: int = 0
    """Tokens that they read from the arena."""
    mass: float = 0.0
    """Weighted attention mass on the tokens read, where mass is observed."""
    mass_hits: float = 0.0
    error_sum: float = 0.0
    """Estimated relative errors of the outputs of `n_errors` query heads."""
    n_errors: int = 0
    covered: float = 0.0
    """Estimated shares of the attention on the tokens read, of `n_covered` selections; where mode evict reads all that is kept, there is no estimate."""
    n_covered: int = 0

    def since(self, before: SelectionReport) -> SelectionReport:
        """The difference to an earlier report of the same context."""
        return SelectionReport(*(getattr(self, name) - getattr(before, name) for name in self.__struct_fields__))

    @property
    def attended(self) -> float:
        """Tokens read / visible tokens. This and the rates below are 0 if nothing was selected."""
        return self.n_read / self.n_visible if self.n_visible else 0.0

    @property
    def rows_per_head(self) -> float:
        """Tokens that a KV head reads for a query token, on average."""
        return self.n_read / self.n_selections if self.n_selections else 0.0

    @property
    def visible_per_head(self) -> float:
        """Tokens that a query token sees, on average."""
        return self.n_visible / self.n_selections if self.n_selections else 0.0

    @property
    def certain(self) -> float:
        """Tokens read for certain / tokens read."""
        return self.n_certain / self.n_read if self.n_read else 0.0

    @property
    def error(self) -> float | None:
        """Estimated relative error of a query head's output against full attention, on average; None if it was not estimated."""
        return self.error_sum / self.n_errors if self.n_errors else None

    @property
    def coverage(self) -> float | None:
        """Estimated share of the attention on the tokens that were read, on average. The sampled tokens' weights stand for the attention on unread
        tokens. Attention sinks count as read. None if it was not estimated."""
        return self.covered / self.n_covered if self.n_covered else None

    @property
    def hit_rate(self) -> float:
        """Hits / tokens read."""
        return self.n_hits / self.n_read if self.n_read else 0.0

    @property
    def hit_rate_mass(self) -> float:
        """Attention mass on hits / on tokens read."""
        return self.mass_hits / self.mass if self.mass else 0.0


@dataclass
class AnswerReport:
    """An answer, up to its newest token."""

    n_reused: int
    """Tokens of the prompt that were in the cache."""
    n_prefilled: int = 0
    """Tokens of the prompt that were read."""
    n_generated: int = 0
    prefill_seconds: float = 0.0
    """Until the first token came."""
    decode_seconds: float = 0.0
    """Until the newest one came; the caller's own time is left out."""

    select: Callable[[], SelectionReport] = field(default=SelectionReport, repr=False, compare=False)
    """What mode sparse read since the prompt was given."""

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens after the first, by the second; 0 without any."""
        return (self.n_generated - 1) / self.decode_seconds if self.n_generated > 1 and self.decode_seconds else 0.0

    @property
    def attended(self) -> float:
        """As in SelectionReport; 1 if every token attended all that it saw."""
        return selection.attended if (selection := self.select()).n_selections else 1.0

    @property
    def error(self) -> float | None:
        """As in SelectionReport."""
        return self.select().error

    @property
    def fields(self) -> dict[str, float | int | None]:
        """As a result of `Llama` has them."""
        return {name: getattr(self, name) for name in ("n_reused", "n_prefilled", "n_generated", "attended", "error", "tokens_per_second")}


class TierReport(Struct, frozen=True):
    """The places of pages, and the number of moves; a page belongs to one layer and KV head."""

    n_resident: int = 0
    n_home: int = 0
    n_filling: int = 0
    n_moving: int = 0
    n_free: int = 0
    n_slots: int = 0
    slot_bytes: int = 0
    moved_bytes: int = 0
    n_promotions: int = 0
    n_demotions: int = 0
    n_invalidated: int = 0
    """Pages that left the arena because their cells changed."""
    n_failed: int = 0
    n_dropped: int = 0
    """Mode evict: pages that their head no longer attends."""
    n_freed: int = 0
    """Mode evict: tokens whose cells were emptied so far."""
    reasons: tuple[tuple[str, str, int], ...] = ()
    """(where, why, number of pages), the most first."""


class DeviceBytes(Struct, frozen=True):
    """The bytes that a context takes of a device's memory."""

    budget: int
    """For all that follows."""
    sketches: int
    tables: int
    """Mirrors of the page table and of cells, pins, attention mass."""
    scratch: int
    """Scratch of selection and attention; all layers use it in turn."""
    staging: int
    """K and V of `n_staged` pieces of a layer, some KV heads each: prompts are attended there."""
    ring: int
    """Mode exact streams cold pages through it."""
    arena: int
    """Whole slots in the rest of the budget: at most one for each page, and further slots for pages that are being filled."""
    n_staged: int
    n_slots: int
    """Slots of the arena without the slots for pages that are being filled."""
