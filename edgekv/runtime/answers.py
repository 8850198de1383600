"""What is told of an answer while its tokens come, and in its result."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any

from edgekv.common.reports import AnswerReport
from edgekv.runtime.runtime import Runtime

Answer = Generator[int, Sequence[int] | None, None]

ROUNDED_ALIKE = 17
"""Tokens from which on batches have the same kernels. Those of up to 4, and of up to 16, have others, which round otherwise."""


def first_to_read(n_prompt: int, n_batch: int, n_ubatch: int) -> int:
    """The token from which on a prompt is read again at the latest, so that its last ubatch is computed as if all of it were read."""
    return n_prompt - min(ROUNDED_ALIKE, (n_prompt - 1) % n_batch % n_ubatch + 1)


def followed(answer: Answer, n_prompt: int, run: Runtime) -> Answer:
    """The answer's tokens; `run.last` is its report, up to the newest one."""
    earlier, n_before, began = run.selection(), run.n_tokens, time.perf_counter()
    last = AnswerReport(0, select=lambda: run.selection().since(earlier))
    try:
        with run.reading_prompt():
            token = next(answer)
        last.n_prefilled, last.n_generated, last.prefill_seconds = run.n_tokens - n_before, 1, time.perf_counter() - began
        last.n_reused = max(0, n_prompt - last.n_prefilled)
        run.last = last
        while True:
            more = yield token
            began = time.perf_counter()
            token = answer.send(more)
            last.n_generated += 1
            last.decode_seconds += time.perf_counter() - began
    except StopIteration:
        return
    finally:
        if not run.closed:
            selected = last.select()
            last.select = lambda: selected  # what others read later is not this answer's


def with_report(result: Any, run: Runtime) -> Any:
    """A result of `Llama`, or its chunks, with the field `edgekv`, in the chunk that says why the answer ended."""
    if not isinstance(result, dict):
        return (with_report(chunk, run) if chunk["choices"][0]["finish_reason"] else chunk for chunk in result)
    return result if run.last is None else {**result, "edgekv": run.last.fields}
