"""The memory that contexts need, estimated before loading, to know which depths fit."""

from collections.abc import Sequence

from msgspec import Struct

from edgekv.common.enums import KvMode
from edgekv.common.units import size
from edgekv.config import CacheOptions, KvOptions
from edgekv.models.geometry import ModelFile
from edgekv.planning.allocations import by_head_bytes, home_bytes, work_bytes
from edgekv.planning.fit import KvBytes, kv_bytes, rounded
from edgekv.planning.home import check_space, hot_rows_bytes

_F32 = 4


class Room(Struct, frozen=True):
    """The bytes that contexts of one model need, and the free bytes. A context has a multiple of 256 tokens."""

    model: ModelFile
    options: Sequence[KvOptions]
    """The options of each mode that runs in the first context."""
    cache: CacheOptions
    n_ubatch: int
    n_empty: int
    """Tokens of the longest prompt that is also read into an empty cache, for which each of the two contexts has a small one beside it."""
    free: int

    def first(self, n_ctx: int) -> int:
        """Bytes of the model and its first context, which runs all modes except stock without flash attention."""
        kv = max(self._in_memory(kv_bytes(self.model.geometry, n_ctx, kv), kv) for kv in self.options)
        return self.model.geometry.file_bytes + kv + self._work(n_ctx) + self._empty()

    def check_home(self, n_ctx: int) -> None:
        """Raise DoesNotFit if K and V of a first context of `n_ctx` tokens are to lie in a folder, and its disk has too little space; ConfigError
        if no file can be made there."""
        kv = self.options[0]
        if kv.cache.kv_dir is not None:
            empty = home_bytes(self.model.geometry, self.n_empty, kv, n_ubatch=self.n_ubatch) if self.n_empty else 0
            by_head = by_head_bytes(self.model.geometry, n_ctx, kv.with_(mode=KvMode.SPARSE, kv_budget=self.hot_rows(n_ctx)))
            check_space(kv.cache.kv_dir, n_ctx, home_bytes(self.model.geometry, n_ctx, kv, n_ubatch=self.n_ubatch) + by_head + empty,
                        "use a smaller -d, or another folder")

    def hot_rows(self, n_ctx: int) -> int:
        """Bytes for copies of rows of a first context with K and V on a disk."""
        home = home_bytes(self.model.geometry, n_ctx, self.options[0], n_ubatch=self.n_ubatch)
        return hot_rows_bytes(self.free - self.first(n_ctx), home)

    def second(self, n_ctx: int) -> int:
        """Bytes of a context beside it without flash attention, whose work space holds the scores of all query heads."""
        shape = self.model.geometry
        scores = _F32 * max(shape.n_head) * self.n_ubatch * n_ctx
        return shape.kv_bytes(n_ctx, *self.cache.kinds) + self._work(n_ctx) + scores + self._empty()

    def problem(self, n_ctx: int, second: int | None = None) -> str | None:
        """The reason if a first context of `n_ctx` tokens and a second one of `second` do not fit; None: they fit."""
        needed = self.first(n_ctx) + (self.second(second) if second is not None else 0)
        if needed <= self.free:
            return None
        what = f"a context of {n_ctx:,} tokens" if second is None else "a second context, for stock without flash attention,"
        of_it = needed if second is None else self.second(second)
        left = self.free if second is None else max(0, self.free - self.first(n_ctx))
        return f"does not fit: {what} needs {size(of_it)} and {size(left)} are free"

    def _empty(self) -> int:
        n_ctx = rounded(self.n_empty)
        return self.model.geometry.kv_bytes(n_ctx, *self.cache.kinds) + self._work(n_ctx) if n_ctx else 0

    @staticmethod
    def _in_memory(kept: KvBytes, kv: KvOptions) -> int:
        return kept.total - (0 if kv.cache.kv_dir is None else kept.home)

    def _work(self, n_ctx: int) -> int:
        logits = _F32 * self.n_ubatch * self.model.geometry.n_vocab
        return work_bytes(self.model.geometry, n_ctx, self.cache, n_ubatch=self.n_ubatch) + logits
