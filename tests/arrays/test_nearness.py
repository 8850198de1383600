"""Which parts of a text a message is near: weights of tokens, means of values, cosines."""

import numpy as np

from edgekv.arrays.nearness import RARE, embedding, nearest, nearness, weights


def test_rare_tokens_weigh_more():
    text = np.array([7] * 9 + [3], np.int32)
    found = weights(np.array([3, 7, 99, 0], np.int32), text)
    np.testing.assert_allclose(found, [RARE / (RARE + 0.1), RARE / (RARE + 0.9), 1, 1], rtol=1e-6)


def test_an_embedding_is_a_weighted_mean():
    values = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    np.testing.assert_allclose(embedding(values, np.array([0, 3, 1], np.float32)), [[2.5, 3.5], [8.5, 9.5]])


def test_the_part_that_is_meant_is_nearest():
    """Also where all parts have a large mean in common, as values of real models do."""
    random = np.random.default_rng(0)
    parts = random.normal(size=(20, 3, 64)).astype(np.float32)
    message = parts[13] + random.normal(size=(3, 64)).astype(np.float32)
    common = 100 * random.normal(size=(3, 64)).astype(np.float32)
    scores = nearness(parts + common, message + common)
    assert scores.argmax() == 13 and scores[13] > 1.5 and abs(np.delete(scores, 13)).max() < 1


def test_parts_that_are_alike_are_near_nothing():
    alike = np.ones((4, 2, 8), np.float32)
    assert not nearness(alike, np.zeros((2, 8), np.float32)).any()


def test_the_nearest_that_fit_come_in_order():
    scores, sizes = np.array([0.2, 0.9, -0.1, 0.5, 0.4]), np.array([10, 30, 10, 40, 20])
    assert nearest(scores, sizes, 60) == [0, 1, 4], "40 tokens do not fit behind 30"
    assert nearest(scores, sizes, 109) == [0, 1, 3, 4], "what is farther than the mean stays away"
    assert nearest(scores, sizes, 110) == [0, 1, 2, 3, 4], "there is room for all"
    assert nearest(scores, sizes, 5) == []
