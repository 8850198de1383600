"""Which earlier parts of a text a message is near, by the values (V) of their tokens."""

import numpy as np

RARE = 1e-3
"""A token that is one of a thousand weighs half of one that comes once: Arora et al., "A simple but tough-to-beat baseline for sentence embeddings"
(ICLR 2017), whose weight is a / (a + frequency)."""


def weights(tokens: np.ndarray, text: np.ndarray) -> np.ndarray:
    """float32 [n]: the weights of tokens (int32 [n]) in a mean, by their frequency in a text (int32 [m], m >= 1). Words weigh more than a template's frame."""
    known, counts = np.unique(text, return_counts=True)
    at = np.minimum(np.searchsorted(known, tokens), len(known) - 1)
    frequency = np.where(known[at] == tokens, counts[at], 0) / len(text)
    return (RARE / (RARE + frequency)).astype(np.float32)


def embedding(values: np.ndarray, of_tokens: np.ndarray) -> np.ndarray:
    """float32 [layer, channel]: the weighted mean of the values of some layers, float32 [layer, n, channel]; `of_tokens`: float32 [n], at least one > 0."""
    return (values * of_tokens[None, :, None]).sum(axis=1) / of_tokens.sum()


def nearness(embeddings: np.ndarray, message: np.ndarray) -> np.ndarray:
    """float32 [part]: how near a message (float32 [layer, channel]) is to parts (float32 [part, layer, channel]): the cosine of what tells them from
    the mean part, summed over layers. Below 0: as far as the mean, or farther."""
    mean = embeddings.mean(axis=0)
    return (_unit(embeddings - mean) * _unit(message - mean)).sum(axis=(1, 2))


def nearest(scores: np.ndarray, n_tokens: np.ndarray, most: int) -> list[int]:
    """The numbers of the nearest parts that fit into so many tokens, in order; if all fit, all. A part that does not fit is passed over."""
    if n_tokens.sum() <= most:
        return list(range(len(scores)))
    chosen, room = [], most
    for part in np.argsort(-scores, kind="stable"):
        if scores[part] > 0 and n_tokens[part] <= room:
            chosen.append(int(part))
            room -= int(n_tokens[part])
    return sorted(chosen)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
