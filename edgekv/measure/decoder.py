"""Feeds chosen tokens to a context at chosen positions and times each decode: llama_cpp's low-level API under `edgekv.Llama`."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from edgekv.common.errors import EdgeKVError
from edgekv.llama import Llama, windows_reach  # first: it puts llama_cpp on our libraries
from edgekv.measure import interrupts
from edgekv.runtime import attachments
from edgekv.runtime.runtime import Runtime

import llama_cpp

_SPARE = 1
"""The sequence that states are loaded into."""

_STATE_HEAD = 8
"""Bytes before the data of a saved sequence: a magic number and the sequence."""

_BESIDES_ROWS = llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


class Snapshot(Struct, frozen=True):
    """The cells of a context in host memory, as llama.cpp saves them."""

    position: int
    state: ctypes.Array


class Decoder:
    """One sequence of a context, decoded token by token; `position` is the next token's."""

    def __init__(self, llama: Llama, ctx: llama_cpp.llama_context_p | None = None):
        """`ctx`: a context of that model which is the decoder's own, and freed with it; None: the one of `llama`."""
        self.llama = llama
        self.position = 0
        self._ctx = llama.ctx if ctx is None else ctx
        self._owns_ctx = ctx is not None
        self._memory = llama_cpp.llama_get_memory(self._ctx)
        self._n_vocab = llama.n_vocab()
        self._capacity = llama.n_batch
        self.window = llama_cpp.llama_model_n_swa(llama.model)
        """Tokens that sliding layers attend; 0: none slides."""
        self._marks: dict[int, np.ndarray] = {}
        self._batch = llama_cpp.llama_batch_init(self._capacity, 0, 1)

    def beside(self, n_ctx: int, flash_attn: bool, takes_states: bool = False) -> Decoder:
        """A decoder of a second context on the same weights, with the same cache types. EdgeKV is not attached to it: it runs stock
        whatever mode the first one is in. takes_states: `append` works. Raises EdgeKVError if llama.cpp cannot create it."""
        params = type(self.llama.context_params).from_buffer_copy(self.llama.context_params)
        params.n_ctx = n_ctx
        if takes_states:
            params.n_seq_max, params.kv_unified = 2, True
        params.flash_attn_type = (llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash_attn else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED)
        ctx = llama_cpp.llama_init_from_model(self.llama.model, params)
        if not ctx:
            raise EdgeKVError(f"llama.cpp could not create a second context of {n_ctx} tokens")
        return Decoder(self.llama, ctx)

    @property
    def kv(self) -> Runtime | None:
        """The Runtime of this context; None if EdgeKV is not attached to it."""
        return attachments.find(ctypes.cast(self._ctx, ctypes.c_void_p).value or 0)

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        if self._owns_ctx:
            llama_cpp.llama_free(self._ctx)

    @property
    def n_threads(self) -> int:
        """Threads that decode a token."""
        return llama_cpp.llama_n_threads(self._ctx)

    def set_threads(self, n_threads: int) -> None:
        llama_cpp.llama_set_n_threads(self._ctx, n_threads, n_threads)

    def decode(self, tokens: Sequence[int]) -> float:
        """Decode up to `n_batch` tokens in one call and return its seconds. Only the last one gets logits."""
        n = len(tokens)
        if not 0 < n <= self._capacity:
            raise ValueError(f"{n} tokens for a batch of {self._capacity}")
        batch = self._batch
        batch.n_tokens = n
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = self.position + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = i == n - 1
        start = time.perf_counter()
        status = llama_cpp.llama_decode(self._ctx, batch)
        llama_cpp.llama_synchronize(self._ctx)
        seconds = time.perf_counter() - start
        if status != 0:
            raise EdgeKVError(f"llama_decode failed with status {status} for {n} tokens at position {self.position}")
        self.position += n
        interrupts.check()
        return seconds

    def read(self, tokens: Sequence[int], n_batch: int) -> float:
        """Decode `tokens` in batches and return the seconds of all."""
        return sum(self.decode(tokens[first : first + n_batch]) for first in range(0, len(tokens), n_batch))

    def logits(self) -> np.ndarray:
        """A copy of the last decoded token's logits, float32 [n_vocab]."""
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self._ctx, -1), (self._n_vocab,)).copy()

    @property
    def keeps_more(self) -> bool:
        """Whether the context keeps windows or recurrent states besides rows: then it goes back only to marked positions, or to 0."""
        model = self.llama.model
        return self.window > 0 or llama_cpp.llama_model_is_hybrid(model) or llama_cpp.llama_model_is_recurrent(model)

    def mark(self) -> None:
        """Let `rewind` come back here: save the sequence's windows and states."""
        if self.keeps_more and self.position and self.position not in self._marks:
            self._marks[self.position] = self._besides_rows(0)

    def rewind(self, position: int) -> None:
        """Forget every token from `position` on. A mark is put back even if no token follows it: cells then lie as after any other rewind, and
        sums are the same. Raises EdgeKVError if the model keeps more than rows, and the position is neither marked nor within reach of
        its window."""
        mark = self._marks.get(position)
        if position == self.position and mark is None:
            return
        if mark is not None:
            self._take(mark, 0, _BESIDES_ROWS)
        if mark is None and not windows_reach(self.llama.model, self._ctx, position) or not llama_cpp.llama_memory_seq_rm(self._memory, 0, position, -1):
            raise EdgeKVError(f"this model's windows or states of position {position} are gone, so it cannot go back there")
        self._marks = {marked: state for marked, state in self._marks.items() if 0 < marked <= position}
        self.position = position

    def shift(self, first: int, n: int) -> None:
        """Forget n tokens from position `first` on, and move the later ones up. Raises EdgeKVError if the cache cannot."""
        if not llama_cpp.llama_memory_seq_rm(self._memory, 0, first, first + n):
            raise EdgeKVError(f"this model's cache cannot forget the tokens at positions {first} to {first + n - 1} alone")
        llama_cpp.llama_memory_seq_add(self._memory, 0, first + n, -1, -n)
        self.position -= n

    def _besides_rows(self, sequence: int) -> np.ndarray:
        """uint8: windows and states, as llama.cpp saves them."""
        state = np.empty(llama_cpp.llama_state_seq_get_size_ext(self._ctx, sequence, _BESIDES_ROWS), np.uint8)
        if llama_cpp.llama_state_seq_get_data_ext(self._ctx, _bytes(state), state.nbytes, sequence, _BESIDES_ROWS) != state.nbytes:
            raise EdgeKVError("llama.cpp could not save what a sequence keeps besides rows")
        return state

    def _take(self, state: np.ndarray, sequence: int, flags: int = 0) -> None:
        if llama_cpp.llama_state_seq_set_data_ext(self._ctx, _bytes(state), state.nbytes, sequence, flags) != state.nbytes:
            raise EdgeKVError("llama.cpp could not take the state of a sequence")

    def append(self, state: np.ndarray, n_tokens: int) -> None:
        """Put the next `n_tokens` into the cache as a saved sequence has them (uint8, as llama_state_seq_get_data writes it). It comes in
        as a sequence of its own, because a sequence is emptied before a state is loaded into it. If the model keeps more than rows, these
        are only rows: tokens decoded after them have no window and no state."""
        if self.keeps_more:
            state = np.concatenate([state, self._besides_rows(_SPARE)[_STATE_HEAD:]])
        self._take(state, _SPARE)
        llama_cpp.llama_memory_seq_cp(self._memory, _SPARE, 0, -1, -1)
        llama_cpp.llama_memory_seq_rm(self._memory, _SPARE, -1, -1)
        self.position += n_tokens

    def snapshot(self) -> Snapshot:
        """All cells in use, with K and V. For modes that drop what a rewind cannot bring back."""
        state = (ctypes.c_uint8 * llama_cpp.llama_state_get_size(self._ctx))()
        n_bytes = llama_cpp.llama_state_get_data(self._ctx, state, len(state))
        if not n_bytes:
            raise EdgeKVError("llama.cpp could not save the state of this context")
        return Snapshot(self.position, (ctypes.c_uint8 * n_bytes).from_buffer(state))

    def restore(self, snapshot: Snapshot) -> None:
        """Put the context back to where the snapshot was taken, whatever has been decoded or dropped since. Logits are those of
        the next decode."""
        n_bytes = len(snapshot.state)
        if llama_cpp.llama_state_set_data(self._ctx, snapshot.state, n_bytes) != n_bytes:
            raise EdgeKVError("llama.cpp could not put a saved state back")
        self.position = snapshot.position


def _bytes(state: np.ndarray) -> ctypes._Pointer:
    return ctypes.cast(state.ctypes.data, ctypes.POINTER(ctypes.c_uint8))
