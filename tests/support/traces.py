"""Traces of random numbers, for tests that need no model, and their replay."""

import numpy as np

from edgekv.lab.traces.sim import Replay, Scenario
from edgekv.lab.traces.trace import Trace, TraceHeader


def header(n_layers: int = 3, n_heads: int = 2, depth: int = 300, n_warmup: int = 5, n_steps: int = 40, group: int = 2,
           lacking: bool = True) -> TraceHeader:
    """lacking: the last layer has one head less."""
    exists = np.ones((n_layers, n_heads), bool)
    exists[-1, -1] = not lacking
    return TraceHeader("random.gguf", "noise", depth, n_warmup, n_steps, n_heads, (depth + n_steps - 1) // 16 + 1, 16,
                  tuple(range(1, n_layers + 1)), (group,) * n_layers, tuple(map(tuple, exists.tolist())), 600.0, rope=(64, 64, 10000.0, 1.0))


def masses(header: TraceHeader, seed: int = 0) -> np.ndarray:
    """float32 [step, layer, head, page]: some pages matter for long, some for a few steps; each head's mass is its group size."""
    rng = np.random.default_rng(seed)
    axes = (header.n_total, *header.shape.axes)
    slow = rng.gamma(0.2, 1.0, (1, *axes[1:]))
    burst = np.repeat(rng.gamma(0.1, 1.0, (-(-axes[0] // 8), *axes[1:])), 8, axis=0)[: axes[0]]
    mass = (slow + burst + 1e-3) * rng.gamma(2.0, 0.5, axes)
    for step in range(axes[0]):
        mass[step, ..., header.n_used_end(step) :] = 0
    mass *= np.array(header.exists)[None, :, :, None]
    total = mass.sum(axis=-1, keepdims=True)
    mass = np.divide(mass, total, out=np.zeros_like(mass), where=total > 0)
    return (mass * np.array(header.groups)[None, :, None, None]).astype(np.float32)


def sampled(header: TraceHeader, mass: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(mass, rows read): mass of a sample of rows, without bias and zero where none was drawn. The rows of a page are alike."""
    share = mass / np.array(header.groups, np.float32)[None, :, None, None]
    p = np.minimum(header.resolution * share / header.page_tokens, 1)
    n_read = np.random.default_rng(seed + 1).binomial(header.page_tokens, p)
    expected = header.page_tokens * p
    return mass * np.divide(n_read, expected, out=np.zeros_like(expected), where=expected > 0), n_read.astype(np.uint16)


def random_trace(seed: int = 0, **shape) -> Trace:
    of = header(**shape)
    mass = masses(of, seed)
    seen, n_read = sampled(of, mass, seed)
    return Trace.of(of, mass, seen, n_read, mass * np.float32(0.75), seen * np.float32(0.75))


def replayed(trace: Trace, scenario: Scenario):
    """(replay, step, whether it was measured) after each step."""
    replay = Replay(trace, scenario)
    for step in trace:
        replay.step(step)
        yield replay, step, not step.warmup
