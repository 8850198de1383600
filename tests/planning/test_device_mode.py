"""The mode where nobody asked for one, on a GPU: by the plan's estimate and by depth."""

import pytest
from msgspec.structs import replace
from support.fake_gpus import CARD, GIB

from edgekv.common.enums import DeviceKind, KvMode
from edgekv.config import KvOptions
from edgekv.planning import device_mode, proven
from edgekv.planning.devices import Placement

KV = KvOptions(attention_device="cuda")
PLACED = Placement(DeviceKind.CUDA, 0, CARD)


@pytest.fixture
def model(header_file, monkeypatch):
    """Of a shape whose context is worth a thought, on a card that has passed."""
    monkeypatch.setattr(device_mode, "proven", lambda card: True)
    monkeypatch.setattr(device_mode, "available_bytes", lambda: 64 * GIB)
    return header_file("llama-3-8b")


@pytest.mark.parametrize(("n_ctx", "mode"), [(1024, "exact"), (4096, "exact"), (131_072, "sparse"), (None, "sparse")])
def test_the_estimate_decides_by_depth(gpus, model, n_ctx, mode):
    """An 8B at 128K on 12 GB: 14 of 17 GB would cross the link for each token."""
    gpus(CARD)
    assert device_mode.chosen_mode(PLACED, model, KV, n_ctx) is KvMode(mode)


def test_a_card_that_holds_all_is_exact_for_longer(gpus, model):
    """What sparse saves of the card's own memory is less than half of a token's time."""
    gpus(CARD)
    large = replace(CARD, total_bytes=80 * GIB, free_bytes=79 * GIB)
    modes = {n_ctx: device_mode.chosen_mode(Placement(DeviceKind.CUDA, 0, large), model, KV, n_ctx) for n_ctx in (16_384, 131_072)}
    assert modes == {16_384: KvMode.EXACT, 131_072: KvMode.SPARSE}


def test_without_rates_it_is_exact(gpus, model):
    gpus(CARD).rates = None
    assert device_mode.chosen_mode(PLACED, model, KV, 131_072) is KvMode.EXACT


def test_no_gpu_is_as_it_was(model):
    assert device_mode.chosen_mode(Placement(DeviceKind.HOST), model, KV, 131_072) is device_mode.measured_mode(Placement(DeviceKind.HOST))
    emulated = replace(CARD, kind=DeviceKind.EMULATED)
    assert device_mode.chosen_mode(Placement(DeviceKind.EMULATED, 0, emulated), model, KV, 131_072) is KvMode.EXACT


def test_the_mode_follows_the_verdict_on_this_card(gpus, model, monkeypatch, caplog):
    """Stock attention runs until the card has passed, and again with another driver; a line says what helps."""
    gpus(CARD)
    monkeypatch.setattr(device_mode, "proven", proven.proven)

    def said(card=CARD) -> tuple[KvMode, str]:
        caplog.clear()
        return device_mode.chosen_mode(Placement(DeviceKind.CUDA, 0, card), model, KV, 4096), caplog.text

    assert said()[0] is KvMode.OFF and "`edgekv doctor --gpu` (3 minutes) tests EdgeKV's on this card and turns it on" in said()[1]
    proven.keep(CARD, True)
    assert said() == (KvMode.EXACT, "")
    assert said(replace(CARD, driver=13010))[0] is KvMode.OFF
    proven.keep(CARD, False)
    assert said()[0] is KvMode.OFF and "found EdgeKV's wrong there on 20" in said()[1]
