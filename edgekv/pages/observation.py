"""What a policy, a prefetcher and the page table see of one run, and the axes it is given on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from edgekv.errors import ConfigError


@dataclass(frozen=True)
class Shape:
    """The axes [row, kv_head, page] of every per-page array. A row is a hooked layer; the pages of all streams follow each
    other."""

    n_rows: int
    n_heads: int
    n_pages: int
    page_tokens: int = 16
    pages_per_stream: int = 0
    """0: there is one stream."""
    exists: np.ndarray = field(default=None, repr=False)  # type: ignore[assignment]
    """bool [row, head]: the row has that KV head; None: all of them."""

    def __post_init__(self) -> None:
        if self.pages_per_stream == 0:
            object.__setattr__(self, "pages_per_stream", self.n_pages)
        if min(self.n_rows, self.n_heads, self.n_pages) < 0 or self.n_pages % max(1, self.pages_per_stream):
            raise ConfigError(f"{self.n_rows} rows, {self.n_heads} heads and {self.n_pages} pages in streams of "
                              f"{self.pages_per_stream} are no shape: no number may be negative, and streams must fill the pages")
        exists = np.ones((self.n_rows, self.n_heads), bool) if self.exists is None else np.array(self.exists, bool)
        if exists.shape != (self.n_rows, self.n_heads):
            raise ConfigError(f"exists is {exists.shape}; it must be [{self.n_rows} rows, {self.n_heads} heads]")
        exists.flags.writeable = False
        object.__setattr__(self, "exists", exists)

    @property
    def axes(self) -> tuple[int, int, int]:
        return self.n_rows, self.n_heads, self.n_pages

    @property
    def n_streams(self) -> int:
        return self.n_pages // max(1, self.pages_per_stream)

    @property
    def n_existing_heads(self) -> int:
        """KV heads of all rows."""
        return int(self.exists.sum())

    def ids(self, rows: np.ndarray, heads: np.ndarray, pages: np.ndarray) -> np.ndarray:
        """int64: flat ids of pages, (row * n_heads + head) * n_pages + page; the arguments broadcast."""
        return (np.asarray(rows, np.int64) * self.n_heads + heads) * self.n_pages + pages

    def places(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Row, head and page of flat ids."""
        heads, pages = np.divmod(ids, self.n_pages)
        rows, heads = np.divmod(heads, self.n_heads)
        return rows, heads, pages

    def widen(self, indices: np.ndarray, end: int) -> np.ndarray:
        """Flat ids from flat indices into a [row, head, :end] slice."""
        heads, pages = np.divmod(indices, end)
        return heads * self.n_pages + pages


@dataclass(frozen=True)
class Observation:
    """The tokens since the last run. Arrays are views that stay valid during the call."""

    mass_sum: np.ndarray
    """float32 [row, head, page]: attention mass, summed over the query heads of the group and over the query tokens. In mode sparse with
    sketches it is what the rows that were read say of all, right on average over tokens; without sketches it is zero where a page was not
    attended."""
    mass_max: np.ndarray
    """The same, the maximum over the query heads."""
    n_tokens: int
    observed: bool
    """False where nobody looked (prompts read by stock nodes or without `KvOptions.observe_prompt`) or nothing is kept: the mass is zero
    and says nothing."""
    changed: np.ndarray
    """int [n]: pages with a cell that changed since the last run, ascending; those stored into are among them."""
    page_positions: np.ndarray
    """int32 [page]: the newest position in the page, -1: no cell is in use."""
    position: int
    """The newest position stored since then; -1: none."""
    n_used_end: int
    """From this page on all are empty."""
    n_budget: int = 0
    """Pages that a head may keep, attend or have in the arena on average, those always taken included; 0: nobody knows."""
    key_norms: np.ndarray | None = None
    """float32 [row, head, page]: mean L2 norm of the page's keys, zero where it is empty; None where no policy needs it."""
