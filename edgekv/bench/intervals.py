"""95 % intervals of the counts and means of benchmarks."""

from collections.abc import Sequence

import numpy as np

Z = 1.959963984540054
"""97.5 % quantile of the normal distribution: 95 % between -Z and Z."""

N_RESAMPLES = 2000


def wilson(n_found: int, n_asked: int) -> tuple[float, float]:
    """Interval of a share, from `n_found` of `n_asked`; (0, 1) if `n_asked` is 0.

    The score interval: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", Journal of the
    American Statistical Association 22 (1927). Unlike mean plus-minus error it stays inside 0 to 1 and has a width at 0 and 1.
    """
    if not 0 <= n_found <= n_asked:
        raise ValueError(f"{n_found} of {n_asked} is not a share")
    if n_asked == 0:
        return 0.0, 1.0
    share, z2 = n_found / n_asked, Z * Z
    centre = share + z2 / (2 * n_asked)
    half = Z * np.sqrt(share * (1 - share) / n_asked + z2 / (4 * n_asked * n_asked))
    low, high = (float(value) / (1 + z2 / n_asked) for value in (centre - half, centre + half))
    # at the ends the exact bound is 0 or 1; rounding must not miss it
    return (0.0 if n_found == 0 else low), (1.0 if n_found == n_asked else high)


def of_mean(values: Sequence[float] | np.ndarray, seed: int = 0) -> tuple[float, float]:
    """Interval of the mean of `values`, one for each position of a text, from resampled blocks of neighbours.

    Why blocks: a mode that misses something at one position misses it at the next ones too, so positions are not independent. Why no normal
    approximation: most divergences are tiny and a few are large, so its interval of the mean would reach below zero.
    The blocks are circular, so that each position counts alike (D. N. Politis and J. P. Romano, "A circular block-resampling
    procedure for stationary data", 1992), n^(1/3) positions long (P. Hall, J. L. Horowitz and B.-Y. Jing, "On blocking rules
    for the bootstrap with dependent data", Biometrika 82, 1995), and the interval lies between the 2.5 % and 97.5 % quantiles
    of the resampled means. Differences of two modes at the same positions make it a paired comparison. The seed makes it
    repeatable.
    """
    x = np.asarray(values, np.float64)
    if not len(x):
        return float("nan"), float("nan")
    length = max(1, round(len(x) ** (1 / 3)))
    n_blocks = -(-len(x) // length)
    starts = np.random.default_rng(seed).integers(0, len(x), (N_RESAMPLES, n_blocks))
    block_sums = np.convolve(np.concatenate([x, x[: length - 1]]), np.ones(length), "valid")
    low, high = np.percentile(block_sums[starts].sum(1) / (n_blocks * length), (2.5, 97.5))
    return float(low), float(high)
