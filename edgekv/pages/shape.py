"""The axes of per-page arrays."""

from dataclasses import dataclass, field

import numpy as np

from edgekv.common.errors import ConfigError


@dataclass(frozen=True)
class PageShape:
    """The axes [layer, kv_head, page] of every per-page array. A layer is an index among the hooked ones; the streams' pages follow
    each other. Raises ConfigError."""

    n_layers: int
    n_heads: int
    n_pages: int
    page_tokens: int = 16
    pages_per_stream: int = 0
    """0: one stream has all pages."""
    exists: np.ndarray = field(default=None, repr=False)  # type: ignore[arg-type]  # __post_init__ fills it
    """bool [layer, head]: the layer has that KV head; None: it has all."""

    def __post_init__(self) -> None:
        if self.pages_per_stream == 0:
            object.__setattr__(self, "pages_per_stream", self.n_pages)
        if min(self.n_layers, self.n_heads, self.n_pages) < 0 or self.n_pages % max(1, self.pages_per_stream):
            raise ConfigError(f"{self.n_layers} layers, {self.n_heads} heads and {self.n_pages} pages in streams of "
                              f"{self.pages_per_stream} are not a shape: no number may be negative, and streams must fill the pages")
        exists = np.ones((self.n_layers, self.n_heads), bool) if self.exists is None else np.array(self.exists, bool)
        if exists.shape != (self.n_layers, self.n_heads):
            raise ConfigError(f"exists is {exists.shape}; it must be [{self.n_layers} layers, {self.n_heads} heads]")
        exists.flags.writeable = False
        object.__setattr__(self, "exists", exists)

    @property
    def axes(self) -> tuple[int, int, int]:
        return self.n_layers, self.n_heads, self.n_pages

    @property
    def n_streams(self) -> int:
        return self.n_pages // max(1, self.pages_per_stream)

    @property
    def n_existing_heads(self) -> int:
        """KV heads of all layers together."""
        return int(self.exists.sum())

    def ids(self, layers: np.ndarray, heads: np.ndarray, pages: np.ndarray) -> np.ndarray:
        """int64: flat ids of pages, (layer * n_heads + head) * n_pages + page; the arguments broadcast."""
        return (np.asarray(layers, np.int64) * self.n_heads + heads) * self.n_pages + pages

    def places(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Layer, head and page of flat ids."""
        heads, pages = np.divmod(ids, self.n_pages)
        layers, heads = np.divmod(heads, self.n_heads)
        return layers, heads, pages

    def widen(self, indices: np.ndarray, end: int) -> np.ndarray:
        """Flat ids from flat indices into a [layer, head, :end] slice."""
        heads, pages = np.divmod(indices, end)
        return heads * self.n_pages + pages
