"""Ages of pages, counted from the newest token of their stream. The host knows the positions; all heads get the same score."""

import numpy as np

from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape

KEPT = 1024.0
"""The score of pages that a policy keeps whatever their attention. Mass per token is at most the number of query heads in a group."""


def newest(shape: PageShape, observation: Observation) -> np.ndarray:
    """int32 [stream]: the newest position of each stream, -1 if it is empty."""
    return observation.page_positions.reshape(-1, max(1, shape.pages_per_stream)).max(axis=1)


def by_page(shape: PageShape, streams: np.ndarray) -> np.ndarray:
    """[page]: the value of each page's stream, from [stream]."""
    return np.repeat(streams, shape.pages_per_stream)


def recency(shape: PageShape, observation: Observation) -> np.ndarray:
    """float32 [:n_used_end]: 1 / (1 + age in pages), 0 for an empty page. A page's age is the distance from its newest token to the newest
    token of its stream."""
    end = observation.n_used_end
    positions = observation.page_positions[:end]
    age = by_page(shape, newest(shape, observation))[:end] - positions
    return np.where(positions >= 0, 1 / (1 + age / shape.page_tokens), 0).astype(np.float32)


def within(shape: PageShape, observation: Observation, n_tokens: int) -> np.ndarray:
    """bool [page]: the page has one of the n_tokens newest positions of its stream."""
    # an empty page is at -1, which is never above the bound
    return observation.page_positions > np.maximum(by_page(shape, newest(shape, observation)) - n_tokens, -1)


def begins_before(shape: PageShape, page_positions: np.ndarray, n_tokens: int) -> np.ndarray:
    """bool [page]: the page has tokens and begins before position n_tokens. page_positions: as in `Observation`."""
    # a full page begins page_tokens - 1 before its newest position
    return (page_positions >= 0) & (page_positions < (n_tokens + shape.page_tokens - 1 if n_tokens else 0))
