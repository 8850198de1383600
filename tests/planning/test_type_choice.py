"""The choice of types by layer under a bound, and the words about what types cost."""

import pytest
from msgspec.structs import replace

from edgekv.common.enums import CacheType
from edgekv.common.errors import ConfigError
from edgekv.config import CacheOptions, KvOptions, TypeErrors
from edgekv.models import geometry
from edgekv.planning.type_choice import least_near, with_types
from edgekv.planning.type_costs import type_cost

WHOLE = {"q8_0/q8_0": 0.004, "q8_0/q4_0": 0.010, "q4_0/q4_0": 0.050}


@pytest.fixture
def model(synthetic):
    """Six layers of two KV heads of 64: 2 * 64 * 34 / 32 bytes of K in q8_0, 2 * 64 * 18 / 32 in q4_0."""
    return geometry(synthetic(n_layer=6, n_head=4, n_head_kv=2, head_dim=64))


def costs(k, v=(0.001,) * 6):
    return TypeErrors(0.004, WHOLE, tuple(k), tuple(v))


def chosen(model, n_bytes, errors):
    kv = with_types(model, KvOptions(kv_bytes=n_bytes), errors)
    assert model.kv_bytes_per_token(*kv.cache.kinds) <= n_bytes and kv.cache.kv_bytes == n_bytes
    return kv.cache


def test_bytes_go_where_they_gain_most(model):
    least, finer = model.kv_bytes_per_token("q4_0", "q4_0"), 2 * 64 * (34 - 18) // 32
    errors = costs((0.001, 0.020, 0.001, 0.010, 0.001, 0.001))
    assert chosen(model, least, errors).layer_types.codes == ("444444", "444444")
    assert chosen(model, least + finer - 1, errors).layer_types.codes == ("444444", "444444")
    assert chosen(model, least + finer, errors).layer_types.codes == ("484444", "444444")
    assert chosen(model, least + 2 * finer, errors).layer_types.codes == ("484844", "444444")
    loud = costs((0.001,) * 6, (0.0, 0.0, 0.0, 0.0, 0.5, 0.0))
    assert chosen(model, least + finer, replace(loud, whole={**WHOLE, "q8_0/q4_0": 0.045})).layer_types.codes == ("444444", "444484")
    assert chosen(model, model.kv_bytes_per_token() - 1, errors).layer_types.codes == ("888888", "888888")
    assert chosen(model, least + 6 * finer, None).layer_types.codes == ("888888", "444444"), "without measurements K comes first"


def test_the_coarsest_types_stand_for_the_context(model):
    cache = chosen(model, model.kv_bytes_per_token("q8_0", "q4_0"), costs((0.01,) * 6, (0.0,) * 6))
    assert (cache.type_k, cache.type_v) == (CacheType.Q8_0, CacheType.Q4_0)
    assert with_types(model, KvOptions(type_k="q8_0"), None) == KvOptions(type_k="q8_0"), "without a bound nothing changes"


def test_a_bound_that_f16_keeps_is_none(model):
    assert with_types(model, KvOptions(kv_bytes=model.kv_bytes_per_token()), None) == KvOptions()


def test_bounds_that_cannot_be_kept(model, synthetic):
    least = model.kv_bytes_per_token("q4_0", "q4_0")
    with pytest.raises(ConfigError, match=f"take {least:,} bytes in the smallest types, and --kv-bytes is {least - 1:,}; give {least:,} or more"):
        with_types(model, KvOptions(kv_bytes=least - 1), None)
    odd = geometry(synthetic(head_dim=80))
    with pytest.raises(ConfigError, match="q4_0 keeps K in blocks of 32 numbers"):
        with_types(odd, KvOptions(kv_bytes=odd.kv_bytes_per_token() - 1), None)
    for strange in (replace(model, mla=True), replace(model, index_rows=8)):
        with pytest.raises(ConfigError, match="does not keep plain rows"):
            with_types(strange, KvOptions(kv_bytes=strange.kv_bytes_per_token() - 1), None)


def test_layers_take_their_own_bytes(model):
    kinds = ("q8_0", "q4_0", "q4_0", "q8_0", "q4_0", "q4_0"), ("q4_0",) * 6
    q8, q4 = (model.layer_kv_bytes(0, one, "q4_0") for one in ("q8_0", "q4_0"))
    assert [model.layer_kv_bytes(il, *kinds) for il in range(6)] == [q8, q4, q4, q8, q4, q4]
    assert model.kv_bytes(256, *kinds) == 256 * model.row_bytes(*kinds) == 256 * (2 * q8 + 4 * q4)


# ---- words ---------------------------------------------------------------------------------------------------------------------------


def test_types_that_cost_nothing_are_not_told(model):
    assert type_cost(model, CacheOptions(), None) is None and type_cost(model, CacheOptions(kv_bytes=100), None) is None
    assert type_cost(model, CacheOptions(type_k="q4_0"), TypeErrors(0.004, {})) is None


def test_what_is_not_measured_says_so(model):
    said = type_cost(model, CacheOptions(type_k="q8_0", type_v="q4_0"), None)
    assert not said.warns and "q8_0/q4_0 costs this model is not measured; `edgekv lab quality --types` measures it once" in str(said)


def test_far_types_warn(model):
    errors = costs((0.01,) * 6)
    near, far = (type_cost(model, CacheOptions(type_k=kind, type_v=kind), errors) for kind in ("q8_0", "q4_0"))
    assert not near.warns and str(near).startswith("note: a cache in q8_0/q8_0 diverges 4.0e-03 nats a token")
    assert far.warns and str(far).startswith("warning: ")
    assert str(far).endswith("5.0e-02 nats a token from one in f16, and stock's own kernels 4.0e-03: 12 times as far; "
                             f"--kv-bytes {least_near(model, errors)} stays near them, by estimate")
    by_layer = type_cost(model, chosen(model, model.kv_bytes_per_token("q4_0", "q4_0") + 500, errors), errors)
    assert by_layer.warns and "diverges, by estimate, " in by_layer.text


def test_the_fewest_bytes_near_the_noise(model):
    errors = costs((0.001, 0.020, 0.001, 0.010, 0.001, 0.001))
    near = least_near(model, errors)
    kept, less = (errors.estimate(chosen(model, n_bytes, errors).layer_types) for n_bytes in (near, near - 1))
    assert kept <= 2 * errors.noise < less and model.kv_bytes_per_token("q4_0", "q4_0") < near < model.kv_bytes_per_token("q8_0", "q8_0")
    assert least_near(model, replace(errors, noise=0.001)) is None, "not even q8_0 is near"
    assert least_near(model, replace(errors, k=(), v=())) is None and least_near(replace(model, mla=True), errors) is None
    assert least_near(model, replace(errors, noise=0.1)) == model.kv_bytes_per_token("q4_0", "q4_0")


def test_as_few_bytes_as_stay_near(model):
    errors, auto = costs((0.001, 0.020, 0.001, 0.010, 0.001, 0.001)), KvOptions(kv_bytes=0)
    assert with_types(model, auto, errors).cache.layer_types == chosen(model, least_near(model, errors), errors).layer_types
    assert with_types(model, auto, replace(errors, noise=0.001)).cache.layer_types.codes == ("888888", "888888"), "the finest there are"
    assert with_types(model, auto, None).cache.layer_types.codes == ("888888", "444444"), "for now"
