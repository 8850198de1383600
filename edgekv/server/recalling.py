"""Recall for the server in this process: exchanges that leave a full context are kept, and those that a message is near come back."""

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from edgekv._native import prefix_callbacks
from edgekv._native.prefix_callbacks import CachedTokens, GoneExchanges, SequenceTokens
from edgekv._native.token_rows import BlockRows
from edgekv.arrays.nearness import embedding, nearest, nearness, weights
from edgekv.common.enums import CacheCodec
from edgekv.common.errors import DoesNotFit, EdgeKVError
from edgekv.config import CacheOptions
from edgekv.models.geometry import Geometry
from edgekv.prefix_cache.blocks import BLOCK_TOKENS, Conversation, Reading
from edgekv.prefix_cache.exchanges import Exchanges, Record, names
from edgekv.prefix_cache.identity import ModelIdentity, RowLayout
from edgekv.prefix_cache.settings import RecallSettings, StoreSettings
from edgekv.prefix_cache.store import PrefixStore
from edgekv.runtime import attachments
from edgekv.runtime.runtime import Runtime
from edgekv.server.found import count
from edgekv.server.identities import Built, Identities
from edgekv.server.prefixes import Prefixes
from edgekv.server.readings import accepted, kept_tokens, label_of, read_with

FIRST_LAYER, END_LAYER = 1 / 10, 1 / 5
"""The layers whose values tell what an exchange is about, as shares of all: of the tried means they find the most (LOG.md, recall)."""


