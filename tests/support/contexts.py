"""A bare llama_context through llama_cpp's low-level functions: several sequences, unified or split streams, no Llama around it."""

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgekv._native import native_arrays, paging
from edgekv.arrays.move import MOVE
from edgekv.config import KvOptions
from edgekv.runtime import attachments
from edgekv.runtime.runtime import Runtime

import llama_cpp


class Context:
    """A context of `n_seq` sequences; decodes tokens of any sequence at any position."""

    def __init__(self, path: Path, n_ctx: int = 512, n_seq: int = 4, unified: bool = True, n_threads: int = 2,
                 model_params: dict[str, Any] | None = None, **types: Any):
        self.unified = unified
        llama_cpp.llama_backend_init()
        loading = llama_cpp.llama_model_default_params()
        for name, value in (model_params or {}).items():
            setattr(loading, name, value)
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), loading)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = n_ctx, 512, 512, n_seq
        params.n_threads = params.n_threads_batch = n_threads
        params.kv_unified = unified
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        for name, value in types.items():
            setattr(params, name, value)
        self.ctx = llama_cpp.llama_init_from_model(self.model, params)
        self.memory = llama_cpp.llama_get_memory(self.ctx)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    @property
    def address(self) -> int:
        return ctypes.cast(self.ctx, ctypes.c_void_p).value

    def status(self, tokens: Sequence[int], positions: Sequence[int], sequences: Sequence[Sequence[int]]) -> int:
        """What llama_decode says of tokens, each in one sequence or several: 0 where they were decoded, 1 where they find no cells or no memory."""
        batch = llama_cpp.llama_batch_init(len(tokens), 0, max(map(len, sequences)))
        batch.n_tokens = len(tokens)
        for i, (token, position, those) in enumerate(zip(tokens, positions, sequences)):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), int(position), len(those), 1
            for j, sequence in enumerate(those):
                batch.seq_id[i][j] = int(sequence)
        found = llama_cpp.llama_decode(self.ctx, batch)
        llama_cpp.llama_batch_free(batch)
        return found

    def decode(self, tokens: Sequence[int], positions: Sequence[int], sequences: Sequence[int]) -> np.ndarray:
        """Decode in one call and return the logits of every token, float32 [token, n_vocab]."""
        status = self.status(tokens, positions, [[sequence] for sequence in sequences])
        assert status == 0, f"llama_decode returned {status}"
        return np.stack([np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.ctx, i), (self.n_vocab,)).copy() for i in range(len(tokens))])

    def read(self, tokens: np.ndarray, first: int, end: int, sequence: int = 0, most: int = 512) -> np.ndarray:
        """The same of tokens[first:end], each at its own place, at most so many in a call."""
        parts = [range(at, min(at + most, end)) for at in range(first, end, most)]
        return np.concatenate([np.empty((0, self.n_vocab), np.float32), *(self.decode(tokens[part], part, [sequence] * len(part)) for part in parts)])

    def save(self, sequence: int | None = None) -> bytes:
        """The state of one sequence; None: of the whole context."""
        if sequence is None:
            size = llama_cpp.llama_state_get_size(self.ctx)
            buffer = (ctypes.c_uint8 * size)()
            return bytes(buffer[: llama_cpp.llama_state_get_data(self.ctx, buffer, size)])
        size = llama_cpp.llama_state_seq_get_size(self.ctx, sequence)
        buffer = (ctypes.c_uint8 * size)()
        return bytes(buffer[: llama_cpp.llama_state_seq_get_data(self.ctx, buffer, size, sequence)])

    def load(self, state: bytes, sequence: int | None = None) -> None:
        buffer = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        if sequence is None:
            assert llama_cpp.llama_state_set_data(self.ctx, buffer, len(state)) == len(state), "the state does not load"
        else:
            assert llama_cpp.llama_state_seq_set_data(self.ctx, buffer, len(state), sequence) == len(state), f"sequence {sequence} does not load"

    def close(self) -> None:
        llama_cpp.llama_free(self.ctx)
        llama_cpp.llama_model_free(self.model)


@contextlib.contextmanager
def attached(path: Path, options: KvOptions = KvOptions(), **arguments) -> Iterator[tuple[Context, Runtime]]:
    """A context created under `options`, and the Runtime that the context hook gave it."""
    with attachments.defaults(options):
        context = Context(path, **arguments)
    try:
        yield context, attachments.find(context.address)
    finally:
        context.close()


def n_hooked(run: Runtime) -> int:
    """Ubatches so far that nodes of ours attended, those of the present run included."""
    seen = native_arrays.run_so_far(run._native_handle())
    return run.stats.n_ubatches_hooked + (0 if seen.ends_run else seen.n_ubatches_hooked)


def dropped(run: Runtime) -> np.ndarray:
    return np.array(paging.page_arrays(run._native_handle()).dropped)


def drop(run: Runtime, mask: np.ndarray) -> None:
    """Drop the pages of bool [row, head, page], as a decision would."""
    moves = np.zeros(int(mask.sum()), MOVE)
    moves["layer"], moves["head"], moves["page"] = np.nonzero(mask)
    paging.drop_pages(run._native_handle(), moves)
