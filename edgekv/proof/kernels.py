"""Our kernels on the card, one by one, against the reference of the processor's kernels: attention over pages and over lists with the merge, the store
of rows with their sketches, and the scan of sketches. What moves pages, samples rows and sees masks shows in the plane alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from msgspec import to_builtins

from edgekv._native import device_calls
from edgekv._native.device_calls import KernelCase
from edgekv.common.enums import CacheType, DeviceKind
from edgekv.common.errors import ConfigError, NativeError
from edgekv.proof.steps import HeadShape, Outcome, Part, Told

HEADS = (HeadShape(8, 2, 64), HeadShape(4, 4, 80), HeadShape(8, 1, 96), HeadShape(16, 2, 128), HeadShape(10, 2, 192), HeadShape(8, 1, 256))
"""Shapes of known models, besides MODEL's."""

TYPES = (("f16", "f16"), ("q8_0", "q4_0"), ("q8_0", "q8_0"), ("q4_0", "q4_0"))
CELLS = ((1, 577), (5, 290), (16, 4160))
"""(tokens, cells): one token, several with a page that is not full, and a long step."""
EMULATED_CELLS = ((1, 577), (5, 150), (16, 90))
"""The same, for a device in host memory."""
FEW = 2
"""Types, lengths and shapes of a quick run."""


def run(part: Part) -> Iterator[Told]:
    if part.replay:
        outcome, said, _ = _tried(part, part.replay["kernel"], KernelCase(**part.replay["case"]))
        yield part.name, outcome, said, part.replay
        return
    for kernel, heads in product(device_calls.KERNELS, dict.fromkeys((part.shape, *HEADS[: FEW - 1 if part.quick else None]))):
        yield f"{kernel} {heads.n_head}/{heads.n_head_kv} heads of {heads.head_dim}", *_judged(part, kernel, heads)


def _judged(part: Part, kernel: str, heads: HeadShape) -> tuple[Outcome, str, dict]:
    """All types and lengths of one kernel and shape; the first that is wrong."""
    worst, n = 0.0, 0
    few, cells = FEW if part.quick else None, EMULATED_CELLS if part.emulated else CELLS
    lengths = cells[:few] if kernel.startswith("attend") else cells[1:few]  # the others know no tokens
    for (type_k, type_v), (n_tokens, n_cells) in product(TYPES[:few], lengths):
        case = KernelCase(heads.head_dim, heads.n_head, heads.n_head_kv, n_tokens, n_cells, CacheType(type_k).ggml_type, CacheType(type_v).ggml_type, n + 1)
        try:
            outcome, said, error = _tried(part, kernel, case)
        except ConfigError:
            continue  # rows in blocks need head sizes that are multiples of 32
        if outcome is not Outcome.RIGHT:
            return outcome, f"K {type_k}, V {type_v}, {n_tokens} tokens, {n_cells} cells: {said}", {"kernel": kernel, "case": to_builtins(case)}
        worst, n = max(worst, error), n + 1
    return (Outcome.RIGHT, f"{n} cases, error {worst:.2g} of what is allowed", {}) if n else (Outcome.SKIPPED, "no kernel serves such heads", {})


def _tried(part: Part, kernel: str, case: KernelCase) -> tuple[Outcome, str, float]:
    """The last is the error in units of what is allowed. Raises ConfigError for heads that no kernel serves."""
    try:
        found = device_calls.try_kernel(DeviceKind(part.kind), part.index, kernel, case)
    except NativeError as error:
        return (Outcome.SKIPPED if "do not serve" in str(error) else Outcome.WRONG), str(error), 0.0
    wrong = {f"the error is {found.error:.3g} times what is allowed": not found.error <= 1, "three runs differ: a race": not found.same,
             "it writes beside its buffers": not found.inside}
    if any(wrong.values()):
        return Outcome.WRONG, "; ".join(what for what in wrong if wrong[what]), found.error
    return Outcome.RIGHT, f"error {found.error:.2g} of what is allowed", found.error
