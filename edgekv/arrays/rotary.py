"""The fall of attention with distance that rotary position embedding causes."""

import numpy as np


def distance_prior(n_distances: int, head_dim: int, n_rot: int, base: float, factor: float = 1.0) -> np.ndarray:
    """float32 [n_distances]: mean logit of a key at each distance from the query, relative to distance 0.

    RoPE (Su et al., arXiv:2104.09864, section 3.3) rotates the channel pair i of n_rot / 2 by position * theta_i, with theta_i =
    base ^ (-2 i / n_rot) / factor (linear scaling divides positions by `factor`). For a query and a key whose channel pairs
    correlate equally, the logit is then proportional to

        prior(distance) = (2 / head_dim) * (sum_i cos(distance * theta_i) + (head_dim - n_rot) / 2)

    The last term is for the channels that are not rotated.
    """
    theta = base ** (-np.arange(0, n_rot, 2, dtype=np.float64) / n_rot) / factor
    prior = np.empty(n_distances, np.float32)
    for start in range(0, n_distances, 4096):  # in parts, to bound the table of angles
        distance = np.arange(start, min(start + 4096, n_distances), dtype=np.float64)
        turned = np.cos(distance[:, None] * theta).sum(axis=1)
        prior[start : start + 4096] = (turned + (head_dim - n_rot) / 2) * (2 / head_dim)
    return prior
