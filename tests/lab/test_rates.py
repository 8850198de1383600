"""Rates of a machine that others use too: the fastest sample, processor time, and what others do."""

import itertools
import threading
from types import SimpleNamespace

import pytest

from edgekv.measure import busy, steps
from edgekv.measure.busy import Others
from edgekv.server.first_tokens import N_TOKENS, FirstTokens


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """A machine of four cores whose time goes on when it is told: `busy` and `own` are seconds of processor time."""
    now = SimpleNamespace(time=0.0, busy=0.0, own=0.0)
    monkeypatch.setattr("time.perf_counter", lambda: now.time)
    monkeypatch.setattr("time.process_time", lambda: now.own)
    monkeypatch.setattr(busy.psutil, "cpu_times", lambda: SimpleNamespace(_fields=("user", "system", "idle", "iowait"), user=now.busy,
                                                                         system=0.0, idle=99 * now.time, iowait=now.time))
    monkeypatch.setattr(busy, "n_cores", lambda: 4)
    return now


def run(clock, seconds: float, own: float, others: float) -> None:
    """For `seconds`; cores that this process and others use."""
    clock.time += seconds
    clock.own += own * seconds
    clock.busy += (own + others) * seconds


@pytest.mark.parametrize(("others", "expected"), [(0.0, 0.0), (0.4, 0.0), (1.6, 1.6)])
def test_others(clock, others: float, expected: float):
    counted = Others()
    run(clock, 0.5, 2.0, others)
    assert counted.cores() == pytest.approx(others) and counted.busy() == pytest.approx(expected)


def test_the_fastest_of_many_samples(clock):
    """Quiet, by the clock: most were disturbed."""
    taken: list[float] = []
    short = steps.MOST_S / 100

    def sample() -> tuple[float, float]:
        taken.append(short if len(taken) % 7 == 6 else 2 * short * 1.1 ** (len(taken) % 7))
        return steps.timed(lambda: run(clock, taken[-1], 2.0, 0.0))

    assert steps.fastest(sample, 2) == pytest.approx(short)
    assert taken.count(short) == steps.LEAST_SAMPLES, "more are taken until the fastest are near each other"


def test_samples_end_where_they_never_agree(clock):
    first = steps.MOST_S / 6
    times = (first * 0.9**n for n in itertools.count())  # 10 times the first in all
    steps.fastest(lambda: steps.timed(lambda: run(clock, next(times), 2.0, 0.0)), 2)
    assert steps.MOST_S < clock.time < steps.MOST_S + first


def test_one_sample_that_is_long_is_enough(clock):
    assert steps.fastest(lambda: steps.timed(lambda: run(clock, 2 * steps.MOST_S, 2.0, 0.0)), 2) == pytest.approx(2 * steps.MOST_S) == clock.time


def test_processor_time_where_others_are_busy(clock):
    """Each sample takes twice as long beside them; what two threads computed says so, and on a quiet machine is not asked."""
    def sample(others: float):
        return lambda: steps.timed(lambda: run(clock, 0.02, 1.0, others))

    assert steps.fastest(sample(3.0), 2) == pytest.approx(0.01)
    assert steps.fastest(sample(0.0), 2) == pytest.approx(0.02)


def test_first_tokens(clock):
    """The fastest of those that come alone, one directly after the other; then nobody watches any more."""
    done, found = threading.Event(), []
    runtime = SimpleNamespace(observers=[])
    FirstTokens(runtime, lambda seconds: (found.append(seconds), done.set()))
    for n_tokens, seconds in ((512, 9), (1, 8), (1, 0.3), (1, 0.2), (2, 0.05), (1, 0.04), (1, 0.25), *[(1, 0.5)] * 3):
        clock.time += seconds
        for observer in list(runtime.observers):
            observer(SimpleNamespace(n_tokens=n_tokens))
    assert done.wait(10) and found == [pytest.approx(0.2)] and not runtime.observers and N_TOKENS == 4
