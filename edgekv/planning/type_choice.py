"""Chooses the types of K and V by layer, for a bound in bytes a token."""

from bisect import bisect
from collections.abc import Iterator

from edgekv.common.enums import CacheType
from edgekv.common.errors import ConfigError
from edgekv.config import KvOptions, LayerTypes, TypeErrors
from edgekv.config.layer_types import COARSE, FINE, NEAR_STOCK, NOISE_FACTOR
from edgekv.models.geometry import Geometry
from edgekv.planning.fit import check_types

_K_COSTS = 5.0
"""Without measurements: what a coarse K costs, where a coarse V costs 1. The default model's K costs so many times its V."""

_EVENNESS = 0.25
"""The part of a layer's figure that is the mean of all layers: what one text shows of one layer is uncertain."""


def with_types(model: Geometry, kv: KvOptions, errors: TypeErrors | None) -> KvOptions:
    """These options with the types for `kv_bytes`: f16 in all layers if that fits; else by layer, so that the model diverges least. errors: as measured;
    None: all layers count alike. Raises ConfigError if the bound is below what the smallest types take, or the model keeps no plain rows."""
    bound = kv.cache.kv_bytes
    if bound is None:
        return kv
    if bound >= model.kv_bytes_per_token():
        return kv.with_(kv_bytes=None, layer_types=None, type_k=CacheType.F16, type_v=CacheType.F16)
    check_by_layer(model, kv)
    if bound == NEAR_STOCK:
        near = None if errors is None else least_near(model, errors)
        bound = model.kv_bytes_per_token(FINE.value, COARSE.value if errors is None else FINE.value) if near is None else near
    types = _chosen(model, bound, errors)
    k, v = (COARSE if COARSE in kinds else FINE for kinds in (types.k, types.v))
    return kv.with_(type_k=k, type_v=v, layer_types=types)


def least_near(model: Geometry, errors: TypeErrors) -> int | None:
    """The fewest bytes of K and V of a token that stay near stock's own noise, by estimate; None: not even FINE does, or the layers cannot have types
    of their own."""
    try:
        check_by_layer(model, KvOptions(kv_bytes=model.kv_bytes_per_token()))
    except ConfigError:
        return None
    low, high = (model.kv_bytes_per_token(kind.value, kind.value) for kind in (COARSE, FINE))
    bound = NOISE_FACTOR * errors.noise
    if len(errors.k) != model.n_layer or errors.estimate(_chosen(model, high, errors)) > bound:
        return None
    return low + bisect(range(low, high), 0, key=lambda n_bytes: errors.estimate(_chosen(model, n_bytes, errors)) <= bound)


def check_by_layer(model: Geometry, kv: KvOptions) -> None:
    """Raise ConfigError if the layers of a model cannot have types of their own, or the smallest take more than `kv_bytes`."""
    name, wanted = model.path.name, kv.cache.kv_bytes
    if model.mla or model.index_rows or any(model.index_dims):
        raise ConfigError(f"{name} does not keep plain rows of K and V in each layer; use --cache-type-k and --cache-type-v in place of --kv-bytes")
    check_types(model, kv.with_(type_k=COARSE, type_v=COARSE, layer_types=None).cache)
    least = model.kv_bytes_per_token(COARSE.value, COARSE.value)
    if wanted and wanted < least:
        raise ConfigError(f"K and V of a token of {name} take {least:,} bytes in the smallest types, and --kv-bytes is {wanted:,}; "
                          f"give {least:,} or more")


def _chosen(model: Geometry, kv_bytes: int, errors: TypeErrors | None) -> LayerTypes:
    """FINE where a byte gains most, as far as the bound allows."""
    types = {True: [COARSE] * model.n_layer, False: [COARSE] * model.n_layer}
    left = kv_bytes - model.kv_bytes_per_token(COARSE.value, COARSE.value)
    for _, n_bytes, il, value in sorted(_gains(model, errors), key=lambda one: (-one[0], one[2])):
        if n_bytes <= left:
            types[value][il] = FINE
            left -= n_bytes
    return LayerTypes(tuple(types[False]), tuple(types[True]))


def _gains(model: Geometry, errors: TypeErrors | None) -> Iterator[tuple[float, int, int, bool]]:
    """What FINE gains a byte, its further bytes, the layer, and whether it is V's."""
    for value in (False, True):
        of_all, own = _costs(model, errors, value)
        mean = sum(own) / max(1, sum(map(bool, model.n_head_kv)))
        total = sum(own) or 1.0
        for il in range(model.n_layer):
            small = model.layer_kv_bytes(il, COARSE.value, COARSE.value)
            finer = (COARSE.value, FINE.value) if value else (FINE.value, COARSE.value)
            if (n_bytes := model.layer_kv_bytes(il, *finer) - small) > 0:
                share = ((1 - _EVENNESS) * own[il] + _EVENNESS * mean) / total
                yield of_all * share / n_bytes, n_bytes, il, value


def _costs(model: Geometry, errors: TypeErrors | None, value: bool) -> tuple[float, tuple[float, ...]]:
    """What COARSE costs in K, or in V, of all layers, and in each."""
    alike = tuple(float(bool(n)) for n in model.n_head_kv)
    if errors is None:
        return (1.0 if value else _K_COSTS), alike
    own = errors.v if value else errors.k
    return errors.coarse(value), own if any(own) and len(own) == model.n_layer else alike
