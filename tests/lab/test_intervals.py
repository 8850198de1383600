"""The arithmetic of `edgekv lab quality`: intervals, distances, retention, effort."""

import numpy as np
import pytest
from support.decoding import kld

from edgekv.bench.intervals import of_mean, wilson
from edgekv.bench.tally import Tally
from edgekv.common.effort import Effort, Kind, Work
from edgekv.lab.questions.quality import COUNTS
from edgekv.lab.questions.task_rows import Retention


@pytest.mark.parametrize(("found", "asked", "low", "high"), [
    (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718), (29, 29, 0.8830, 1.0)])
def test_wilson(found, asked, low, high):
    """R. G. Newcombe, "Two-sided confidence intervals for the single proportion" (1998), table I; the last is 0 of 29 turned round."""
    assert wilson(found, asked) == pytest.approx((low, high), abs=6e-5)


def test_wilson_of_nothing():
    assert wilson(0, 0) == (0, 1)
    for found, asked in ((2, 1), (-1, 3)):
        with pytest.raises(ValueError):
            wilson(found, asked)


def test_neighbours_that_go_together_widen_the_interval():
    """Of 64 values, blocks of four. Those that alternate have one mean; of runs of four that alternate, a block's mean has a deviation of 0.3, a
    quarter of that for 16 blocks."""
    assert of_mean([0, 1] * 32) == (0.5, 0.5)
    low, high = of_mean([0, 0, 0, 0, 1, 1, 1, 1] * 8)
    assert low < 0.4 and high > 0.6


def test_interval_of_few_values():
    assert of_mean([2.0]) == (2, 2) and of_mean([2.0, 2.0, 2.0]) == pytest.approx((2, 2))
    assert all(np.isnan(of_mean([])))
    low, _ = of_mean([0.0] * 30 + [1.0])
    assert low >= 0, "a divergence is not negative"


def test_distance():
    random = np.random.default_rng(3)
    logits = random.normal(0, 1, (200, 50)).astype(np.float32)
    noise = random.normal(0, 0.3, logits.shape).astype(np.float32)
    targets = random.integers(0, 50, 200).tolist()
    reference, other = Tally(), Tally()
    reference.compare({}, list(logits), targets)
    other.compare({"exact": list(logits)}, list(logits + noise), targets)
    figures, expected = other.distance("exact", reference), kld(logits, logits + noise)
    assert figures["kld_exact"] == pytest.approx(expected.mean()) and figures["kld_p99_exact"] == pytest.approx(np.percentile(expected, 99))
    assert figures["kld_low_exact"] < figures["kld_exact"] < figures["kld_high_exact"] < figures["kld_p99_exact"]
    assert figures["same_top_exact"] == np.mean(logits.argmax(1) == (logits + noise).argmax(1))
    difference = np.mean(other.nll) - np.mean(reference.nll)
    assert figures["nll_minus_exact"] == pytest.approx(difference) and figures["ppl_vs_exact"] == pytest.approx(np.exp(difference) - 1)
    assert figures["ppl_low_exact"] < figures["ppl_vs_exact"] < figures["ppl_high_exact"]
    both = other + other
    assert len(both.nll) == 400 and both.distance("exact", reference + reference)["kld_exact"] == pytest.approx(figures["kld_exact"])


def test_retention():
    one = Retention.of((True, True, False, False), (True, False, True, False))
    assert one == Retention(4, 2, 2, 1) and one.share == 0.5
    row = (one + Retention(6, 6, 6, 6)).row()
    assert set(row) | {"wrong"} == set(COUNTS)
    assert (row["asked"], row["full_found"], row["found"], row["kept"], row["extra"]) == (10, 8, 8, 7, 1)
    assert row["retention"] == 7 / 8 and (row["retention_low"], row["retention_high"]) == wilson(7, 8)
    assert Retention(9, 4).says_nothing and not Retention(9, 5).says_nothing and not Retention(3, 2).says_nothing
    assert Retention().row()["retention"] is None and Retention().says_nothing
    with pytest.raises(ValueError):
        Retention.of((True,), (True, False))


def test_effort():
    effort = Effort([Work(Kind.READ, 50, 100), Work(Kind.READ, 150, 100), Work(Kind.DECODE, 200, 10), Work(Kind.DECODE, 200, 10)])
    effort.add(Work(Kind.READ, 50, 100), 100 * (1 + 50 * 0.1))
    effort.finish()
    assert effort.seconds_in_all() is None is effort.seconds_left()
    effort.add(Work(Kind.READ, 150, 100), 100 * (1 + 150 * 0.1))
    effort.finish()
    effort.add(Work(Kind.DECODE, 200, 5), 20)
    assert effort.seconds_left() == pytest.approx(15 * 4), "tokens that are decoded take longer than those that are read"
    assert effort.seconds_in_all() == pytest.approx(600 + 1600 + 80) and effort.n_done == 205 and effort.n_tokens == 220
    effort.finish()
    assert effort.seconds_left() == pytest.approx(40) and effort.n_done == 210, "a shorter answer than planned leaves no time behind"
    effort.add(Work(Kind.DECODE, 200, 50), 200)
    assert effort.n_done == 220 and effort.seconds_left() == 0
    effort.finish()
    assert effort.n_done == 220 and effort.seconds_left() == 0
