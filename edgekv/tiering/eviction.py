"""Decides which pages mode evict gives up: layers drop pages, and a page that no layer keeps, or that has no room, is freed. Pure."""

from typing import Protocol

import numpy as np
from msgspec import Struct

from edgekv.common.enums import Split
from edgekv.common.errors import ConfigError
from edgekv.pages.shape import PageShape
from edgekv.tiering.budgets import divide

BATCHES = 4
"""A cache whose pages are freed has room for this many of its largest batches, or more. The room for a batch must be empty before the
batch is read, so that larger batches would leave most of the bound empty."""


class Demand(Struct, frozen=True):
    """The cells of a stream as they are, and how many must go. Pages of other streams count as empty."""

    dropped: np.ndarray
    """uint8 [layer, head, page]; not zero: the head dropped the page before."""
    page_positions: np.ndarray
    """int [page], the newest position in each page, -1: empty."""
    page_cells: np.ndarray
    """int [page], cells in use."""
    split: Split
    """The division of the pages over layers."""
    n_keep: int | None
    """Pages that a layer keeps on average, by their bytes; None: all."""
    n_excess: int = 0
    """Cells that must be emptied in any case. The pages that their heads value least go first (`decide`), pinned ones last."""
    positions: np.ndarray | None = None
    """int [page, token], the position in each cell, -1: empty. None: nobody keeps single cells."""
    keep_tokens: int = 0
    """Tokens of `n_keep` pages, to the cell; 0: all."""
    layer_bytes: np.ndarray | None = None
    """float [layer]: bytes of a token's K and V, where layers differ."""


class Losses(Struct, frozen=True):
    """The pages that one decision drops and frees."""

    dropped: np.ndarray
    """int64 [n]: flat ids (`PageShape.ids`) of pages that a layer does not attend any more though others do, for all its heads."""
    freed: np.ndarray
    """int64 [n]: pages whose cells are emptied, for all layers."""


class Evictor(Protocol):
    """The cells that pages stand in."""

    def demands(self) -> list[Demand]:
        """One for each stream from which something may have to go."""

    def drop(self, ids: np.ndarray) -> None:
        """Drop these pages (`Losses.dropped`): their rows are given back."""

    def free(self, pages: np.ndarray) -> int:
        """Empty the cells of these pages (`Losses.freed`); returns how many cells that were."""

    def free_cells(self, cells: np.ndarray) -> int:
        """Empty these cells (`by_cell`); returns how many that were."""


