"""Types of K and V by layer: their names, what they cost together, and what excludes them."""

import pytest

from edgekv.common.enums import CacheType
from edgekv.common.errors import ConfigError
from edgekv.config import CacheOptions, KvOptions, LayerTypes, TypeErrors, parse_token_bytes

F16, Q8, Q4 = CacheType.F16, CacheType.Q8_0, CacheType.Q4_0
TYPES = LayerTypes((Q8, Q4, Q4), (Q4, Q4, Q8))
ERRORS = TypeErrors(0.004, {"q8_0/q8_0": 0.004, "q8_0/q4_0": 0.010, "q4_0/q4_0": 0.050}, (0.01, 0.02, 0.01), (0.001, 0.0, 0.002))


def test_types_by_layer_have_names():
    assert str(TYPES) == "K q8_0 in 1 of 3 layers, V in 1, else q4_0" and TYPES.codes == ("844", "448")
    cache = CacheOptions(type_k="q4_0", type_v="q4_0", kv_bytes=100, layer_types=TYPES)
    assert cache.kinds == (("q8_0", "q4_0", "q4_0"), ("q4_0", "q4_0", "q8_0"))
    assert cache.names == ("844", "448") and cache.types_text == str(TYPES) and not cache.lacks_types
    plain = CacheOptions(type_k="q8_0")
    assert plain.kinds == plain.names == ("q8_0", "f16") and plain.types_text == "q8_0/f16"


@pytest.mark.parametrize(("k", "v"), [((Q8,), (Q8, Q4)), ((F16,), (Q8,)), ((Q8,), (F16,))])
def test_layers_choose_from_two_types(k, v):
    with pytest.raises(ValueError, match="each layer has q8_0 or q4_0"):
        LayerTypes(k, v)


def test_costs_add_up_to_those_of_all_layers():
    assert ERRORS.coarse(False) == pytest.approx(0.040) and ERRORS.coarse(True) == pytest.approx(0.006)
    assert ERRORS.estimate(LayerTypes((Q8,) * 3, (Q8,) * 3)) == pytest.approx(0.004)
    assert ERRORS.estimate(LayerTypes((Q4,) * 3, (Q4,) * 3)) == pytest.approx(0.050)
    assert ERRORS.estimate(TYPES) == pytest.approx(0.004 + 0.040 * 3 / 4 + 0.006 / 3)
    assert TypeErrors(0.0, {}).estimate(LayerTypes((), ())) == 0.0


@pytest.mark.parametrize("bad", [{"noise": -1.0}, {"noise": float("nan")}, {"k": (0.1,)}, {"whole": {"q4_0/q4_0": -0.1}}])
def test_divergences_are_numbers_from_0_on(bad):
    with pytest.raises(ValueError, match="divergences"):
        TypeErrors(**{"noise": 0.1, "whole": {}, **bad})


def test_bytes_and_types_exclude_each_other(monkeypatch):
    for name in ("type_k", "type_v"):
        with pytest.raises(ConfigError, match=f"kv_bytes chooses types for each layer, and {name} is one for all"):
            KvOptions(kv_bytes=4096, **{name: "q8_0"})
    chosen = KvOptions(kv_bytes=4096).with_(type_k="q4_0", type_v="q4_0", layer_types=TYPES)
    assert chosen.cache.kv_bytes == 4096 and chosen.with_(mode="sparse").cache == chosen.cache
    monkeypatch.setenv("EDGEKV_KV_BYTES", "24KiB")
    monkeypatch.setenv("EDGEKV_CACHE_TYPE_K", "q8_0")
    assert KvOptions.from_env().cache == CacheOptions(kv_bytes=24 << 10), "both variables: the bytes count"
    assert KvOptions.from_env(type_v="q8_0").cache == CacheOptions(type_k="q8_0", type_v="q8_0"), "what is named counts more"


def test_bytes_are_written_with_a_unit_or_auto():
    assert parse_token_bytes("24KiB") == 24 << 10 and parse_token_bytes("auto") == 0
    for bad in ("0", "many"):
        with pytest.raises(ConfigError, match=f"the size of K and V of a token is '{bad}'; write bytes such as"):
            parse_token_bytes(bad)


@pytest.mark.parametrize(("bad", "said"), [
    ({"kv_bytes": -1}, "must be a number of bytes a token"), ({"kv_bytes": "x"}, "must be a number of bytes a token"),
    ({"layer_types": "q8_0"}, "it must be what edgekv.with_layer_types chose"),
])
def test_values_are_checked(bad, said):
    with pytest.raises(ConfigError, match=said):
        CacheOptions(**bad)
