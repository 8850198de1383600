"""One conversation with everything that happens to cells, to be compared bit by bit between caches that must not differ."""

import numpy as np
from support.contexts import Context

import llama_cpp


def conversation(context: Context, between=lambda: None) -> list[np.ndarray]:
    """Logits of prompts, single tokens, two sequences, a removal behind which other tokens follow, a copy and a shift; `between` runs before each of them.
    The context has room for 1,000 tokens and four sequences."""
    found = []

    def read(first: int, n: int, sequence: int = 0, step: int = 7) -> None:
        between()
        found.append(context.decode([260 + i * step % 90 for i in range(first, first + n)], range(first, first + n), [sequence] * n))

    read(0, 400)
    for i in range(400, 406):
        read(i, 1)
    read(0, 70, sequence=1)
    read(406, 12)
    llama_cpp.llama_memory_seq_rm(context.memory, 0, 300, -1)
    read(300, 5, step=11)
    llama_cpp.llama_memory_seq_cp(context.memory, 0, 2, -1, -1)
    read(305, 1, sequence=2)
    read(305, 120, step=11)  # the groups fill up again, with other tokens
    for i in range(425, 430):
        read(i, 1)
    llama_cpp.llama_memory_seq_rm(context.memory, 0, 10, 60)
    llama_cpp.llama_memory_seq_add(context.memory, 0, 60, -1, -50)
    for i in range(380, 384):
        read(i, 1)
    llama_cpp.llama_memory_clear(context.memory, True)
    read(0, 140, step=13)
    read(140, 1)
    return found
