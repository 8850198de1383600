"""How far pages stand behind the newest token of their stream. Positions are known on the host; scores by them go to all heads alike."""

from __future__ import annotations

import numpy as np

from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape

KEPT = 1024.0
"""A score above any mass per token, which is at most the query heads of a group: of what its source keeps whatever its attention."""


def newest(shape: PageShape, observation: Observation) -> np.ndarray:
    """int32 [stream]: the newest position of each stream, -1 where it is empty."""
    return observation.page_positions.reshape(-1, max(1, shape.pages_per_stream)).max(axis=1)


def by_page(shape: PageShape, streams: np.ndarray) -> np.ndarray:
    """A value of each stream, for each of its pages."""
    return np.repeat(streams, shape.pages_per_stream)


def recency(shape: PageShape, observation: Observation) -> np.ndarray:
    """float32 [:n_used_end]: 1 / (1 + age in pages), where a page's age is the distance of its newest token from that of its stream;
    an empty page has 0."""
    end = observation.n_used_end
    positions = observation.page_positions[:end]
    age = by_page(shape, newest(shape, observation))[:end] - positions
    return np.where(positions >= 0, 1 / (1 + age / shape.page_tokens), 0).astype(np.float32)


def within(shape: PageShape, observation: Observation, n_tokens: int) -> np.ndarray:
    """bool [page]: the page has one of the n_tokens newest positions of its stream."""
    # an empty page is at -1: it is never newer than a stream's start
    return observation.page_positions > np.maximum(by_page(shape, newest(shape, observation)) - n_tokens, -1)
