"""The largest and the smallest of many values, in order."""

import numpy as np


def largest(values: np.ndarray, k: int) -> np.ndarray:
    """int64 [min(k, n)]: indices of the k largest of `values` [n], largest first; of equal values the lower index comes first."""
    if k <= 0 or not len(values):
        return np.empty(0, np.int64)
    if k < len(values):
        # partitioning values is several times faster than partitioning indices, and keeps ties at the boundary in order
        least = np.partition(values, len(values) - k)[len(values) - k]
        chosen = np.flatnonzero(values >= least)
        if len(chosen) > k:
            above = values[chosen] > least
            chosen = np.sort(np.concatenate((chosen[above], chosen[~above][: k - np.count_nonzero(above)])))
    else:
        chosen = np.arange(len(values))
    return chosen[np.argsort(-values[chosen], kind="stable")]


def smallest(values: np.ndarray, k: int) -> np.ndarray:
    """The k smallest, smallest first, like `largest`."""
    return largest(-values, k)


def listed_largest(values: np.ndarray, ids: np.ndarray, k: int) -> np.ndarray:
    """int64 [min(k, n)]: indices of the k largest of `values` [n], largest first; of equal values the lower of `ids` comes first."""
    chosen = np.arange(len(values))
    if 0 < k < len(values):
        chosen = np.flatnonzero(values >= np.partition(values, len(values) - k)[len(values) - k])
    return chosen[np.lexsort((ids[chosen], -values[chosen]))][: max(0, k)]
