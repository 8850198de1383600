"""Contexts with tokens whose rows are held, and what lies in their cells."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from support.contexts import attached

from edgekv._native.token_rows import HeldTokens
from edgekv.config import KvOptions

import llama_cpp

N, BLOCK = 1111, 256


@contextmanager
def filled(synthetic, n: int = N, **arguments) -> Iterator[tuple]:
    """A context of two sequences, the first with n tokens, and its Runtime. What a test holds is released before the context goes."""
    with attached(synthetic("llama", dtype="f32", n_head_kv=4), KvOptions(mode="exact"),
                  **{"n_ctx": 4096, "n_seq": 2, "unified": False} | arguments) as (context, run):
        read(context, 0, n)
        held, hold = list[HeldTokens](), run.tokens.hold
        run.tokens.hold = lambda *of: held.append(hold(*of)) or held[-1]
        try:
            yield context, run
        finally:
            for one in held:
                one.release()


def read(context, first: int, end: int, seq: int = 0) -> None:
    context.read(np.random.default_rng(7).integers(260, 320, end), first, end, seq)


def hold_blocks(run, n: int = N, seq: int = 0, first: int = 0) -> list[HeldTokens]:
    """Of 256 tokens each, and the rest."""
    cells = run.tokens.cells_of(seq, n)
    return [run.tokens.hold(seq, cells[at : at + BLOCK]) for at in range(first, n, BLOCK)]


def n_bytes(run, n: int) -> int:
    return sum(map(sum, run.tokens.row_bytes())) * n


def rows(run, held: HeldTokens, n: int) -> bytes:
    return held.read(range(run.tokens.n_layers()), n_bytes(run, n)).tobytes()


def sizes(first: int = 0, n: int = N) -> list[int]:
    return [min(BLOCK, n - at) for at in range(first, n, BLOCK)]


def all_rows(run, held: list[HeldTokens], first: int = 0, n: int = N) -> list[bytes]:
    return [rows(run, one, size) for one, size in zip(held, sizes(first, n), strict=True)]


def in_cells(run, seq: int, n: int, first: int = 0) -> list[bytes]:
    cells = run.tokens.cells_of(seq, n)
    return [run.tokens.read(seq, cells[at : at + BLOCK], n_bytes(run, min(BLOCK, n - at))).tobytes() for at in range(first, n, BLOCK)]


def leave(context, seq: int = 0, first: int = 0, end: int = -1) -> None:
    assert llama_cpp.llama_memory_seq_rm(context.memory, seq, first, end)


def back(run, held: list[HeldTokens], seq: int = 0, first: int = 0, n: int = N) -> list[bool]:
    """Put the rows into cells of a sequence that ends at its token `first`."""
    cells = run.tokens.place(seq, first, np.zeros(n - first, np.uint8))
    return run.tokens.unpark(seq, held, np.split(cells, np.cumsum(sizes(first, n))[:-1]))
