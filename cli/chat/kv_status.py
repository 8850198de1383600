"""The state of the KV cache in this process's server, for the footer and the commands /memory and /stats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from edgekv.common.enums import KvMode
from edgekv.common.reports import MemoryReport, SelectionReport, TierReport
from edgekv.common.units import percent, rough_percent, size
from edgekv.config import KvOptions
from edgekv.server.server import Server

if TYPE_CHECKING:
    from edgekv.runtime.runtime import Runtime

Row = tuple[str, str]
"""Name and value of a line."""


class KvStatus(Struct, frozen=True):
    """mode: the one in force, with the layers where our kernel serves only some; bytes: of K and V together. None: a server elsewhere does not
    tell."""

    mode: str | None
    used_bytes: int | None
    total_bytes: int | None
    n_ctx: int | None
    selection: SelectionReport | None = None
    """Mode sparse: the reads of the last answer."""
    tiers: TierReport = TierReport()
    stock_tps: float | None = None
    """What stock llama.cpp decodes on this machine at this depth, in tokens a second, by estimate."""
    kept: tuple[int, int] | None = None
    """Mode evict: (kept tokens, all tokens)."""


class KvWatch:
    """Reports the cache's state after each answer."""

    def __init__(self, server: Server):
        self._server = server
        self._before = SelectionReport()

    def begin(self) -> None:
        """Note that an answer begins."""
        attached = self._server.runtime
        self._before = SelectionReport() if attached is None else attached.selection()

    def status(self, n_used: int) -> KvStatus:
        """The state of the cache after an answer, with `n_used` tokens in it."""
        context, kv = self._server.context, self._server.options.kv
        attached = self._server.runtime
        if attached is None:
            per_token = self._server.model.kv_bytes_per_token(*kv.cache.kinds)
            return KvStatus("off", per_token * n_used, context.kv_bytes, context.n_ctx)
        memory = attached.memory()
        status = KvStatus(mode_text(attached), memory.used_bytes, memory.home_bytes, context.n_ctx)
        if attached.mode is KvMode.EVICT:
            return replace(status, kept=(memory.n_cells_used, attached.n_positions))
        if attached.mode is not KvMode.SPARSE:
            return status
        return replace(status, selection=attached.selection().since(self._before), tiers=attached.tiers())


def mode_text(attached: Runtime) -> str:
    """The mode in force, with the layers where not all are served."""
    layers = attached.layers
    n_hooked = sum(layer.hooked for layer in layers)
    mode = attached.mode
    if mode is KvMode.OFF or n_hooked == len(layers):
        return mode.value
    n_refused = sum(layer.refused for layer in layers)
    return f"{mode.value} on {n_hooked} of {len(layers)} layers" + (f", no memory for {n_refused}" if n_refused else "")


def mode_summary(server: Server) -> str:
    """The mode with its settings, for a line that says what was started."""
    home = server.options.kv.cache.kv_dir
    return _mode_settings(server.runtime) + ("" if home is None else f", K and V in {home}")


def _mode_settings(attached: Runtime | None) -> str:
    if attached is None:
        return KvMode.OFF.value
    if attached.mode is KvMode.EVICT:
        sample = f", a sample of them read at {' '.join(attached.options.selection.sampled_by)}" if attached.options.samples_kept else ""
        return f"{mode_text(attached)}: {attached.options.keep_tokens:,} tokens kept{sample}"
    if attached.mode is not KvMode.SPARSE:
        return mode_text(attached)
    options, arena = attached.options, attached.memory().arena_bytes
    return f"{mode_text(attached)}: {' '.join(options.selection.sampled_by)}" + (f", arena {size(arena)}" if arena else "")


# ---- /memory ------------------------------------------------------------------------------------------------------------------


def memory_rows(server: Server) -> list[Row]:
    """Memory of the KV cache and the model; in mode sparse also what it read, and on a GPU where pages live, and why."""
    attached = server.runtime
    model = ("model", size_column(server.model.tensor_bytes))
    if attached is None:
        return [("home", f"{size_column(server.context.kv_bytes)}  {server.context.n_ctx:,} tokens (stock llama.cpp)"), model]
    memory, tiers = attached.memory(), attached.tiers()
    rows = [*tier_rows(memory, tiers, attached.options), model]
    if attached.mode is KvMode.EVICT:
        rows += [("", ""), *kept_rows(memory.n_cells_used, attached.n_positions, tiers)]
    if attached.mode is KvMode.SPARSE:
        pages = [("", ""), *page_rows(tiers)] if tiers.slot_bytes else []
        rows += [*pages, ("", ""), *selection_rows(attached.selection(), tiers)]
    return rows


