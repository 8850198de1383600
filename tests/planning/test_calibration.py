"""Rates are measured once and kept, whatever the file looks like; conclusions from them are arithmetic."""

import json
import math

import pytest
from msgspec.structs import replace
from support.fake_gpus import CARD, RATES

from edgekv.common.enums import DeviceKind
from edgekv.common.errors import NativeError
from edgekv.planning.device import break_even_uses, calibrate, kept_rates, on_host_slowdown, pinning_refused, ships

CUDA = DeviceKind.CUDA
SECOND = replace(CARD, index=1, name="GeForce RTX 3060")


def test_measured_once(gpus):
    machine = gpus(CARD)
    assert calibrate(CUDA) == RATES and calibrate(CUDA) == RATES and machine.n_measured == 1
    assert calibrate(CUDA, again=True) == RATES and machine.n_measured == 2
    assert json.loads(kept_rates().path.read_text())["cuda:0"]["rates"]["vram"] == 450e9


@pytest.mark.parametrize("change", [{"name": "another card"}, {"driver": 13010}, {"runtime": 12080}, {"arch": 90}], ids=str)
def test_measured_again_when_something_changed(gpus, change):
    machine = gpus(CARD)
    calibrate(CUDA)
    machine.change(**change)
    machine.rates = replace(RATES, vram=9e11)
    assert calibrate(CUDA).vram == 9e11 and calibrate(CUDA).vram == 9e11 and machine.n_measured == 2


def test_measured_again_for_another_version(gpus, monkeypatch):
    machine = gpus(CARD)
    calibrate(CUDA)
    monkeypatch.setattr("edgekv.__version__", "99.0")
    calibrate(CUDA)
    assert machine.n_measured == 2


def test_each_device_has_its_own(gpus):
    machine = gpus(CARD, SECOND)
    calibrate(CUDA, 0)
    machine.rates = replace(RATES, vram=1e11)
    assert calibrate(CUDA, 1).vram == 1e11
    assert calibrate(CUDA, 0) == RATES and calibrate(CUDA, 1).vram == 1e11 and machine.n_measured == 2


DAMAGE = ["", "{", "[]", "null", '{"cuda:0": 1}', '{"cuda:0": {"key": 1}}', "\0\1\2", b"\xff\xfe\xff", "RATES=null", "RATES={}",
          'RATES={"vram": 1.0}', "RATES=zeros", "RATES=text", "RATES=nan"]


@pytest.mark.parametrize("content", DAMAGE, ids=repr)
def test_a_damaged_file_is_measured_anew(gpus, content):
    machine = gpus(CARD)
    calibrate(CUDA)
    if isinstance(content, str) and content.startswith("RATES="):
        whole = json.loads(kept_rates().path.read_text())
        made = {"zeros": dict.fromkeys(RATES.__struct_fields__, 0.0), "text": dict.fromkeys(RATES.__struct_fields__, "fast"),
                "nan": dict.fromkeys(RATES.__struct_fields__, math.nan)}
        name = content.removeprefix("RATES=")
        whole["cuda:0"]["rates"] = made[name] if name in made else json.loads(name)
        content = json.dumps(whole)
    kept_rates().path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert calibrate(CUDA) == RATES and machine.n_measured == 2
    assert calibrate(CUDA) == RATES and machine.n_measured == 2, "and the file is whole again"


def test_a_folder_that_cannot_be_written(gpus, tmp_path, caplog):
    machine = gpus(CARD)
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert calibrate(CUDA) == RATES and calibrate(CUDA) == RATES and machine.n_measured == 2
    assert "cannot be kept" in caplog.text


def test_nothing_is_kept_of_a_failure(gpus):
    machine = gpus(CARD)
    machine.rates = None
    with pytest.raises(NativeError, match="lost"):
        calibrate(CUDA)
    assert not kept_rates().path.exists()


PAGE = 8192


def test_break_even():
    """By hand: 8 KiB over 22 GB/s take 0.3724 us, on the card 0.0182 us, the launch 5 us / 128."""
    link, card, launch = PAGE / 22e9, PAGE / 450e9, 5e-6 / 128
    assert break_even_uses(PAGE, RATES) == pytest.approx((link + card + launch) / (link - card))
    assert not ships(PAGE, RATES, 1) and ships(PAGE, RATES, 2)
    slow = replace(RATES, launch_us=500.0)
    assert not ships(PAGE, slow, 2), "a slow launch has to be earned first"
    assert break_even_uses(64 << 20, RATES) < break_even_uses(PAGE, RATES)


@pytest.mark.parametrize("link", [450e9, 900e9])
def test_a_link_as_fast_as_the_memory_never_ships(link):
    rates = replace(RATES, link_gather=link)
    assert break_even_uses(PAGE, rates) == math.inf and not ships(PAGE, rates, 1e9)


def test_the_cost_of_a_refused_pin():
    assert on_host_slowdown(RATES) == pytest.approx(RATES.vram / RATES.dram) and on_host_slowdown(replace(RATES, dram=1e12)) == 1.0
    sentence = pinning_refused("the system refused", RATES)
    assert sentence.startswith("the system refused: attention runs on the processor") and f"{on_host_slowdown(RATES):.0f}x slower" in sentence
    assert "slower" not in pinning_refused("the system refused")
