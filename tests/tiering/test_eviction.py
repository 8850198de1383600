"""The decision of mode evict: which pages it drops and which cells it frees."""

import numpy as np
import pytest

from edgekv.common.enums import Split
from edgekv.pages.shape import PageShape
from edgekv.tiering import eviction

SHAPE = PageShape(2, 2, 8)


def decide(scores=None, pins=None, gone=None, positions=None, cells=None, shape: PageShape = SHAPE, adds_up: bool = False, **more) -> eviction.Losses:
    positions = np.arange(8) * 16 + 15 if positions is None else np.array(positions)
    cells = np.where(positions >= 0, 16, 0) if cells is None else np.array(cells)
    gone = np.zeros(shape.axes, np.uint8) if gone is None else gone
    return eviction.decide(shape, scores, pins, eviction.Demand(gone, positions, cells, **{"split": Split.UNIFORM, "n_keep": 8, **more}), adds_up)


def test_nothing_goes_while_all_fits():
    losses = decide()
    assert not len(losses.dropped) and not len(losses.freed)
    assert not len(decide(positions=[-1] * 8).freed), "an empty cache"


def test_without_scores_the_oldest_go_by_position_and_not_by_place():
    losses = decide(positions=[100, 20, 90, 30, 80, 40, 70, 60], n_keep=3)
    assert losses.freed.tolist() == [3, 5, 7, 6]
    assert losses.dropped.tolist() == [1, 9, 17, 25], "the oldest of all by every layer, and its cells stay"


def test_layers_keep_different_pages_and_what_none_keeps_is_freed():
    scores = np.zeros(SHAPE.axes, np.float32)
    scores[0, 0, 2] = scores[0, 1, 3] = scores[1, :, 4] = 1
    scores[0, 1, 3] = 2
    for adds_up in (False, True):
        losses = decide(scores, n_keep=2, adds_up=adds_up)  # and page 7, the newest
        assert losses.freed.tolist() == [1, 2, 5, 6]
        gone = np.zeros(SHAPE.axes, bool)
        gone.reshape(-1)[losses.dropped] = True
        assert (gone[:, :1] == gone).all(), "a layer's heads choose together"
        assert [(~layer[0]).nonzero()[0].tolist() for layer in gone] == [[1, 2, 3, 5, 6, 7], [1, 2, 4, 5, 6, 7]], "freed pages are not dropped besides"
        again = decide(scores, gone=gone.astype(np.uint8), positions=[15, -1, -1, 63, 79, -1, -1, 127], n_keep=2, adds_up=adds_up)
        assert not len(again.dropped) and not len(again.freed), "what is gone is gone"


@pytest.mark.parametrize("split", list(Split))
@pytest.mark.parametrize("n_bytes", [None, [100, 700], [700, 100]])
def test_layers_take_no_more_bytes_than_the_bound(split: Split, n_bytes: list[int] | None):
    scores = np.random.default_rng(1).random(SHAPE.axes, np.float32)
    layer_bytes = None if n_bytes is None else np.array(n_bytes, np.float64)
    losses = decide(scores, n_keep=4, split=split, adds_up=True, layer_bytes=layer_bytes)
    kept = np.ones(SHAPE.axes, bool)
    kept[:, :, losses.freed] = False
    kept.reshape(-1)[losses.dropped] = False
    taken = kept[:, 0, 1:].sum(axis=1) + kept[:, 0, 0]
    weights = np.ones(2) if layer_bytes is None else layer_bytes
    assert taken @ weights <= 4 * weights.sum()
    if split is not Split.PYRAMID:  # whose first layer has all its pages here
        assert taken @ weights > 2.5 * weights.sum(), "and not much fewer"


