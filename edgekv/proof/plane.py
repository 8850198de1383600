"""The data plane on the card, whole: a tiny model answers through everything that happens to a context, and its logits are compared with those of the
processor. Stock attention on the card shows the noise between the two."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgekv._native import core, device_calls, testing
from edgekv.common.enums import DeviceKind, KvMode
from edgekv.common.errors import CudaUnavailable, DoesNotFit, EdgeKVError
from edgekv.config import KvOptions
from edgekv.llama import ALL_LAYERS, Llama
from edgekv.measure.decoder import Decoder
from edgekv.models import synth
from edgekv.proof.steps import EXACT, RING, SPARSE_ALL, SPARSE_TENTH, STOCK, Outcome, Part

READ_ALL = {"mode": "sparse", "sample_budget": 1e9, "exact_tokens": 0}
TENTH = {"mode": "sparse", "attend": "10%", "exact_tokens": 0, "recent_tokens": 16, "error_every": 0}

OPTIONS: dict[str, dict[str, Any]] = {STOCK: {"mode": "off"}, EXACT: {"mode": "exact"}, RING: {"mode": "exact"}, SPARSE_ALL: READ_ALL,
                                      SPARSE_TENTH: TENTH}

FLOOR = 1e-6
"""KL divergence that the order of sums explains: with F32 weights it moves a logit by 1e-4, and where that turns the rounding of a stored row, by less
than 1e-3 (e^2 / 2, Hoeffding); twice that."""
NOISE = 4
"""Times the stock attention's own distance from the processor that ours may have. Both are one run each."""

BATCH = 256
"""Tokens that are read at once."""

Logits = dict[str, np.ndarray]
"""float32 [step, n_vocab] of each stage."""


