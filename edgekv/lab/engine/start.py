"""The state that every mode starts from, and the way back to it: a context that full attention has read, or the mode itself."""

from collections.abc import Callable, Iterable, Sequence

from edgekv.config import KvOptions
from edgekv.lab.engine.modes import STOCK, BenchMode, find_mode
from edgekv.rates.measuring.contexts import read
from edgekv.rates.measuring.decoder import Decoder, Snapshot


class Start:
    """Where a decoder stands once it has read some tokens. A mode that reads prompts in its own way reads them again when it begins.
    What that and a mode that drops cells leave behind is replaced by a snapshot, which is taken only where there is such a mode; all
    others are rewound."""

    def __init__(self, decoder: Decoder, base: KvOptions):
        self.decoder, self.base = decoder, base
        self.position = 0
        self._tokens: Sequence[int] = ()
        self._n_threads = 1
        self._progress: Callable[[int], None] = lambda position: None
        self._snapshot: Snapshot | None = None
        self._dropped = False
        self._reader: BenchMode | None = None  # the mode that read what the cells hold; None: full attention

    def read(self, tokens: Sequence[int], modes: Iterable[BenchMode], n_threads: int,
             progress: Callable[[int], None] = lambda position: None) -> None:
        """Empty the context and read `tokens` with stock attention; `progress` is told the position after each batch, also where a mode
        reads them again."""
        self._tokens, self._n_threads, self._progress = tokens, n_threads, progress
        self._snapshot, self._dropped, self._reader = None, False, None
        self._read(None)
        self.position = self.decoder.position
        if any(mode.destructive or mode.reads_itself for mode in modes):
            self._snapshot = self.decoder.snapshot()

    def begin(self, mode: BenchMode) -> None:
        """Go back to the start, before `mode` decodes."""
        reader = mode if mode.reads_itself else None
        if not self._dropped and reader == self._reader:
            self.decoder.rewind(self.position)
        elif reader is None and self._snapshot is not None:
            self.decoder.llama.kv.configure(find_mode(STOCK).options(self.base, self.position))
            self.decoder.restore(self._snapshot)
        else:
            self._read(reader)
        self._reader, self._dropped = reader, mode.destructive

    def _read(self, mode: BenchMode | None) -> None:
        """Empty the context and read the tokens as `mode` does; None: with stock attention."""
        self.decoder.llama.kv.configure(find_mode(STOCK).options(self.base, len(self._tokens)))  # a dropped cell cannot be rewound
        self.decoder.rewind(0)
        if mode is not None:
            self.decoder.llama.kv.configure(mode.options(self.base, len(self._tokens)))
        for position in read(self.decoder, self._tokens, self._n_threads):
            self._progress(position)
        self.decoder.mark()
