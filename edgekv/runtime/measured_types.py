"""Measures what coarse types of K and V cost a model: contexts on the same weights read the same text, and their predictions are compared with
those of a cache in f16.

The text is this package's own source, as for the errors of heads (`runtime.measured_heads`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product

import numpy as np
from msgspec import Struct

from edgekv.common.enums import CacheType, KvMode
from edgekv.config import KvOptions, LayerTypes, TypeErrors
from edgekv.config.layer_types import COARSE, FINE

READ_TOKENS, STEPS = 512, 512
"""Tokens that are read, and those after them whose successors are predicted."""

_KEPT = 256
"""Likely tokens of each reference; the others count as one."""

Logits = Iterable[np.ndarray]
"""float32 [n, n_vocab], piece by piece: the predictions after STEPS tokens."""

Progress = Callable[[str, int, int], None]
_WHAT = "measuring what coarse types cost in each layer, once"


class Reference(Struct, frozen=True):
    """Predictions, by their likely tokens: token numbers and logarithms of their probabilities [n, _KEPT], and of the others' together [n]."""

    tokens: np.ndarray
    logs: np.ndarray
    others: np.ndarray

    @classmethod
    def of(cls, pieces: Logits) -> Reference:
        parts = []
        for logits in pieces:
            n = min(_KEPT, logits.shape[1] - 1)
            tokens = np.argpartition(logits, -n, axis=1)[:, -n:]
            parts.append((tokens, *_shared(logits, tokens)))
        return cls(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def divergence(self, pieces: Logits) -> float:
        """The mean KLD of predictions from these, nats a token."""
        total, first = 0.0, 0
        for logits in pieces:
            part = slice(first, first := first + len(logits))
            logs, others = _shared(logits, self.tokens[part])
            total += float((np.exp(self.logs[part]) * (self.logs[part] - logs)).sum())
            total += float((np.exp(self.others[part]) * (self.others[part] - others)).sum())
        return max(0.0, total / first)


def _shared(logits: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of the probabilities of `tokens` [n, k], and of all others together [n], float64."""
    exact = logits.astype(np.float64)
    exact -= exact.max(axis=1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    logs = np.take_along_axis(exact, tokens, axis=1)
    rest = np.exp(exact)
    np.put_along_axis(rest, tokens, 0.0, axis=1)
    return logs, np.log(np.maximum(rest.sum(axis=1), 1e-12))


def measure(kv: KvOptions, n_layers: int, rows: Sequence[bool], predict: Callable[[KvOptions], Logits], progress: Progress) -> TypeErrors:
    """What types cost a model. rows: the layers that keep K and V of their own; only these are measured one by one, if there are any. predict: the
    predictions of a new context with these options."""
    base = kv.with_(kv_bytes=None, layer_types=None, mode=KvMode.EXACT, observe=False)
    pairs = [pair for pair in product(CacheType, repeat=2) if pair != (CacheType.F16, CacheType.F16)]
    by_layer = [(il, value) for il in range(n_layers) if rows[il] for value in (False, True)]
    n_all, done = 2 + len(pairs) + len(by_layer), 0

    def said(found: float) -> float:
        nonlocal done
        progress(_WHAT, done := done + 1, n_all)
        return found

    progress(_WHAT, 0, n_all)
    f16 = base.with_(type_k=CacheType.F16, type_v=CacheType.F16)
    reference = Reference.of(predict(f16))
    said(0.0)
    noise = said(reference.divergence(predict(f16.with_(mode=KvMode.OFF))))
    whole = {f"{k.value}/{v.value}": said(reference.divergence(predict(base.with_(type_k=k, type_v=v)))) for k, v in pairs}
    own = {(il, value): said(reference.divergence(predict(base.with_(**one_coarse(n_layers, il, value))))) for il, value in by_layer}
    fine = whole[f"{FINE.value}/{FINE.value}"]
    k, v = ([_digits(max(0.0, own.get((il, value), fine) - fine)) for il in range(n_layers)] for value in (False, True))
    return TypeErrors(_digits(noise), {name: _digits(one) for name, one in whole.items()}, tuple(k), tuple(v))


def one_coarse(n_layers: int, il: int, value: bool) -> dict[str, object]:
    """Options with one layer's K, or V, in COARSE."""
    fine, coarse = [FINE] * n_layers, [FINE] * n_layers
    coarse[il] = COARSE
    types = LayerTypes(tuple(fine), tuple(coarse)) if value else LayerTypes(tuple(coarse), tuple(fine))
    return by_layer_options(types)


def by_layer_options(types: LayerTypes) -> dict[str, object]:
    """Options of a cache with types by layer."""
    k, v = (COARSE if COARSE in kinds else FINE for kinds in (types.k, types.v))
    return {"type_k": k, "type_v": v, "layer_types": types}


def _digits(one: float) -> float:
    return float(f"{one:.4g}")


def batches(tokens: Sequence[int], n: int) -> Iterator[Sequence[int]]:
    for first in range(0, len(tokens), n):
        yield tokens[first : first + n]