@dataclass(frozen=True)
class Walk:
    """A case's contexts and what happens in them."""

    path: Path
    part: Part
    on_card: bool
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def n_prompt(self) -> int:
        """Read in pieces of BATCH, of which the last is long enough to be a prompt too."""
        return 330 if self.part.quick or self.part.kind != DeviceKind.CUDA.value else 3000

    @contextmanager
    def opened(self, **changes: Any) -> Iterator[tuple[Llama, Decoder]]:
        """A context, on the card with all layers."""
        device = self.part.kind if self.on_card else DeviceKind.HOST.value
        kv = KvOptions(attention_device=device, **self.options | changes)
        llama = Llama(str(self.path), kv_options=kv, n_ctx=-(-2 * self.n_prompt // 512) * 512, n_batch=BATCH, n_ubatch=BATCH, n_threads=2, verbose=False,
                      n_gpu_layers=ALL_LAYERS if self.on_card else 0, op_offload=self.on_card)
        decoder = Decoder(llama)
        try:
            handle = llama.kv._native_handle()
            if self.on_card and kv.mode is not KvMode.OFF and device_calls.plane(handle) is None:
                raise core.device_problem(handle) or CudaUnavailable("attention does not run on the card, and nothing says why")
            if self.on_card and not self.part.arena:
                llama.kv.give_back(1 << 60)
            yield llama, decoder
            if kv.mode is not KvMode.OFF:
                _check(llama)
        finally:
            decoder.close()
            llama.close()

    def logits(self) -> Logits:
        """What every stage gives."""
        found: Logits = {}
        tokens = np.random.default_rng(0).integers(260, 350, 2 * self.n_prompt).tolist()
        with self.opened() as (llama, decoder):
            def stage(name: str, sizes: tuple[int, ...] = (1,) * 4, of: Decoder | None = None) -> None:
                found[name] = np.stack([self._step(of or decoder, tokens, n) for n in sizes])

            decoder.read(tokens[: self.n_prompt], BATCH)
            found["prompt"] = decoder.logits()[None]
            stage("tokens", (1,) * (8 if self.part.quick else 20) + (2, 5, 16, 1))
            decoder.rewind(decoder.position - 30)
            stage("rewind")
            decoder.shift(64, 48)
            stage("shift")
            saved = decoder.snapshot()
            with self.opened(**self._less(llama)) as (_, other):
                other.restore(saved)
                stage("save and load", of=other)
                stage("a second context", of=other)
                stage("the first beside it")
                stage("the second beside it", of=other)
            decoder.restore(saved)
            for name, change in self._changes().items():
                llama.kv.configure(llama.kv.options.with_(**change))
                if self.on_card and not self.part.arena:
                    llama.kv.give_back(1 << 60)
                stage(name)
        return found

    def _step(self, decoder: Decoder, tokens: list[int], n: int) -> np.ndarray:
        decoder.decode(tokens[decoder.position : decoder.position + n])
        return decoder.logits()

    def _less(self, llama: Llama) -> dict[str, Any]:
        """A smaller budget on the card, for the second context."""
        plane = device_calls.plane(llama.kv._native_handle()) if self.on_card and self.part.arena else None
        return {} if plane is None else {"kv_vram": plane.fixed_bytes + 2 * plane.budget_bytes // 3 - 2 * plane.fixed_bytes // 3}

    def _changes(self) -> dict[str, dict[str, Any]]:
        """Changes while it runs; those of budgets matter on the card only. Stock has none: the noise must not hold our own faults."""
        changes: dict[str, dict[str, Any]] = {}
        if self.options["mode"] == "off":
            return changes
        if self.part.name in (EXACT, SPARSE_ALL):
            changes |= {"to sparse": READ_ALL, "to stock": {"mode": "off"}, "to exact": {"mode": "exact"}, "to this mode": self.options}
        if self.part.name not in (STOCK, RING):
            small = {"kv_budget": 1 << 18} if self.on_card else {}
            changes |= {"a small budget": small, "no bound again": {"kv_budget": None} if self.on_card else {}}
        return changes


def _check(llama: Llama) -> None:
    """Every sketch and every slot is what the rows say."""
    found = testing.check(llama.kv._native_handle())
    if found.n_groups_wrong or found.n_slots_wrong:
        raise EdgeKVError(f"{found.n_groups_wrong} of {found.n_groups} sketches and {found.n_slots_wrong} of {found.n_slots} pages on the card are not "
                          "what their rows say")


def run(part: Part) -> Iterator[tuple[str, Outcome, str]]:
    with tempfile.TemporaryDirectory() as folder:
        s = part.shape
        path = synth.write("llama", Path(folder) / "tiny.gguf", n_layer=2, n_head=s.n_head, n_head_kv=s.n_head_kv, head_dim=s.head_dim, dtype="f32",
                           n_ctx_train=16_384)
        try:
            yield part.name, *_judged(path, part)
        except EdgeKVError as error:
            yield part.name, Outcome.WRONG, str(error)


def _judged(path: Path, part: Part) -> tuple[Outcome, str]:
    right = Walk(path, part, False, OPTIONS[EXACT]).logits()
    stock = _distances(Walk(path, part, False, OPTIONS[STOCK]).logits(), Walk(path, part, True, OPTIONS[STOCK]).logits())
    noise = max(stock.values())
    if not np.isfinite(noise):
        return Outcome.WRONG, "stock attention on the card gives no numbers"
    if part.name == STOCK:
        return Outcome.TOLD, f"KL divergence from the processor's up to {noise:.1e}, in {len(stock)} stages: the noise"
    options = OPTIONS[part.name]
    if part.name == RING:
        options = options | {"kv_vram": _ring_bytes(path, part)}
    logits, allowed = Walk(path, part, True, options).logits(), FLOOR + NOISE * noise
    if part.name == SPARSE_TENTH:  # a rounding may move a mark to another row: what sampling adds on the processor, it may add twice
        host = _distances(right, Walk(path, part, False, options).logits(), np.mean)
        return _told(_distances(right, logits, np.mean), lambda stage: 2 * host[stage] + allowed)
    return _told(_distances(right, logits), lambda stage: allowed)


def _told(ours: dict[str, float], allowed: Callable[[str], float]) -> tuple[Outcome, str]:
    for stage, distance in ours.items():
        if not distance <= allowed(stage):
            return Outcome.WRONG, f"{stage}: KL divergence from the processor {distance:.1e}, allowed are {allowed(stage):.1e}"
    worst = max(ours, key=lambda stage: ours[stage] / allowed(stage))
    return Outcome.RIGHT, f"{len(ours)} stages, KL divergence up to {ours[worst]:.1e} of {allowed(worst):.1e} allowed ({worst})"


def _ring_bytes(path: Path, part: Part) -> int:
    """A budget near the least: few pages have slots, and all others come through the ring. Raises EdgeKVError if there is none."""
    with Walk(path, part, True, OPTIONS[EXACT]).opened() as (llama, _):
        plane = device_calls.plane(llama.kv._native_handle())
        assert plane is not None
        plenty, home = plane.fixed_bytes, llama.kv.memory().home_bytes
    for share in (0.9, 1.0, 1.1, 1.2, 1.3):
        budget = int(share * plenty)
        with suppress(DoesNotFit), Walk(path, part, True, OPTIONS[EXACT] | {"kv_vram": budget}).opened() as (llama, _):
            if llama.kv.memory().arena_bytes < home // 2:
                return budget
    raise EdgeKVError("no budget was found that leaves pages to the ring")


def _distances(right: Logits, other: Logits, over: Callable[[np.ndarray], Any] = np.max) -> dict[str, float]:
    """KL divergence of each stage, over its steps; infinite where a logit is no number."""
    return {stage: float(over(_divergence(right[stage], logits))) if np.isfinite(logits).all() else np.inf
            for stage, logits in other.items() if stage in right}


def _divergence(right: np.ndarray, other: np.ndarray) -> np.ndarray:
    p, q = (logits - logits.max(axis=-1, keepdims=True) for logits in (right.astype(np.float64), other.astype(np.float64)))
    p, q = (logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)) for logits in (p, q))
    return (np.exp(p) * (p - q)).sum(axis=-1)