def test_what_a_policy_gives_up_goes_though_there_is_room():
    for adds_up in (False, True):
        scores = np.ones(SHAPE.axes, np.float32)
        scores[:, :, 3] = -np.inf
        scores[0, :, 4] = scores[1, 0, 5] = -np.inf
        losses = decide(scores, adds_up=adds_up)
        assert losses.freed.tolist() == [3], "every head of every layer gives it up"
        assert losses.dropped.tolist() == [4, 12], "every head of one layer does; of page 5 one head does"


def test_room_is_made_from_what_the_best_head_values_least_and_pins_go_last():
    scores = np.zeros(SHAPE.axes, np.float32)
    scores[0, 0] = [8, 7, 1, 2, 3, 4, 5, 0]
    pins = np.zeros(8, bool)
    pins[2] = True
    assert decide(scores, pins, n_excess=17).freed.tolist() == [3, 4], "whole pages, for 17 cells"
    assert decide(scores, pins, n_excess=7 * 16).freed.tolist() == [1, 2, 3, 4, 5, 6], "a bound is a bound; the first and the newest stay"
    assert decide(scores, pins, n_excess=16, cells=[16, 16, 16, 4, 4, 16, 16, 3]).freed.tolist() == [3, 4, 5]
    assert decide(shape=PageShape(0, 0, 8), n_excess=20).freed.tolist() == [1, 2], "nobody observes: the oldest but the first"


def test_room_is_made_from_what_all_heads_together_value_least():
    scores = np.zeros(SHAPE.axes, np.float32)
    scores[:] = [5, 4, 1, 3, 3, 3, 3, 0]
    scores[0, 0, 3] = 0.1
    scores[1, 1, 2] = 9
    assert decide(scores, n_excess=17).freed.tolist() == [3, 4], "the best head wants page 2"
    assert decide(scores, n_excess=17, adds_up=True).freed.tolist() == [2, 3]
    pins = np.zeros(8, bool)
    pins[3] = True
    assert decide(scores, pins, n_excess=17, adds_up=True).freed.tolist() == [2, 4]
    gone = np.zeros(SHAPE.axes, np.uint8)
    gone[:, :, 4] = gone[0, :, 5] = 1
    assert decide(scores, gone=gone, n_excess=33, adds_up=True).freed.tolist() == [3, 4, 5], "no layer keeps 4; one that dropped 5 counts as its least"


def test_by_cell_the_sinks_and_the_newest_stay():
    positions = np.full((8, 16), -1, np.int32)
    positions.reshape(-1)[:100] = np.random.default_rng(3).permutation(100)

    def kept(sinks: int, keep: int, n_excess: int = 0, pinned=None) -> list[int]:
        demand = eviction.Demand(np.zeros(SHAPE.axes, np.uint8), positions.max(axis=1), (positions >= 0).sum(axis=1), Split.UNIFORM, 2, n_excess,
                                 positions, keep)
        left = positions.reshape(-1).copy()
        left[eviction.by_cell(demand, sinks, pinned)] = -1
        return sorted(left[left >= 0].tolist())

    assert kept(4, 20) == [0, 1, 2, 3, *range(84, 100)]
    assert kept(0, 20) == [0, *range(80, 100)], "a sequence is never without its first token"
    assert kept(4, 0) == kept(4, 100) == list(range(100))
    assert kept(4, 0, n_excess=30) == kept(4, 90, n_excess=30) == [0, 1, 2, 3, *range(34, 100)]
    assert kept(4, 20, n_excess=90) == [0, 1, 2, 3, *range(94, 100)], "room for the next batch counts more than what is kept"
    pinned = np.zeros(8, bool)
    pinned[3] = True
    assert kept(4, 20, pinned=pinned) == sorted({0, 1, 2, 3, *positions[3].tolist(), *[p for p in range(99, -1, -1) if p not in positions[3]][:16]})
    nothing = eviction.Demand(np.zeros(SHAPE.axes, np.uint8), positions.max(axis=1), (positions >= 0).sum(axis=1), Split.UNIFORM, 2)
    assert not len(eviction.by_cell(nothing, 4, None))
