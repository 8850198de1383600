"""Norms of K or V rows."""

import numpy as np


def row_norms(rows: np.ndarray) -> np.ndarray:
    """float32 [...]: L2 norm of each row. rows: float16 [..., head_dim], or q8_0 blocks [..., head_dim / 32] with the fields `scale` and
    `codes` [32] (value = scale * code)."""
    if rows.dtype.names is None:
        return np.linalg.norm(rows.astype(np.float32), axis=-1)
    squares = (rows["codes"].astype(np.float32) ** 2).sum(axis=-1)
    return np.sqrt((rows["scale"].astype(np.float32) ** 2 * squares).sum(axis=-1))


def page_norms(rows: np.ndarray, valid: np.ndarray, page_tokens: int) -> np.ndarray:
    """float32 [page, head]: mean norm of each page's valid rows, 0 if there are none.

    rows: as for `row_norms`, [cell, head, ...], from a page's first cell on; valid: bool [cell].
    """
    norms = row_norms(rows) * valid[:, None]
    starts = np.arange(0, len(valid), page_tokens)
    n_valid = np.add.reduceat(valid.astype(np.int64), starts)
    return np.add.reduceat(norms, starts, axis=0) / np.maximum(1, n_valid)[:, None]
