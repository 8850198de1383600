"""A device's memory where the mode changes while it runs: each mode has its own, inside the budget. On the emulated device."""

from contextlib import contextmanager

import numpy as np
import pytest
from support.contexts import Context, attached
from support.events import check
from support.planes import device_bytes

from edgekv._native import device_calls
from edgekv.common.enums import KvMode
from edgekv.common.errors import DoesNotFit
from edgekv.config import KvOptions

import llama_cpp

pytestmark = pytest.mark.usefixtures("emulator")

N_PROMPT = 704
"""Whole groups: tokens behind them come into the same cells again, and their sketches are none of the prompt's."""
OPTIONS = KvOptions(attention_device="emulated", exact_tokens=0, sample_budget=60, recent_tokens=32)


@pytest.fixture
def opened(synthetic):
    """`with opened(mode, kv_vram, ...)`: a context behind a prompt, its Runtime, and the GPU memory that the process has taken since."""
    path = synthetic("llama", n_layer=3, head_dim=64)

    @contextmanager
    def open_one(mode: str, kv_vram: int, **changes):
        before = device_bytes()[0]
        with attached(path, OPTIONS.with_(mode=mode, kv_vram=kv_vram, **changes), n_ctx=2048, n_seq=1, n_threads=1) as (context, run):
            context.decode([260 + i * 7 % 90 for i in range(500)], range(500), [0] * 500)
            context.decode([260 + i * 7 % 90 for i in range(500, N_PROMPT)], range(500, N_PROMPT), [0] * (N_PROMPT - 500))
            yield context, run, lambda: before - device_bytes()[0]

    return open_one


def fixed_bytes(run) -> int:
    return device_calls.plane(run._native_handle()).fixed_bytes


def answer(context: Context, n: int = 6) -> np.ndarray:
    """Logits of tokens behind the prompt, which then leave."""
    logits = [context.decode([270 + i % 7], [N_PROMPT + i], [0]) for i in range(n)]
    llama_cpp.llama_memory_seq_rm(context.memory, 0, N_PROMPT, -1)
    return np.stack(logits)


@pytest.fixture
def budget(opened) -> int:
    """GPU memory for a quarter of the pages in mode sparse."""
    with opened("sparse", 1 << 30) as (_, run, _):
        plane = device_calls.plane(run._native_handle())
        return plane.fixed_bytes + plane.n_slots_max // 4 * plane.slot_bytes


@pytest.mark.parametrize("modes", [["exact", "sparse"] * 2, ["sparse", "exact"] * 2], ids=["to sparse", "to exact"])
def test_what_changed_is_as_if_opened_so(opened, budget, modes):
    with opened(modes[-1], budget) as (context, run, _):
        expected = answer(context), run.memory(), run.tiers().n_slots
    with opened(modes[0], budget) as (context, run, taken):
        for mode in modes[1:]:
            answer(context)
            run.configure(run.options.with_(mode=mode))
            assert max(taken(), run.memory().device_bytes) <= budget
            logits = answer(context)
            assert max(taken(), run.memory().device_bytes) <= budget
            check(run)
        assert np.array_equal(logits, expected[0])
        assert (run.memory(), run.tiers().n_slots) == expected[1:]


def test_a_mode_without_room_is_refused_and_the_other_goes_on(opened):
    """In so short a context the work space of mode exact is the larger one."""
    small = 1 << 30
    for _ in range(2):  # with less memory there is one staging buffer, not two
        with opened("sparse", small) as (_, run, _):
            small, slot_bytes = fixed_bytes(run), run.tiers().slot_bytes
    small += 64 * slot_bytes
    with opened("sparse", small) as (context, run, taken):
        expected, memory = answer(context), run.memory()
        with pytest.raises(DoesNotFit, match="give more --kv-vram"):
            run.mode = "exact"
        assert run.mode is KvMode.SPARSE and run.memory() == memory and taken() <= small
        assert np.array_equal(answer(context), expected) and run.tiers().n_slots > 0
        check(run)