def tier_rows(memory: MemoryReport, tiers: TierReport, options: KvOptions) -> list[Row]:
    """Allocated bytes of each tier, and those that hold pages in arena and home."""
    rows = []
    if tiers.n_slots:
        n_taken = tiers.n_resident + tiers.n_moving
        rows.append(("arena", (f"{size_column(memory.arena_bytes)}  {size(n_taken * tiers.slot_bytes)} used: "
                               f"{n_taken:,} of {tiers.n_slots:,} slots of {size(tiers.slot_bytes)}")))
    on_disk = "" if options.cache.kv_dir is None else f", on disk in {options.cache.kv_dir}"
    rows.append(("home", (f"{size_column(memory.home_bytes)}  {size(memory.used_bytes)} used: "
                          f"{memory.n_cells_used:,} of {memory.n_cells:,} tokens{on_disk}")))
    if memory.sketch_bytes:
        rows.append(("sketches", f"{size_column(memory.sketch_bytes)}  of all keys but the newest"))
    rows.append(("tables", f"{size_column(memory.table_bytes + memory.observation_bytes)}  page table, attention mass"))
    rows.append(("work space", size_column(memory.workspace_bytes)))
    rows.append(("above stock", f"{size_column(memory.extra_bytes)}  all of these but home"))
    return rows


def page_rows(tiers: TierReport) -> list[Row]:
    """Pages by tier, and why they are there; a page belongs to one layer and KV head."""
    places = (("resident", "in the arena", tiers.n_resident), ("moving", "on the way there", tiers.n_moving),
              ("home", "only at home", tiers.n_home), ("filling", "being filled", tiers.n_filling))
    rows = []
    for where, label, n_pages in places:
        reasons = [f"{why} ({n:,})" if n < n_pages else why for place, why, n in tiers.reasons if place == where]
        if n_pages:
            rows.append((label, f"{n_pages:>10,}  {'; '.join(reasons)}".rstrip()))
    return [("pages", f"{sum(n for _, _, n in places):>10,}  of 1 layer and KV head each"), *rows]


def kept_rows(n_kept: int, n_tokens: int, tiers: TierReport) -> list[Row]:
    """Mode evict: the kept part of the conversation."""
    heads = f"; {tiers.n_dropped:,} pages of 1 layer and KV head that others keep are not attended by theirs" if tiers.n_dropped else ""
    return [("kept", f"{n_kept:,} of {n_tokens:,} tokens{heads}"), ("dropped", f"{tiers.n_freed:,} tokens since the start, for good")]


def selection_rows(selection: SelectionReport, tiers: TierReport) -> list[Row]:
    """Reads since the start, their estimated error, and what moved."""
    moved = [("moved", (f"{size(tiers.moved_bytes)}: {tiers.n_promotions:,} pages into the arena, {tiers.n_demotions:,} out, "
                        f"{tiers.n_invalidated:,} out because they changed, {tiers.n_failed:,} copies failed"))] if tiers.slot_bytes else []
    if not selection.n_selections:
        return [("reads", "everything so far: the context is short"), *moved]
    by_mass = f", {percent(selection.hit_rate_mass)} % of the attention mass" if selection.mass else ""
    rows = [("reads", f"{reads_text(selection)}: {percent(selection.attended)} %")]
    if selection.error is not None:  # tokens are sampled
        rows[0] = ("reads", f"{rows[0][1]}, of these {percent(selection.certain)} % for certain")
        rows.append(("error", f"~{rough_percent(selection.error)} of a head's output (estimated)"))
    if tiers.n_slots:
        rows.append(("arena hits", f"{percent(selection.hit_rate)} % of the tokens read{by_mass}"))
    return [*rows, *moved]


def reads_text(selection: SelectionReport) -> str:
    """ "474 of 7,168 tokens a head": the visible tokens that a KV head reads for a query token, on average."""
    return f"{selection.rows_per_head:,.0f} of {selection.visible_per_head:,.0f} tokens a head"


def layer_rows(server: Server) -> list[Row]:
    """The layers that our kernel serves and those that it does not, grouped by the reason."""
    attached = server.runtime
    if attached is None:
        return [("mode", "off: stock llama.cpp attention")]
    by_reason: dict[str, list[int]] = {}
    for layer in attached.layers:
        by_reason.setdefault("served by our kernel" if layer.hooked else layer.reason, []).append(layer.il)
    return [("mode", f"{attached.mode.value}: {attached.mode.description}"),
            *(("layers", f"{len(layers)} {reason}") for reason, layers in by_reason.items())]


def size_column(n_bytes: int) -> str:
    """A size for a column of them: `size`, aligned at the right."""
    return f"{size(n_bytes):>10}"
