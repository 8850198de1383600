"""Sampling: NumPy's specification is right on average and reads every certain row, and the kernels of every instruction set agree with
it."""

import numpy as np
import pytest

from edgekv import _native
from edgekv.arrays.sample import (
    GROUP_CELLS,
    ONE,
    WALK_CELLS,
    by_share,
    certain_cells,
    chances,
    least_chance,
    page_turn,
    sample,
    shares_of,
    walk,
    walk_offsets,
)

_native.prepare()

from edgekv._native import core, testing  # noqa: E402 (the libraries must be in place first)


def case(seed: int, n_groups: int, group: int, hidden: float = 0.1) -> dict:
    """Shares as an exact scan leaves them, over cells of which some are hidden (whole groups too) and some certain."""
    rng = np.random.default_rng(seed)
    n = GROUP_CELLS * n_groups
    visible = rng.random(n) >= hidden
    if n_groups > 2 and hidden:
        visible[GROUP_CELLS : 2 * GROUP_CELLS] = False
    logits = np.where(visible, 3 * rng.standard_normal((group, n)), -np.inf)
    shares, tops, sums = shares_of(logits)
    shares[:, ~visible.reshape(-1, GROUP_CELLS).any(axis=1).repeat(GROUP_CELLS)] = 0xFFC0  # unwritten memory is not a number
    certain = np.zeros(n, bool)
    certain[:3], certain[-5:] = True, True
    return dict(shares=shares, tops=tops, sums=sums, visible=visible, certain=certain, resolution=float(rng.choice([5.0, 60.0, 4000.0])))


