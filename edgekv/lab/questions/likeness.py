"""Compares a mode's predictions of a text with full attention's: every mode decodes the same tokens from the same cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

from edgekv.bench.modes import FULL, STOCK, BenchMode
from edgekv.bench.passes import WARMUP_TOKENS, decode, warm_up
from edgekv.bench.tally import Tally
from edgekv.lab.questions.sparsity import was_sparse
from edgekv.lab.questions.start import Start
from edgekv.measure.decoder import Decoder

REFERENCES = {STOCK: "stock", FULL: "exact"}
"""The modes whose predictions are references, with their names in the figures."""


class Likeness(Struct):
    """The predictions of each mode. A sum of two has the positions of both texts."""

    measured: dict[str, Tally] = field(default_factory=dict)
    dense: frozenset[str] = frozenset()
    """The sparse modes that attended everything in one of the texts."""

    def figures(self, name: str, mode: BenchMode) -> dict[str, Any]:
        """The figures of a mode: its likelihood, its distance from both references, its share of attended tokens."""
        one = self.measured[name]
        nll, read = float(np.mean(one.nll)), one.selection
        chosen = (read.attended, read.rows_per_head, read.error) if read.n_selections else (None, None, None)
        figures = {"nll": nll, "ppl": float(np.exp(nll)), **dict(zip(("attended_fraction", "rows_per_head", "error"), chosen)), **mode.figures}
        for other, reference in REFERENCES.items():
            if other != name:
                figures |= one.distance(reference, self.measured[other])
        return figures

    def __add__(self, other: Likeness) -> Likeness:
        return Likeness({name: one + other.measured[name] for name, one in self.measured.items()} if self.measured
                        else dict(other.measured), self.dense | other.dense)


def compare(decoder: Decoder, start: Start, modes: Mapping[str, BenchMode], tokens: Sequence[int],
            decoded: Callable[[str, int], None] = lambda mode, n_tokens: None) -> Likeness:
    """Decode `tokens` from `start` on in each mode, the first WARMUP_TOKENS with full attention; the last one is only predicted.
    `modes` begins with the references; `decoded` gets the mode and the number of decoded tokens."""
    targets = tokens[WARMUP_TOKENS + 1 :]
    measured = {name: Tally() for name in modes}
    references: dict[str, list[np.ndarray]] = {}
    dense: set[str] = set()
    for name, mode in modes.items():
        start.begin(mode)
        warm_up(decoder, mode, start.base, tokens[:WARMUP_TOKENS])
        done = decode(decoder, tokens[WARMUP_TOKENS:-1], keep_logits=True)
        decoded(name, len(tokens) - 1)
        measured[name].time(done.seconds, done.stats, done.selection)
        if not was_sparse(mode, done.selection, decoder.llama.kv, decoder.position):
            dense.add(name)
        if name in REFERENCES:
            references[REFERENCES[name]] = done.logits
        else:
            measured[name].compare(references, done.logits, targets)
    for name, reference in REFERENCES.items():
        others = {other: logits for other, logits in references.items() if other != reference}
        measured[name].compare(others, references[reference], targets)
    return Likeness(measured, frozenset(dense))
