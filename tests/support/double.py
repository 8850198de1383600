"""A synthetic model of kind llama with F32 weights, computed in NumPy: the yardstick of kernels whose bounds follow from arithmetic.

What a context stores is rounded (to f16, q8_0 or q4_0), and a rounding may flip with the last bit of what is rounded. So attention is
computed from the very rows that the context has stored, and the rows are compared by themselves with what should have been stored.
What is left between the two is the arithmetic of single precision.

llama.cpp turns what it stores in a quantised cache by a Walsh-Hadamard matrix, where the head size is a multiple of 64, so that no
channel stands out: K by the largest that divides the head, V by one of 64 (llama_kv_cache::build_input_k_rot). So does this.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np

EPS = 1e-5
"""Of the RMS norm, as edgekv.models.synth writes it."""


def _codes(rows: np.ndarray) -> np.ndarray:
    """float64 [..., 32]: each value of a block divided by its scale."""
    codes = rows["codes"]
    if codes.shape[-1] == 16:  # q4_0: values i and i + 16 in byte i, plus 8
        return np.concatenate([codes % 16, codes // 16], axis=-1).astype(np.float64) - 8
    return codes.astype(np.float64)


def as_values(rows: np.ndarray) -> np.ndarray:
    """K or V of one stream as `Cells.keys` gives it, f16 or blocks: float64 [cell, kv_head, head_dim]."""
    if rows.dtype.names is None:
        return rows.astype(np.float64)
    return (rows["scale"].astype(np.float64)[..., None] * _codes(rows)).reshape(*rows.shape[:-1], -1)


def rounding(rows: np.ndarray) -> np.ndarray:
    """Half the distance of two neighbours of each stored value: what rounding may have cost it. Shaped like `as_values`."""
    if rows.dtype.names is None:
        return np.spacing(np.abs(rows)).astype(np.float64) / 2
    scale, codes = np.abs(rows["scale"])[..., None], _codes(rows)
    four_bits = rows["codes"].shape[-1] == 16
    steps = np.where(four_bits & (codes == 7), 1, 0.5)  # up to 8 becomes 7
    # the scale itself is rounded to f16: a code of up to 127 times that, or 8
    half = steps * scale.astype(np.float64) + (8 if four_bits else 127) * np.spacing(scale).astype(np.float64) / 2
    return half.reshape(*rows.shape[:-1], -1)


class Reference:
    """The model in `path`, in arithmetic of type `dtype`."""

    def __init__(self, path: Path, dtype: type = np.float64):
        reader = gguf.GGUFReader(path)
        self.dtype = dtype
        self.weights = {tensor.name: np.array(tensor.data, dtype) for tensor in reader.tensors}
        fields = {name.partition(".")[2]: field.contents() for name, field in reader.fields.items() if name.startswith("llama.")}
        self.n_layer, self.n_head, self.n_head_kv = (int(fields[name]) for name in (
            "block_count", "attention.head_count", "attention.head_count_kv"))
        self.base = float(fields["rope.freq_base"])

    def logits(self, tokens: Sequence[int], first: int, keys: Sequence[np.ndarray], values: Sequence[np.ndarray]
               ) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
        """Logits [token, n_vocab] of tokens[first:], each at its own index as position, from the stored rows of every layer (as
        `Cells.keys` gives a stream's, cell = position); and the (K, V) of each layer that these tokens should have stored."""
        x = self._of("token_embd", tokens[first:])
        positions, stored = np.arange(first, len(tokens)), []
        for layer in range(self.n_layer):
            block = f"blk.{layer}"
            h = self._norm(x, f"{block}.attn_norm")
            q, k, v = (self._matrix(h, f"{block}.attn_{part}") for part in "qkv")
            q, k, v = (part.reshape(len(x), n, -1) for part, n in ((q, self.n_head), (k, self.n_head_kv), (v, self.n_head_kv)))
            head_dim = q.shape[-1]
            turn_k, turn_v = self._turn(keys[layer], head_dim, head_dim & -head_dim), self._turn(values[layer], head_dim, 64)
            q, k, v = turn_k(self._rope(q, positions)), turn_k(self._rope(k, positions)), turn_v(v)
            stored.append((k, v))
            out = turn_v(self._attend(q, as_values(keys[layer]), as_values(values[layer]), positions))
            x = x + self._matrix(out.reshape(len(x), -1), f"{block}.attn_output")
            h = self._norm(x, f"{block}.ffn_norm")
            gate, up = (self._matrix(h, f"{block}.ffn_{part}") for part in ("gate", "up"))
            x = x + self._matrix(gate / (1 + np.exp(-gate)) * up, f"{block}.ffn_down")
        return self._matrix(self._norm(x, "output_norm"), "output"), stored

    def _attend(self, q: np.ndarray, keys: np.ndarray, values: np.ndarray, positions: np.ndarray) -> np.ndarray:
        keys, values = (np.repeat(rows.astype(self.dtype), self.n_head // self.n_head_kv, axis=1) for rows in (keys, values))
        scores = np.einsum("thd,chd->thc", q, keys) * self.dtype(1 / np.sqrt(q.shape[-1]))
        scores[np.broadcast_to(np.arange(len(keys)) > positions[:, None, None], scores.shape)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("thc,chd->thd", weights / weights.sum(-1, keepdims=True), values)

    def _turn(self, rows: np.ndarray, head_dim: int, n: int) -> Callable[[np.ndarray], np.ndarray]:
        """A function that turns rows as the cache of `rows` stores them, by blocks of n channels. Turning twice undoes it."""
        if rows.dtype.names is None or head_dim % 64:
            return lambda x: x
        matrix = np.ones((1, 1))
        while len(matrix) < n:
            matrix = np.block([[matrix, matrix], [matrix, -matrix]])
        matrix = (matrix / np.sqrt(n)).astype(self.dtype)
        return lambda x: (x.reshape(*x.shape[:-1], -1, n) @ matrix).reshape(x.shape)

    def _rope(self, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        n = x.shape[-1] // 2
        step = self.dtype(self.base ** (-1 / n))
        angle = positions.astype(self.dtype)[:, None] * np.cumprod(np.r_[self.dtype(1), np.full(n - 1, step)])  # as ggml has it
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        even, odd = x[..., ::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.dtype(EPS)) * self.weights[f"{name}.weight"]

    def _matrix(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.weights[f"{name}.weight"].T

    def _of(self, name: str, tokens: Sequence[int]) -> np.ndarray:
        return self.weights[f"{name}.weight"][np.asarray(tokens)]
