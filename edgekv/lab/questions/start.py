"""The state from which every mode starts, and the way back to it: a context read with full attention, or by the mode itself."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from edgekv.bench.modes import STOCK, BenchMode, find_mode
from edgekv.common.enums import CacheType, KvMode
from edgekv.config import HeadErrors, KvOptions
from edgekv.measure.contexts import BATCH_TOKENS, decoder_of, read
from edgekv.measure.decoder import Decoder, Snapshot


def opened(model: Path, n_ctx: int, n_threads: int, head_errors: HeadErrors | None = None) -> AbstractContextManager[Decoder]:
    """`decoder_of` an empty context, stock until a mode is set. head_errors: for modes with an error."""
    return decoder_of(model, kv=KvMode.OFF, head_errors=head_errors, type_k=CacheType.F16, type_v=CacheType.F16, flash_attn=True, n_ctx=n_ctx,
                      n_batch=BATCH_TOKENS, n_ubatch=BATCH_TOKENS, n_threads=n_threads)


class Start:
    """The state of a decoder that has read some tokens. A mode that reads prompts in its own way reads the tokens again when it begins.
    After such a mode, and after one that drops cells, a snapshot restores the state; it is taken only if there is such a mode. All
    other modes are rewound."""

    def __init__(self, decoder: Decoder, base: KvOptions):
        self.decoder, self.base = decoder, base
        self.position = 0
        self._tokens: Sequence[int] = ()
        self._n_threads = 1
        self._progress: Callable[[int], None] = lambda position: None
        self._snapshot: Snapshot | None = None
        self._dropped = False
        self._reader: BenchMode | None = None  # the mode that read the cells' tokens; None: full attention

    def read(self, tokens: Sequence[int], modes: Iterable[BenchMode], n_threads: int,
             progress: Callable[[int], None] = lambda position: None) -> None:
        """Empty the context and read `tokens` with stock attention. `progress` gets the position after each batch, also when a mode
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
