"""Which depths fit into memory, asked before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgekv.amounts import size
from edgekv.config import KvOptions
from edgekv.memory.available import available_bytes
from edgekv.memory.compute import compute_bytes
from edgekv.memory.fit import kv_bytes
from edgekv.models.geometry import ModelFile
from edgekv.vocab import CacheType

_F32 = 4


@dataclass(frozen=True)
class Room:
    """What contexts of one model take, in bytes, and what is free for them. A context's tokens are a multiple of 256."""

    model: ModelFile
    options: Sequence[KvOptions]
    """Of each mode that runs in the first context."""
    type_k: CacheType
    type_v: CacheType
    n_ubatch: int
    free: int

    @classmethod
    def now(cls, model: ModelFile, options: Sequence[KvOptions], type_k: CacheType, type_v: CacheType, n_ubatch: int) -> Room:
        return cls(model, options, type_k, type_v, n_ubatch, available_bytes())

    def first(self, n_ctx: int) -> int:
        """The model and its first context, in which all modes but stock without flash attention run."""
        kv = max(kv_bytes(self.model.geometry, n_ctx, kv).total for kv in self.options)
        return self.model.geometry.file_bytes + kv + self._work(n_ctx)

    def second(self, n_ctx: int) -> int:
        """A context beside it without flash attention: its work space holds the scores of all query heads."""
        shape = self.model.geometry
        scores = _F32 * max(shape.n_head) * self.n_ubatch * n_ctx
        return shape.kv_bytes(n_ctx, self.type_k.value, self.type_v.value) + self._work(n_ctx) + scores

    def problem(self, n_ctx: int, second: int | None = None) -> str | None:
        """Why a first context of `n_ctx` tokens cannot be had, and beside it a second one of `second`; None: they can."""
        needed = self.first(n_ctx) + (self.second(second) if second is not None else 0)
        if needed <= self.free:
            return None
        what = f"a context of {n_ctx:,} tokens" if second is None else "a second context, for stock without flash attention,"
        of_it = needed if second is None else self.second(second)
        left = self.free if second is None else max(0, self.free - self.first(n_ctx))
        return f"does not fit: {what} needs {size(of_it)} and {size(left)} are free"

    def _work(self, n_ctx: int) -> int:
        logits = _F32 * self.n_ubatch * self.model.geometry.n_vocab
        return compute_bytes(self.model, n_ctx, 1, self.n_ubatch)[0] + logits
