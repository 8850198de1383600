"""The measured sampling errors of a model's heads, and the resolutions that a wanted error needs."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Annotated

from msgspec import Meta, Struct

DEFAULT_RESOLUTION = 2000.0

LEAST, MOST = DEFAULT_RESOLUTION / 4, 8 * DEFAULT_RESOLUTION
"""Bounds of the resolutions for an error. Below, a head depends on a few rows; above, it reads most visible rows."""

_EVENNESS = 0.5
"""0: all heads have one resolution; 1: all have the same error. See `HeadErrors.resolutions_for`."""

_LEAST_SLOPE = 0.25
"""Noise may make an error fall slowly, or not at all, between two resolutions. We assume that it falls at least with this power of them."""

_DIGITS = 2
"""Resolutions are rounded to so many digits: then fewer tables differ, and contexts with equal tables can share rows."""

Table = tuple[tuple[Annotated[float, Meta(ge=0, le=sys.float_info.max)], ...], ...]
"""[layer of the model][KV head]; a layer that is never sampled has no heads."""


class HeadErrors(Struct, frozen=True):
    """Estimated relative errors of the heads' outputs: means over tokens and over the query heads of each KV head."""

    resolutions: tuple[float, ...]
    """The resolutions of the measurements, ascending, at least two."""
    errors: tuple[Table, ...]
    """By resolution. 0: the head was not estimated."""

    def __post_init__(self) -> None:
        shapes = {tuple(map(len, table)) for table in self.errors}
        if len(self.resolutions) < 2 or len(self.errors) != len(self.resolutions) or len(shapes) != 1 \
                or sorted(set(self.resolutions)) != list(self.resolutions) or self.resolutions[0] < 1:
            raise ValueError("errors are measured at two resolutions or more, ascending, of the same heads")

    def resolutions_for(self, error: float) -> Table:
        """Each head's resolution, so that the mean of the heads' errors is the wanted one; 0 for a head that was not estimated.

        A head's error is the standard deviation of a sum over sampled rows. It would fall with the square root of the resolution if no rows became
        certain on the way. Measured, it falls with the power 0.61 to 0.68 from 500 to 2,000 and 0.73 to 0.79 from 2,000 to 8,000 (medians of the
        heads of SmolLM2-135M and gemma3-270m after 4,096 tokens, by text). So each head has its own lines between the measured resolutions, in
        logarithms; beyond these the nearest line continues.

        A head gets the geometric mean of two resolutions: the one at which all heads have the same error, and the one that all heads would share
        (`_EVENNESS`), scaled within LEAST and MOST until the mean error is right. With equal errors, the default model diverges a fifth
        more from full attention than with one shared resolution and as many rows; halfway it does not (LOG.md, 2026-11-25).
        """
        return _resolutions_for(self, error)

    def lines(self) -> list[_Line]:
        """The lines of the estimated heads."""
        return [_Line.through(self.resolutions, measured) for measured in self._measured() if min(measured) > 0]

    def _measured(self) -> Iterable[list[float]]:
        for il, heads in enumerate(self.errors[0]):
            for head in range(len(heads)):
                yield [table[il][head] for table in self.errors]


class _Line(Struct, frozen=True):
    """The error of a head by its resolution: (logarithm of the resolution, of the error) of each corner, and the slopes of the parts."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    slopes: tuple[float, ...]

    @classmethod
    def through(cls, resolutions: Sequence[float], errors: Sequence[float]) -> _Line:
        x, y = [math.log(one) for one in resolutions], [math.log(one) for one in errors]
        slopes = [max(_LEAST_SLOPE, (a - b) / (d - c)) for a, b, c, d in zip(y, y[1:], x, x[1:])]
        # keeps the middle corner: noise moves the ends more
        middle = len(x) // 2
        for i in range(middle, len(slopes)):
            y[i + 1] = y[i] - slopes[i] * (x[i + 1] - x[i])
        for i in range(middle - 1, -1, -1):
            y[i] = y[i + 1] + slopes[i] * (x[i + 1] - x[i])
        return cls(tuple(x), tuple(y), tuple(slopes))

    def log_resolution(self, log_error: float) -> float:
        at = next((i for i in range(len(self.slopes)) if self.y[i + 1] <= log_error), len(self.slopes) - 1)
        return self.x[at] + (self.y[at] - log_error) / self.slopes[at]

    def error(self, resolution: float) -> float:
        log_resolution = math.log(resolution)
        at = next((i for i in range(len(self.slopes)) if log_resolution <= self.x[i + 1]), len(self.slopes) - 1)
        return math.exp(self.y[at] - self.slopes[at] * (log_resolution - self.x[at]))


@cache
def _resolutions_for(known: HeadErrors, error: float) -> Table:
    lines = known.lines()

    def at(log_error: float) -> list[float]:
        even = [line.log_resolution(log_error) for line in lines]
        shared = sum(even) / len(even)
        return [math.exp(min(max(_EVENNESS * one + (1 - _EVENNESS) * shared, math.log(LEAST)), math.log(MOST))) for one in even]

    low, high = math.log(error) - 10, math.log(error) + 10  # the mean error grows with it
    for _ in range(60 if lines else 0):
        middle = (low + high) / 2
        mean = sum(line.error(one) for line, one in zip(lines, at(middle))) / len(lines)
        low, high = (middle, high) if mean < error else (low, middle)
    found = iter(at(low) if lines else ())
    heads = iter([_rounded(next(found)) if min(measured) > 0 else 0.0 for measured in known._measured()])
    return tuple(tuple(next(heads) for _ in heads_of_layer) for heads_of_layer in known.errors[0])


def _rounded(resolution: float) -> float:
    return float(f"{resolution:.{_DIGITS}g}")
