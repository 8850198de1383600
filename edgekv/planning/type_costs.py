"""What the types of a cache cost a model, in words."""

from msgspec import Struct

from edgekv.config import CacheOptions, TypeErrors
from edgekv.config.layer_types import NOISE_FACTOR
from edgekv.models.geometry import Geometry
from edgekv.planning.type_choice import least_near


class TypeCost(Struct, frozen=True):
    """A sentence about the types of a cache. warns: they diverge more than NOISE_FACTOR times as far as stock's own kernels."""

    text: str
    warns: bool = False

    def __str__(self) -> str:
        return f"{'warning' if self.warns else 'note'}: {self.text}"


def type_cost(model: Geometry, cache: CacheOptions, errors: TypeErrors | None) -> TypeCost | None:
    """What these types cost a model; None: nothing, both are f16. errors: as measured; None: not measured."""
    if cache.lacks_types or cache.is_f16:
        return None
    if errors is None:
        return TypeCost(f"what a cache in {cache.types_text} costs this model is not measured; `edgekv lab quality --types` measures it once")
    divergence = _divergence(cache, errors)
    if divergence is None:
        return None
    how = "diverges" if cache.layer_types is None else "diverges, by estimate,"
    far = f"a cache in {cache.types_text} {how} {divergence:.1e} nats a token from one in f16, and stock's own kernels {errors.noise:.1e}"
    if divergence <= NOISE_FACTOR * errors.noise:
        return TypeCost(far)
    better = "" if (least := least_near(model, errors)) is None else f"; --kv-bytes {least} stays near them, by estimate"
    return TypeCost(f"{far}: {divergence / errors.noise if errors.noise else 0:.0f} times as far{better}", warns=True)


def _divergence(cache: CacheOptions, errors: TypeErrors) -> float | None:
    if cache.layer_types is None:
        return errors.whole.get(cache.types_text)
    return errors.estimate(cache.layer_types) if len(errors.k) == len(cache.layer_types.k) else None
