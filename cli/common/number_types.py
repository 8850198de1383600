"""Types of numbers: they refuse what no library behind them can hold."""

from __future__ import annotations

import math
from typing import Any

import click

MOST = 2**31 - 1
"""Of a whole number that has no bound of its own: llama.cpp's are of 32 bits."""


class WholeNumber(click.IntRange):
    """A range of whole numbers; without an upper end up to MOST."""

    name = "whole number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        n = super().convert(value, param, ctx)
        if self.max is None and n > MOST:
            self.fail(f"{n} is too large; give {MOST:,} or less.", param, ctx)
        return n


class FiniteNumber(click.FloatRange):
    """A range of numbers without nan and inf."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number in the range {self._describe_range()}.", param, ctx)
        return number