def batch_tokens(n_cells: int, most: int = 512) -> int:
    """Tokens of a batch for a cache of so many cells: a quarter of it, a multiple of 16 tokens."""
    return min(most, max(16, n_cells // BATCHES // 16 * 16))


def check_keep(keep_tokens: int, n_cells: int, n_batch: int, n_always: int, frees: bool) -> None:
    """Raise ConfigError if a bound cannot be kept: `n_always` tokens are never dropped, and where pages are freed to make room
    (`frees`) a batch must fit into `n_cells` with enough left."""
    if frees and BATCHES * n_batch > n_cells:
        raise ConfigError(f"a cache of {n_cells:,} cells cannot make room for batches of {n_batch:,} tokens; keep at least "
                          f"{BATCHES * n_batch:,} tokens, or read at most {batch_tokens(n_cells)} tokens at once (n_batch)")
    room = n_cells - n_batch if frees else keep_tokens
    if n_always > min(keep_tokens, room):
        raise ConfigError(f"the tokens that are always kept ({n_always:,}: the first and the newest) do not fit into --evict-to {keep_tokens}, "
                          f"which has room for {min(keep_tokens, room):,}; keep more, or fewer of these")


def decide(shape: PageShape, scores: np.ndarray | None, pins: np.ndarray | None, demand: Demand, adds_up: bool = False) -> Losses:
    """The pages that layers drop to keep `n_keep` each on average, and the pages that are freed.

    Args:
        scores: float [layer, head, page], higher = keep; minus infinity: the page is given up, though there is room. None: the newest are kept.
        pins: bool [page] or [layer, head, page], kept first, in a layer with a head that pins them; None: none. The newest page is kept
            besides: it is being filled.
        adds_up: a page is worth what all heads give it together, else what its best head does.

    Memory goes by layer, so the heads of a layer choose together. A page that no layer keeps is freed. Of the oldest page the cells stay in any
    case, though layers drop it as any other: a sequence that is taken back to a position whose neighbours are gone must not be empty, because
    llama.cpp's server aborts at one. Of equal scores the newer page is kept, which is not the higher one: cells are used again.
    """
    page_positions, page_cells = demand.page_positions, demand.page_cells
    used = np.flatnonzero(page_positions >= 0)
    used = used[np.argsort(page_positions[used], kind="stable")]  # the oldest first
    if not len(used):
        return Losses(np.empty(0, np.int64), np.empty(0, np.int64))
    exists = np.broadcast_to(shape.exists[:, :, None], (*shape.axes[:2], len(used)))
    visible = np.any((np.asarray(demand.dropped)[:, :, used] == 0) & exists, axis=1)  # [layer, page], as all that follow
    heads = np.zeros(exists.shape, np.float32) if scores is None else np.asarray(scores)[:, :, used]
    worth = _worth(heads, exists, adds_up)
    always = np.zeros(visible.shape, bool)
    if pins is not None:
        always |= np.any(np.broadcast_to(pins[..., used], exists.shape) & exists, axis=1)
    always[:, -1] = True
    kept = _within(demand, worth, always, visible & (always | (worth > -np.inf)), np.any(shape.exists, axis=1))

    value = np.where(kept, np.where(always, np.inf, worth), -np.inf).max(axis=0, initial=-np.inf)
    if not shape.n_existing_heads:
        value = np.zeros(len(used))  # no head has a score: the oldest go
    elif adds_up:
        least = np.where(worth > -np.inf, worth, np.inf).min(axis=1, keepdims=True, initial=np.inf)  # as if a layer that dropped it valued it least
        value = np.where(np.isinf(value), value, np.where(kept, worth, np.where(np.isinf(least), 0, least)).sum(axis=0))
    goes = value == -np.inf
    goes[[0, -1]] = False
    left = demand.n_excess - int(page_cells[used[goes]].sum())
    if left > 0:
        order = np.argsort(np.where(goes, -np.inf, value), kind="stable")
        order = order[~goes[order] & (order > 0) & (order < len(used) - 1)]
        before = np.cumsum(page_cells[used[order]]) - page_cells[used[order]]
        goes[order[before < left]] = True

    rows, heads_of, at = np.nonzero((visible & ~kept & ~goes)[:, None, :] & exists)
    return Losses(shape.ids(rows, heads_of, used[at]), used[goes].astype(np.int64))


def _worth(scores: np.ndarray, exists: np.ndarray, adds_up: bool) -> np.ndarray:
    """float64 [layer, page]: what the heads of a layer [layer, head, page] give a page together, or what its best head does; minus infinity where
    each gives it up. The mass of each head adds up to about the same number, so that none counts for more."""
    known = exists & (scores > -np.inf)
    if adds_up:
        worth = np.where(known, np.where(np.isposinf(scores), np.finfo(np.float32).max, scores), 0).sum(axis=1, dtype=np.float64)
        return np.where(known.any(axis=1), worth, -np.inf)
    return np.where(known, scores, -np.inf).max(axis=1, initial=-np.inf).astype(np.float64)


def _within(demand: Demand, worth: np.ndarray, always: np.ndarray, visible: np.ndarray, exists: np.ndarray) -> np.ndarray:
    """bool [layer, page]: the pages that each layer keeps. The layers' pages take no more bytes than `n_keep` of each."""
    n_keep, split = demand.n_keep, demand.split
    if n_keep is None or worth.shape[1] <= n_keep and split is not Split.PYRAMID:
        return visible

    def keeping(n_budget: float) -> np.ndarray:
        return divide(split, worth[:, None], always[:, None], visible[:, None], n_budget, exists[:, None])[:, 0]

    n_bytes = (np.ones(len(worth)) if demand.layer_bytes is None else demand.layer_bytes) * exists
    kept, n_budget = keeping(n_keep), float(n_keep)
    while n_budget >= 1 and (spent := kept.sum(axis=1) @ n_bytes) > n_keep * n_bytes.sum():
        n_budget *= max(0.5, min(0.99, n_keep * n_bytes.sum() / spent))
        kept = keeping(n_budget)  # what is always kept may exceed the bound: where that binds, `check_keep` refused it
    return kept


def by_cell(demand: Demand, sinks: int, pinned: np.ndarray | None) -> np.ndarray:
    """int64 [n]: flat cells (page * page_tokens + cell) that go where the first `sinks` tokens and the newest stay, `keep_tokens` in all,
    and of these as many as leave `n_excess` cells empty.

    pinned: bool [page], pages whose cells stay; they do not count. The first token of all stays in any case (`decide`).
    """
    if demand.positions is None:
        return np.empty(0, np.int64)
    positions = demand.positions.reshape(-1)
    used = np.flatnonzero(positions >= 0)
    stays = positions[used] < max(1, sinks)
    if pinned is not None:
        stays |= pinned[used // demand.positions.shape[1]]
    others = used[~stays]
    others = others[np.argsort(positions[others], kind="stable")]  # the oldest first
    n_goes = max(demand.n_excess, len(others) - (demand.keep_tokens - sinks) if demand.keep_tokens else 0, 0)
    return others[:n_goes].astype(np.int64)
