"""Rates that no machine has, for plans whose numbers can be reckoned by hand."""

from collections.abc import Callable
from pathlib import Path

import pytest

from edgekv.measure import weights as measuring
from edgekv.measure.busy import Others
from edgekv.planning.host import AttentionRates, KernelRates, StepRates, WeightRates

STEP = StepRates(1e-6, 1e-6)
ATTENTION = AttentionRates(exact=KernelRates(1e-5, 30e-9, 30e-9, 30e-9, 20e-9), flash=KernelRates(2e-5, 40e-9, 160e-9, 160e-9, 90e-9),
                           plain=KernelRates(3e-5, 60e-9, 60e-9, 60e-9, 80e-9), row=40e-9, scan=5e-9)


def give_rates(monkeypatch: pytest.MonkeyPatch, folder: Path, weights: Callable[[str], WeightRates], busy: Callable[[], float] = lambda: 0.0) -> None:
    """Rates that nobody has to wait for, kept in a folder of the test: `weights(type)` for each type. `busy`: cores that others use."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(folder / name))
    monkeypatch.setattr(Others, "busy", lambda self: busy())
    monkeypatch.setattr(measuring, "step_rates", lambda n_threads: STEP)
    monkeypatch.setattr(measuring, "attention_rates", lambda shape, n_threads, read, step: ATTENTION)
    monkeypatch.setattr(measuring, "weight_rates", lambda kind, matrices, step, n_threads: weights(kind))