def positions_of(n_cells: int, seed: int = 0) -> np.ndarray:
    """int32 [cell]: a conversation whose pages lie in any order, with an empty cell now and then."""
    rng = np.random.default_rng(seed)
    pages = rng.permutation(n_cells // WALK_CELLS) * WALK_CELLS
    positions = (pages[:, None] + np.arange(WALK_CELLS)).ravel()
    return np.where(rng.random(n_cells) < 0.05, -1, positions).astype(np.int32)


def offsets_of(turn: int, n_cells: int, seed: int = 0) -> np.ndarray:
    return walk_offsets(turn, positions_of(n_cells, seed)[::WALK_CELLS])


def probabilities(arguments: dict) -> np.ndarray:
    return chances(by_share(**arguments), arguments["visible"], arguments["resolution"])


def test_chances_are_the_shares_of_attention():
    arguments = case(1, n_groups=5, group=3) | {"resolution": 20.0}
    logits = np.where(arguments["visible"], 3 * np.random.default_rng(1).standard_normal((3, 320)), -np.inf)
    shares, tops, sums = shares_of(logits)
    weights = np.exp(logits)
    mean = (weights / weights.sum(axis=1, keepdims=True)).mean(axis=0)
    got = by_share(shares, tops, sums, arguments["visible"], np.zeros(320, bool), 20.0) / ONE
    want = np.minimum(20.0 * mean, 1)
    assert (want == 1).any() and (want < 0.01).any()
    np.testing.assert_allclose(got, want, rtol=2.0**-7, atol=1 / ONE)  # shares are truncated to eight bits
    assert (got <= want + 1 / ONE).all() and not got[~arguments["visible"]].any()


def test_sinks_of_the_model_take_their_part():
    arguments = case(2, n_groups=2, group=2, hidden=0.0) | {"resolution": 10.0, "certain": np.zeros(128, bool)}
    totals = np.log((arguments["sums"] * np.exp(arguments["tops"])).sum(axis=1))
    whole, half = by_share(**arguments), by_share(**arguments, sinks=totals)  # as much as all cells together
    inside = whole < ONE
    np.testing.assert_allclose(half[inside], whole[inside] / 2, rtol=1e-4, atol=1)
    assert inside.sum() > 100


def test_the_walk():
    p = np.array([0.25, 1, 0, 0.5, 0.5, 0.125, 1, 0.0625, 0, 1])
    p = np.concatenate([p, np.zeros(6), np.full(16, 0.125)])
    rows, weights = walk((p * ONE).astype(np.int64), np.array([ONE // 2, ONE // 16]))
    # from 0.5: 0.75, 1.75, 1.75, 2.25, 2.75, 2.875, 3.875, 3.9375, 3.9375, 4.9375
    # the second page from 0.0625: 0.1875, ..., so that the eighth and the sixteenth pass a number
    assert rows.tolist() == [1, 3, 6, 9, 23, 31] and weights.tolist() == [1, 2, 1, 1, 8, 8]
    # from 0.25: 0.5, 1.5, 1.5, 2, 2.5, 2.625, 3.625, 3.6875, 3.6875, 4.6875
    assert walk((p * ONE).astype(np.int64), np.array([ONE // 4, 0]))[0].tolist() == [1, 3, 6, 9, 23, 31]
    assert walk(np.zeros(64, np.int64), np.full(4, ONE - 1))[0].tolist() == []


@pytest.mark.parametrize("seed", range(2))
def test_right_on_average(seed):
    """Over all offsets, each cell is read with its probability, so that weighted sums are right on average, and each page has as many reads
    as probability."""
    arguments = case(seed, n_groups=4, group=2)
    p = probabilities(arguments)
    value = np.random.default_rng(seed).standard_normal(len(p))
    n, estimates, reads = 1000, [], np.zeros(len(p))
    shifts = np.random.default_rng(seed).integers(0, ONE, len(p) // WALK_CELLS)
    by_page = p.reshape(-1, WALK_CELLS).sum(axis=1) / ONE
    for offset in range(n):
        rows, weights = walk(p, (offset * ONE // n + shifts) % ONE)
        estimates.append((weights * value[rows]).sum())
        reads[rows] += 1
        assert (np.abs(np.bincount(rows // WALK_CELLS, minlength=len(by_page)) - by_page) <= 1).all()
    np.testing.assert_allclose(reads / n, p / ONE, atol=1.5 / n)
    reached = p > ONE // n
    assert np.mean(estimates) == pytest.approx(value[reached].sum(), abs=0.05 * np.std(estimates) + 0.2)


def test_offsets_are_even_and_tell_layers_and_heads_apart():
    """Those of any 64 neighbouring pages at a token, and those of a page at any n tokens, lie nearly as far apart as they can."""
    first = np.arange(0, 64 * WALK_CELLS, WALK_CELLS)
    for layer, head, position in [(0, 0, 0), (3, 1, 77), (31, 7, 130_000)]:
        offsets = walk_offsets(page_turn(layer, head, position), first + position // WALK_CELLS * WALK_CELLS)
        assert (offsets >= 0).all() and (offsets < ONE).all()
        assert np.diff(np.sort(offsets), append=np.sort(offsets)[0] + ONE).max() < 3 * ONE / 64
        for n in (512, 8000):
            over_time = np.sort([walk_offsets(page_turn(layer, head, position + t), 48) for t in range(n)])
            assert np.diff(over_time, append=over_time[0] + ONE).max() < 3 * ONE / n
    starts = np.array([[page_turn(layer, head, 5) for head in range(8)] for layer in range(80)]) / 2**32
    assert abs(np.corrcoef(starts.ravel(), np.roll(starts, 1, 0).ravel())[0, 1]) < 0.12
    assert abs(np.corrcoef(starts.ravel(), np.roll(starts, 1, 1).ravel())[0, 1]) < 0.12


def test_neighbouring_tokens_read_the_same_pages():
    """In 16 tokens the offsets turn by a thirty-second: with shares that do not move, about so many of the 160 pages come to be read."""
    arguments = case(5, n_groups=40, group=2, hidden=0.0) | {"resolution": 300.0}
    rows = [sample(**arguments, offsets=offsets_of(page_turn(2, 1, position), 2560)).rows for position in (1000, 1001, 1016)]
    assert len(np.setdiff1d(rows[1], rows[0])) <= 0.03 * len(rows[0])
    pages = [set(read // WALK_CELLS) for read in rows]
    assert 60 < len(pages[0]) < 120 and 1 <= len(pages[2] - pages[0]) <= 8


def test_a_moved_page_is_read_alike():
    """The same tokens in other cells: only the place of a page's first token counts."""
    arguments = case(9, n_groups=4, group=2, hidden=0.0)
    turn, first = page_turn(0, 3, 500), np.arange(0, 256, WALK_CELLS)
    order = np.random.default_rng(1).permutation(16)
    p = probabilities(arguments).reshape(16, WALK_CELLS)
    here, moved = walk(p.ravel(), walk_offsets(turn, first))[0], walk(p[order].ravel(), walk_offsets(turn, first[order]))[0]
    assert sorted(order[moved // WALK_CELLS] * WALK_CELLS + moved % WALK_CELLS) == here.tolist() and len(here) > 20


def test_no_cell_is_passed_over_for_ever():
    """With shares that do not move, every visible cell is read by some token, also one to which its sketch gives nothing, and no weight is
    above what the floor says."""
    shares, tops, sums = shares_of(3 * np.random.default_rng(8).standard_normal((2, 256)))
    shares[:, 5::7] = 0
    visible = np.ones(256, bool)
    visible[64:80] = False
    seen = np.zeros(256, bool)
    for position in range(3000):
        found = sample(shares, tops, sums, visible, np.zeros(256, bool), 40.0, offsets_of(page_turn(3, 1, position), 256))
        seen[found.rows] = True
        assert found.weights.max() <= 240 * 128 / 40 * 1.001
    assert (seen == visible).all()


def test_the_floor():
    assert least_chance(256.0, 4) == ONE // 2 and least_chance(2000.0, 8000) == ONE // 512
    assert least_chance(2000.0, 3) == ONE and least_chance(1.0, 10**7) == 1 and least_chance(1.0, 0) == ONE // 128
    arguments = case(7, n_groups=5, group=3) | {"resolution": 30.0}
    plain, p, visible = by_share(**arguments), probabilities(arguments), arguments["visible"]
    assert (p[visible] == np.maximum(plain, least_chance(30.0, visible.sum()))[visible]).all() and not p[~visible].any()
    assert p.sum() - plain.sum() <= 30 / 128 * ONE + len(p)


def test_certain_and_hidden():
    arguments = case(3, n_groups=6, group=3) | {"resolution": 5.0}
    found = sample(**arguments, offsets=offsets_of(page_turn(0, 0, 7), 384))
    must = np.flatnonzero(arguments["certain"] & arguments["visible"])
    assert np.isin(must, found.rows).all() and (found.weights[np.isin(found.rows, must)] == 1).all()
    assert arguments["visible"][found.rows].all() and (found.weights >= 1).all() and found.n_certain >= len(must)
    assert found.n_certain == np.count_nonzero(found.weights == 1) < len(found.rows) < 40
    nothing = sample(**(arguments | {"visible": np.zeros(384, bool)}), offsets=np.full(24, ONE - 1))
    assert not len(nothing.rows) and nothing.n_certain == 0


def test_what_is_missed_is_a_share_of_the_attention():
    """Coverage is the attention on the rows that were read, divided by all attention that the shares tell."""
    logits = 3 * np.random.default_rng(6).standard_normal((2, 512))
    weights = np.exp(logits)
    share = (weights / weights.sum(axis=1, keepdims=True)).mean(axis=0)
    everything = np.ones(512, bool)
    found = sample(*shares_of(logits), everything, ~everything, 30.0, offsets_of(page_turn(1, 2, 3), 512))
    assert 0.2 < 1 - found.missed / 30.0 < 0.9
    assert 1 - found.missed / 30.0 == pytest.approx(share[found.rows].sum(), abs=0.01)  # shares are truncated to eight bits


def test_a_resolution_above_all_reads_everything():
    arguments = case(4, n_groups=3, group=1, hidden=0.0) | {"resolution": 1e9}
    found = sample(**arguments, offsets=offsets_of(page_turn(4, 5, 6), 192))
    assert found.rows.tolist() == list(range(192)) and (found.weights == 1).all() and found.missed == 0


def test_a_token_that_sees_few_cells_reads_them_all():
    arguments = case(4, n_groups=6, group=2) | {"resolution": 5.0}
    n_visible, offsets = int(arguments["visible"].sum()), offsets_of(page_turn(4, 5, 6), 384)
    certain = arguments["certain"]
    every = sample(**(arguments | {"certain": certain_cells(arguments["visible"], certain, n_visible)}), offsets=offsets)
    assert every.rows.tolist() == np.flatnonzero(arguments["visible"]).tolist() and every.n_certain == n_visible and every.missed == 0
    assert certain_cells(arguments["visible"], certain, n_visible - 1) is certain


# ---- the kernels ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", range(len(core.isa_available())), ids=core.isa_available())
@pytest.mark.parametrize("n_groups", [2, 33])
def test_kernels(isa, n_groups):
    """Kernels add in float32: a probability may be a few steps off, and with it the place where a page's running sum passes a whole number."""
    n_rows = 0
    for seed in range(20):
        arguments = case(seed, n_groups, group=1 + seed % 4)
        turn, positions = page_turn(seed, n_groups, 100 * seed), positions_of(n_groups * GROUP_CELLS, seed)
        offsets = walk_offsets(turn, positions[::WALK_CELLS])
        plain, p, want = by_share(**arguments), probabilities(arguments), sample(**arguments, offsets=offsets)
        rows, weights, n_certain, missed = testing.sample(**arguments, draw=testing.Draw(positions, turn), isa=isa)
        assert (np.diff(rows) > 0).all() and len(rows) == len(weights)
        off = np.abs(ONE / weights.astype(np.float64) - p[rows])
        assert (off <= 2 + 2e-6 * p[rows]).all()
        every = testing.sample(**arguments, draw=testing.Draw(positions, turn, n_groups * GROUP_CELLS), isa=isa)
        assert every[0].tolist() == np.flatnonzero(arguments["visible"]).tolist() and (every[1] == 1).all() and every[3] == 0
        assert n_certain == np.count_nonzero(weights == 1) and abs(n_certain - want.n_certain) <= 1
        assert missed == pytest.approx(np.delete(plain, rows).sum() / ONE, abs=len(p) * 3 / ONE + 1e-5 * len(rows))
        different = np.setxor1d(rows, want.rows)
        after = (np.cumsum(p.reshape(-1, WALK_CELLS), axis=1) + offsets[:, None]).ravel()[different]
        to_mark = np.minimum.reduce([np.abs((at + ONE // 2) % ONE - ONE // 2) for at in (after, after - p[different])])
        assert (to_mark <= 2 * WALK_CELLS).all(), "elsewhere the same cells are read"
        n_rows += len(rows)
    assert n_rows > 20 * 5
