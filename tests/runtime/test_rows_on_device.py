"""Mode sparse on a device whose arena does not hold all pages: single rows in most of it. On the emulated device."""

import numpy as np
import pytest
from support.contexts import Context, attached
from support.conversations import conversation
from support.planes import link_bytes

from edgekv._native import device_calls
from edgekv.config import KvOptions
from edgekv.runtime import wiring

pytestmark = pytest.mark.usefixtures("emulator")

SPARSE = {"attention_device": "emulated", "mode": "sparse", "exact_tokens": 0, "sample_budget": 60, "recent_tokens": 32}


def read_prompt(context: Context, n: int) -> None:
    for first in range(0, n, 500):
        end = min(n, first + 500)
        context.decode([260 + i * 7 % 90 for i in range(first, end)], range(first, end), [0] * (end - first))


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
