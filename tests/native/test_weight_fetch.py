"""How kernels fetch weights: what is fastest on the machine is measured once, and the kernels are told. That it changes no result is shown by
native/tests/host/test_products.cpp."""

import json

import pytest

from edgekv import _native
from edgekv._native import kept_choice

_native.prepare()

from edgekv._native import _core, core, weight_fetch  # noqa: E402 (the libraries must be in place first)

MULTIPLIES = core.isa() not in ("portable", "neon")


def test_the_fastest_is_measured_once_and_kept(tmp_path):
    path, asked = tmp_path / "cache" / "fetch.json", []

    def times(**seconds):
        return lambda: asked.append(1) or seconds

    assert kept_choice.choose(path, "rows", "a", ["a", "b"], times(a=1.0, b=0.5)) == "b"
    assert kept_choice.choose(path, "rows", "a", ["a", "b"], times(a=0.1, b=0.5)) == "b" and len(asked) == 1, "once made, the choice stays"
    assert kept_choice.choose(path, "others", "a", ["a", "b"], times(a=1.0, b=0.95)) == "a", "what may be noise changes nothing"
    assert sorted(json.loads(path.read_text()).values()) == ["a", "b"]


class Library:
    """The library, with contexts that are the bytes of their model's weights."""

    def edgekv_weight_bytes(self, handle: int) -> int:
        return handle

    def __getattr__(self, name: str):
        return getattr(_core.lib, name)


@pytest.mark.skipif(not MULTIPLIES, reason="llama.cpp's kernels multiply weights here")
def test_each_order_is_measured_and_what_is_chosen_is_used(tmp_path, monkeypatch):
    """The first model that is large enough: each order of rows once, and the way that is kept is the one that the kernels are told."""
    used = {}
    monkeypatch.setattr(weight_fetch, "_chosen", {})
    monkeypatch.setattr(weight_fetch, "use", used.__setitem__)
    monkeypatch.setattr(weight_fetch, "choice_file", lambda: tmp_path / "fetch.json")
    monkeypatch.setattr(weight_fetch, "lib", Library())
    weight_fetch.prepare(weight_fetch.LEAST_BYTES - 1)
    assert not used and not list(tmp_path.iterdir()), "a small model asks for nothing"
    weight_fetch.prepare(weight_fetch.LEAST_BYTES)
    assert list(used) == weight_fetch.walks() and used == weight_fetch._chosen
    assert sorted(used.values()) == sorted(json.loads((tmp_path / "fetch.json").read_text()).values())


@pytest.mark.skipif(not MULTIPLIES, reason="llama.cpp's kernels multiply weights here")
def test_every_way_can_be_timed_and_used():
    for walk in weight_fetch.walks():
        assert all(0 < seconds < 60 for seconds in weight_fetch.time_ways(walk).values())
        for way in weight_fetch.WAYS:
            weight_fetch.use(walk, way)
        weight_fetch.use(walk, weight_fetch._chosen.get(walk, next(iter(weight_fetch.WAYS))))
