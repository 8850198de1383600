"""A device whose arena does not hold all pages: in mode sparse single rows in most of it, and where the mode changes each has its own, inside the budget.
On the emulated device."""

from contextlib import contextmanager

import numpy as np
import pytest
from support.contexts import Context, attached
from support.conversations import conversation
from support.events import check
from support.planes import device_bytes, link_bytes

from edgekv._native import device_calls
from edgekv.common.enums import KvMode
from edgekv.common.errors import DoesNotFit
from edgekv.config import KvOptions
from edgekv.runtime import wiring

import llama_cpp

pytestmark = pytest.mark.usefixtures("emulator")

SPARSE = {"attention_device": "emulated", "mode": "sparse", "exact_tokens": 0, "sample_budget": 60, "recent_tokens": 32}


def read_prompt(context: Context, n: int) -> None:
    context.read(260 + np.arange(n) * 7 % 90, 0, n, most=500)


@pytest.fixture
def partial(synthetic):
    """A model, and options with GPU memory for a quarter of its pages."""
    path, arguments = synthetic("llama", n_layer=3, head_dim=64), {"n_ctx": 2048, "n_seq": 4, "n_threads": 1}

    def options(unified: bool = True, kind: int = 1, **changes) -> KvOptions:
        kv = KvOptions(**SPARSE, **changes)
        with attached(path, kv.with_(kv_vram=1 << 30), unified=unified, type_k=kind, type_v=kind, **arguments) as (_, run):
            plane, pages = device_calls.plane(run._native_handle()), run.tiers()
            return kv.with_(kv_vram=plane.fixed_bytes + plane.n_slots_max // 4 * pages.slot_bytes)

    return path, arguments, options


@pytest.mark.parametrize("unified", [True, False], ids=["one stream", "streams"])
@pytest.mark.parametrize("kind", [1, 2], ids=["f16", "q4_0"])
def test_the_logits_are_those_of_pages_alone(partial, monkeypatch, kind, unified):
    """Rows are removed, replaced, copied, shifted: what is read is home's, wherever it lies."""
    path, arguments, options = partial
    found, seen = [], []
    for share in (0.0, wiring.ROWS_SHARE, 1.0):
        monkeypatch.setattr(wiring, "ROWS_SHARE", share)
        with attached(path, options(unified, kind), unified=unified, type_k=kind, type_v=kind, **arguments) as (context, run):
            before = link_bytes()
            found.append(conversation(context))
            seen.append((run.selection(), link_bytes() - before))
    for other in found[1:]:
        assert all((a == b).all() for a, b in zip(found[0], other, strict=True))
    (pages, by_pages), (both, by_both), (rows, by_rows) = seen
    assert pages.attended < 0.9, "rows were drawn"
    assert pages.attended == both.attended == rows.attended
    assert both.hit_rate > pages.hit_rate and rows.hit_rate > 0.2, seen
    assert by_both < by_pages, "bytes over the link"


def test_rows_that_were_read_lately_stay(partial):
    """Where many tokens follow each other, most rows have been read before."""
    path, arguments, options = partial
    with attached(path, options(policy="none"), **arguments) as (context, run):
        read_prompt(context, 1500)
        rates = []
        for i in range(1500, 1530):
            before = run.selection()
            context.decode([270 + i % 7], [i], [0])
            rates.append(run.selection().since(before).hit_rate)
        assert 0.6 < np.median(rates[-10:]) > rates[0] + 0.1, rates


def test_what_is_kept_follows_the_options(partial):
    """Rows in mode sparse, where not all pages fit; else pages alone, as with less memory behind `give_back`."""
    path, arguments, options = partial
    with attached(path, options(), **arguments) as (context, run):
        read_prompt(context, 700)
        most = device_calls.plane(run._native_handle()).n_slots_max

        def read(first: int) -> None:
            for i in range(first, first + 6):
                context.decode([270 + i % 7], [i], [0])

        def slots() -> int:
            return run.tiers().n_slots

        assert slots() == most - round(wiring.ROWS_SHARE * most) > 0
        read(700)
        for changes, expected in (({"mode": "exact"}, None), ({"mode": "sparse"}, slots()),
                                  ({"kv_budget": 40 * run.tiers().slot_bytes}, 10), ({"kv_budget": None}, slots())):
            run.configure(run.options.with_(**changes))
            read(int(run.cells.stream().positions.max()) + 1)
            assert slots() == (expected or device_calls.plane(run._native_handle()).n_slots_max), changes
        run.mode = "exact"
        assert slots() == device_calls.plane(run._native_handle()).n_slots_max != most, "as much as this mode leaves"
        run.mode = "sparse"
        run.give_back(run.tiers().slot_bytes * (most // 2))
        left = device_calls.plane(run._native_handle()).n_slots_max
        assert 0 < left < most and slots() == left - round(wiring.ROWS_SHARE * left)
        read(int(run.cells.stream().positions.max()) + 1)
    with attached(path, KvOptions(**SPARSE, kv_vram=1 << 30), **arguments) as (_, run):
        assert run.tiers().n_slots == device_calls.plane(run._native_handle()).n_slots_max, "all pages fit"

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
            read_prompt(context, N_PROMPT)
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