class Recall:
    """The keeper that the server calls where exchanges leave a context and where a message begins (`http_server.program`)."""

    def __init__(self, model: Geometry, where: RecallSettings, store: StoreSettings | None, beside: Prefixes | None):
        """`store` and `beside`: settings of the prefix store, and its keeper if there is one; both share their RAM."""
        ram_bytes = 0 if store is None else store.ram_bytes
        self._where = StoreSettings(ram_bytes, folder=where.folder, codec=CacheCodec.NONE)
        self._codec = CacheCodec.NONE if store is None else store.codec  # of the rows that a context may have got
        self._identities = Identities(model.path) if beside is None else beside.identities
        self._ram = None if beside is None else beside.ram
        self._kept: dict[ModelIdentity, Exchanges] = {}

    def open(self, runtime: Runtime) -> None:
        """Open a context's store. Raises EdgeKVError if nothing can be recalled in this context."""
        if not prefix_callbacks.moves():
            raise EdgeKVError("the model keeps a recurrent state or sliding windows, so that tokens cannot move back into its context; leave --recall out")
        self._identities.wait()
        if (built := self._identities.of(runtime)) is None:
            raise EdgeKVError("rows of this context cannot be kept, so that nothing could be recalled; leave --recall out")
        self._exchanges(built)

    def leave(self, held: SequenceTokens, gone: GoneExchanges, at: np.ndarray) -> None:
        """Keep the exchanges that leave a sequence, with their rows as they are."""
        opened = self._open(held, gone)
        if opened is None or held.media:
            return
        runtime, exchanges, _, left = opened
        new = [(which, of) for which, of in enumerate(left) if at[which] >= 0 and not exchanges.has(of.root)]
        if not new:
            return
        kept = kept_tokens(runtime, runtime.options, held)
        for which, of in new:
            n, first = len(of.tokens), int(at[which])
            if first + n > len(kept.cells):
                continue
            parts = [slice(i, min(i + BLOCK_TOKENS, first + n)) for i in range(first, first + n, BLOCK_TOKENS)]
            blocks = [self._read(runtime, exchanges, held.seq_id, kept.cells[part]) for part in parts]
            values = np.concatenate([self._values(runtime, exchanges, block) for block in blocks], axis=1)
            record = Record(first, embedding(values, weights(of.tokens, gone.tokens)))
            exchanges.insert(of, kept.readings[first : first + n], blocks, record)

    def choose(self, held: SequenceTokens, turn: int, gone: GoneExchanges, most: int) -> list[int]:
        """The exchanges that the message is near; those that no record tells of stay away."""
        opened = self._open(held, gone)
        if opened is None:
            return []
        runtime, exchanges, accepts, left = opened
        known = [(which, record) for which, of in enumerate(left) if (record := exchanges.record(of, accepts)) is not None]
        cells = runtime.tokens.cells_of(held.seq_id, len(held.tokens))[turn:]
        if not known or not len(cells):
            return []
        values = self._values(runtime, exchanges, self._read(runtime, exchanges, held.seq_id, cells))
        message = embedding(values, weights(held.tokens[turn : turn + len(cells)], gone.tokens))
        scores = nearness(np.stack([record.embedding for _, record in known]), message)
        n_tokens = np.array([gone.runs[which][1] for which, _ in known])
        return [known[i][0] for i in nearest(scores, n_tokens, most)]

    def put(self, held: SequenceTokens, gone: GoneExchanges, which: int) -> tuple[int, CachedTokens]:
        """Put an exchange's rows behind the held tokens; the server takes back what a failure leaves."""
        opened = self._open(held, gone)
        if opened is None:
            return -1, CachedTokens()
        runtime, exchanges, accepts, left = opened
        tokens, layers = left[which].tokens, range(exchanges.store.identity.layout.n_layers)
        record, done = exchanges.record(left[which], accepts), False
        hit = exchanges.find(left[which], accepts)
        try:
            if record is None or hit.end < len(tokens):
                return -1, CachedTokens()
            for piece in hit.pieces:
                rows, part = piece.read(layers), slice(piece.first, piece.first + piece.n)
                if rows is None:
                    return -1, CachedTokens()
                labels = np.full(piece.n, label_of(piece), np.uint8)
                cells = runtime.tokens.place(held.seq_id, len(held.tokens) + piece.first, labels, tokens[part])
                runtime.tokens.write(held.seq_id, [BlockRows(cells, piece.skip, piece.n_block, rows)], layers)
            done = True
            return record.position, count(hit.pieces)
        except DoesNotFit:  # other sequences fill a unified cache
            return -1, CachedTokens()
        finally:
            exchanges.store.release(hit, len(hit.pieces) if done else None)

    def close(self) -> None:
        for exchanges in self._kept.values():
            exchanges.store.close()
        self._kept.clear()

    def flush(self) -> None:
        """Wait until all that left is written to the folder."""
        for exchanges in self._kept.values():
            exchanges.store.flush()

    # ---- rows ----------------------------------------------------------------------------------------------------------------------------

    def _read(self, runtime: Runtime, exchanges: Exchanges, seq_id: int, cells: np.ndarray) -> np.ndarray:
        return runtime.tokens.read(seq_id, cells, exchanges.store.identity.layout.block_bytes(len(cells)))

    def _values(self, runtime: Runtime, exchanges: Exchanges, block: np.ndarray) -> np.ndarray:
        """float32 [layer, n, channel]: V of the layers that tell, from the rows of n tokens."""
        layout = exchanges.store.identity.layout
        n = len(block) // layout.token_bytes()
        starts = layout.layer_starts(n)
        rows = [block[starts[layer] + n * layout.k_bytes[layer] : starts[layer + 1]].reshape(n, -1) for layer in telling(layout)]
        return np.stack([dequantize(one, GGMLQuantizationType[kind.upper()]) for one, kind in zip(rows, value_types(runtime.options.cache, layout))])

    # ---- stores --------------------------------------------------------------------------------------------------------------------------

    def _open(self, held: SequenceTokens, gone: GoneExchanges) -> tuple[Runtime, Exchanges, Reading, list[Conversation]] | None:
        """What keeps a context's exchanges, the worst reading that it accepts, and the exchanges that left; None: nothing keeps any."""
        runtime = attachments.find(held.address)
        built = None if runtime is None else self._identities.of(runtime)
        if runtime is None or built is None:
            return None
        options, adapters = runtime.options, built.named(held.adapters)
        settings, roots = read_with(options, self._codec), [built.identity.chain_root(adapters, held.space, name) for name in names(gone.tokens, gone.runs)]
        left = [Conversation(gone.of(which), root, settings, held.in_memory) for which, root in enumerate(roots)]
        return runtime, self._exchanges(built), accepted(options, self._codec), left

    def _exchanges(self, built: Built) -> Exchanges:
        if built.identity not in self._kept:
            store = PrefixStore(built.identity, self._where, ram=self._ram)
            self._kept[built.identity] = Exchanges(store, len(telling(built.identity.layout)))
        return self._kept[built.identity]


def telling(layout: RowLayout) -> range:
    """The layers that tell what tokens are about."""
    first = int(FIRST_LAYER * layout.n_layers)
    return range(first, max(first + 1, int(END_LAYER * layout.n_layers)))


def value_types(cache: CacheOptions, layout: RowLayout) -> list[str]:
    """The type of V in each of these layers."""
    kinds = cache.kinds[1]
    return [kinds if isinstance(kinds, str) else kinds[layer] for layer in telling(layout)]
