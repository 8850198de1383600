"""What types of K and V cost a model: a row for each pair of types, and for each bound in bytes a token."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from edgekv import _native
from edgekv.cache_types import check_place, type_errors
from edgekv.common.errors import ConfigError
from edgekv.config import KvOptions
from edgekv.config.layer_types import NOISE_FACTOR
from edgekv.llama import Llama  # noqa: F401 (it hears llama.cpp's messages)
from edgekv.models import geometry
from edgekv.planning.type_choice import check_by_layer, least_near, with_types

Row = dict[str, Any]


def run(model: Path, bounds: Iterable[int], n_threads: int, progress: Callable[[str, int, int], None], again: bool = False) -> Iterator[Row]:
    """The row of stock's noise, then of each pair of types, of each bound, and of the fewest bytes that stay near the noise. What types cost is
    measured if it is not known; again: in any case.

    Raises ConfigError for a bound that cannot be held, before anything is measured, and the errors of `type_errors`."""
    if not _native.info()["enabled"]:
        raise ConfigError("EDGEKV=0 is set, so there is only stock attention to measure; unset it")
    file, bounded = geometry(model), [KvOptions(kv_bytes=n_bytes, attention_device="cpu") for n_bytes in bounds]
    for kv in bounded:
        check_by_layer(file, kv)
        check_place(kv)
    errors, f16 = type_errors(model, progress, n_threads, again), file.kv_bytes_per_token()

    def row(types: str, n_bytes: int, kld: float, how: str) -> Row:
        times = kld / errors.noise if errors.noise else None
        note = None if times is None or times <= NOISE_FACTOR else f"more than {NOISE_FACTOR:g} times stock's own noise"
        return {"model": model.name, "types": types, "bytes": n_bytes, "share": n_bytes / f16 if f16 else None, "kld": kld, "times_noise": times,
                "how": how, "note": note}

    yield row("f16/f16, stock's kernels", f16, errors.noise, "measured")
    for types, kld in sorted(errors.whole.items(), key=lambda one: -file.kv_bytes_per_token(*one[0].split("/"))):
        yield row(types, file.kv_bytes_per_token(*types.split("/")), kld, "measured")
    near = least_near(file, errors)
    for kv in [*bounded, *([] if near is None else [KvOptions(kv_bytes=near, attention_device="cpu")])]:
        cache = with_types(file, kv, errors).cache
        if cache.layer_types is not None:
            yield row(cache.types_text, file.kv_bytes_per_token(*cache.kinds), errors.estimate(cache.layer_types), "estimated")
