"""Measures the sampling errors of a model's heads: a context reads a text and decodes the tokens after it, at one resolution
after the other.

The text is this package's own source: it has sentences of docstrings and code, every machine that runs the package has it, and no benchmark
predicts it. Its errors by head correlate with those of other texts (logarithms, 0.89 to 0.95 over SmolLM2-135M's heads; five texts),
and with those after 1,400 and 7,600 tokens of one text (0.87 and 0.90).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable

import numpy as np

from edgekv.common.enums import KvMode
from edgekv.config import HeadErrors, KvOptions
from edgekv.runtime.runtime import Runtime

RESOLUTIONS = (500.0, 2000.0, 8000.0)
READ_TOKENS = 4096
"""Tokens that are read before the measured ones."""
STEPS = 64
"""Measured tokens at each resolution."""
_TURN = 4
"""Tokens at one resolution before the next one takes its turn, so that all resolutions meet the same parts of the text."""

_FOLDERS = ("arrays", "config", "pages", "planning", "policies", "tiering")
_TEXT_BYTES = 1 << 17
"""More than READ_TOKENS tokens in any vocabulary with pieces of words."""

N_TOKENS = READ_TOKENS + STEPS * len(RESOLUTIONS)

Progress = Callable[[str, int, int], None]
"""Called with the name of the work, the finished tokens and their total."""


def own_text() -> str:
    """The source of this package, always in the same order."""
    sources: list[str] = []
    for folder in _FOLDERS:
        sources += _sources(files("edgekv") / folder)
        if sum(map(len, sources)) >= _TEXT_BYTES:
            break
    return "\n".join(sources)[:_TEXT_BYTES]


def text_digest() -> str:
    return hashlib.blake2b(own_text().encode(), digest_size=8).hexdigest()


def settings(options: KvOptions) -> str:
    """What the errors depend on besides model, kernels and text."""
    chosen = options.selection
    return f"{'/'.join(options.cache.names)} b3 {chosen.sink_tokens}+{chosen.recent_tokens}"


def measuring_options(options: KvOptions) -> KvOptions:
    """Options of a measured context; all other options are those of a context in use."""
    return options.with_(mode=KvMode.SPARSE, sample_budget=RESOLUTIONS[0], head_errors=None, exact_tokens=0, error_every=1)


def measure(run: Runtime, evaluate: Callable[[Sequence[int]], object], tokens: Sequence[int], progress: Progress) -> HeadErrors:
    """The errors of a context's heads, over up to N_TOKENS tokens. run: of an empty context with `measuring_options`. evaluate: decodes tokens,
    as one call of llama.cpp each time."""
    layers = run.layers
    hooked = [layer for layer in layers if layer.index >= 0]
    sums = np.zeros((len(RESOLUTIONS), 2, *run.layer_selection().shape))  # sums of errors, and their counts
    n_read = len(tokens) - STEPS * len(RESOLUTIONS)
    if hooked and n_read > 0:
        run.mode = KvMode.EXACT
        for first in range(0, n_read, _BATCH):
            evaluate(tokens[first : min(first + _BATCH, n_read)])
            progress(_WHAT, min(first + _BATCH, n_read), len(tokens))
        for turn, first in enumerate(range(n_read, len(tokens), _TURN)):
            at = turn % len(RESOLUTIONS)
            run.configure(run.options.with_(mode=KvMode.SPARSE, sample_budget=RESOLUTIONS[at]))
            before = run.layer_selection()
            for token in tokens[first : first + _TURN]:
                evaluate([token])
            after = run.layer_selection()
            sums[at] += [after[name] - before[name] for name in ("error", "n_errors")]
            progress(_WHAT, first + _TURN, len(tokens))
    means = np.divide(sums[:, 0], sums[:, 1], out=np.zeros_like(sums[:, 0]), where=sums[:, 1] > 0)
    tables = [[() if layer.index < 0 else tuple(float(f"{one:.4g}") for one in table[layer.index, : layer.n_head_kv]) for layer in layers]
              for table in means]
    return HeadErrors(RESOLUTIONS, tuple(map(tuple, tables)))


_BATCH = 512
_WHAT = "measuring the error of each head, once"


def _sources(folder: Traversable) -> list[str]:
    found = []
    for one in sorted(folder.iterdir(), key=lambda one: one.name):
        if one.is_dir():
            found += _sources(one)
        elif one.name.endswith(".py"):
            found.append(one.read_text(encoding="utf-8"))
    return found
