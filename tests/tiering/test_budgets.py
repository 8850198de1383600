"""Dividing a page budget, against a plain loop."""

import numpy as np
import pytest

from edgekv.common.enums import Split
from edgekv.common.errors import ConfigError
from edgekv.tiering.budgets import LAYER_FLOOR, SPLITS, divide, layer_weights

ROWS, HEADS, PAGES = 4, 3, 23


def plain_best(values: list[float], n: int) -> set[int]:
    """The indices of the n best values; of equal values the later one wins."""
    order = sorted((i for i in range(len(values)) if values[i] > -np.inf), key=lambda i: (-values[i], -i))
    return set(order[: max(n, sum(v == np.inf for v in values))])


def plain(split: Split, scores, always, visible, n_budget) -> np.ndarray:
    taken = np.zeros(scores.shape, bool)
    value = np.where(visible, np.where(always, np.inf, scores), -np.inf)
    if split is Split.POOLED:
        for i in plain_best(value.reshape(-1).tolist(), round(n_budget * ROWS * HEADS)):
            taken.reshape(-1)[i] = True
    for row in range(ROWS):
        weight = layer_weights(split, ROWS)[row]
        if split is Split.LAYER:
            for head in range(HEADS):
                for page in plain_best(value[row, head].tolist(), round(LAYER_FLOOR * n_budget)):
                    value[row, head, page] = np.inf
            for i in plain_best(value[row].reshape(-1).tolist(), round(n_budget * HEADS)):
                taken[row].reshape(-1)[i] = True
        elif split is not Split.POOLED:
            for head in range(HEADS):
                for page in plain_best(value[row, head].tolist(), round(n_budget * weight)):
                    taken[row, head, page] = True
    return taken


@pytest.mark.parametrize("split", list(Split))
@pytest.mark.parametrize("n_budget", [0, 1, 2.4, 5, 11, 23, 40])
@pytest.mark.parametrize("ties", [False, True])
def test_against_a_loop(split: Split, n_budget: float, ties: bool):
    rng = np.random.default_rng(7)
    scores = rng.gamma(0.3, size=(ROWS, HEADS, PAGES))
    if ties:
        scores = np.round(scores)
    always, visible = np.arange(PAGES) < 2, np.arange(PAGES) != 5
    always[5] = True  # an invisible page is not taken, even if it is always wanted
    np.testing.assert_array_equal(divide(split, scores, always, visible, n_budget), plain(split, scores, always, visible, n_budget))


@pytest.mark.parametrize("split", list(Split))
@pytest.mark.filterwarnings("error")
def test_an_endless_budget_takes_everything(split: Split):
    scores = np.random.default_rng(1).random((ROWS, HEADS, PAGES))
    assert divide(split, scores, np.zeros(PAGES, bool), np.ones(PAGES, bool), np.inf).all()


def test_pyramid_falls_to_a_twentieth():
    weights = layer_weights(Split.PYRAMID, 30)
    assert weights.mean() == pytest.approx(1) and weights[-1] == pytest.approx(1 / 20) and (np.diff(weights) < 0).all()


@pytest.mark.parametrize("split", list(Split))
def test_heads_that_a_layer_lacks_take_nothing(split: Split):
    exists = np.ones((2, 3), bool)
    exists[1, 2] = False
    taken = divide(split, np.ones((2, 3, 10)), np.zeros(10, bool), np.ones(10, bool), 4, exists)
    assert not taken[1, 2].any() and taken.any()


def test_a_negative_budget_is_refused():
    with pytest.raises(ConfigError, match="negative"):
        divide(Split.POOLED, np.ones((1, 1, 1)), np.zeros(1, bool), np.ones(1, bool), -1)


def test_every_split_is_listed():
    assert {SPLITS.get(name) for name in SPLITS} == set(Split) and all(SPLITS.source(name) for name in SPLITS)
