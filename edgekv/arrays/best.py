"""The best pages of each head."""

from edgekv.arrays.ops import Array, Ops


def best(ops: Ops, values: Array, n: int) -> Array:
    """bool [layer, head, page]: the n largest `values` (float [layer, head, page], not negative) of each head that are above zero, and all that
    equal the n-th."""
    n_pages = values.shape[2]
    if n >= n_pages:
        return values > 0
    if n <= 0:
        return values < 0
    least = ops.xp.partition(values, n_pages - n, axis=2)[:, :, n_pages - n : n_pages - n + 1]
    return (values >= least) & (values > 0)
