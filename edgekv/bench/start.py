"""The state that every mode starts from: a context read in with full attention, and the way back to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from edgekv.bench.harness.decoder import Decoder, Snapshot
from edgekv.bench.harness.modes import STOCK, BenchMode, find_mode
from edgekv.bench.harness.passes import read
from edgekv.config import KvOptions


class Start:
    """Where a decoder stands once it has read some tokens. A mode that drops cells gets them back from a snapshot, which is
    taken only where there is such a mode; all others are rewound."""

    def __init__(self, decoder: Decoder, base: KvOptions):
        self.decoder, self.base = decoder, base
        self.position = 0
        self._snapshot: Snapshot | None = None
        self._dropped = False

    def read(self, tokens: Sequence[int], modes: Iterable[BenchMode], n_threads: int,
             progress: Callable[[int], None] = lambda position: None) -> None:
        """Empty the context and read `tokens` with stock attention; `progress` is told the position after each batch."""
        self.decoder.llama.kv.configure(find_mode(STOCK).options(self.base, len(tokens)))
        self.decoder.rewind(0)
        self._snapshot, self._dropped = None, False
        for position in read(self.decoder, tokens, n_threads):
            progress(position)
        self.position = self.decoder.position
        if any(mode.destructive for mode in modes):
            self._snapshot = self.decoder.snapshot()

    def begin(self, mode: BenchMode) -> None:
        """Back to the start, before `mode` decodes."""
        if self._dropped:
            self.decoder.llama.kv.configure(find_mode(STOCK).options(self.base, self.position))
            self.decoder.restore(self._snapshot)
        else:
            self.decoder.rewind(self.position)
        self._dropped = mode.destructive
