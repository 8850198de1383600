"""The data plane on the card, whole: a tiny model answers through everything that happens to a context, and its logits are compared with those of the
processor. Stock attention on the card shows the noise between the two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field

from edgekv._native import core, device_calls, testing
from edgekv.common.enums import DeviceKind, KvMode
from edgekv.common.errors import CudaUnavailable, DoesNotFit, EdgeKVError
from edgekv.config import KvOptions
from edgekv.llama import Llama
from edgekv.measure.decoder import Decoder
from edgekv.opening import ALL_LAYERS
from edgekv.proof.models import small_model
from edgekv.proof.steps import COPIED_ROWS, EXACT, RING, SPARSE_ALL, SPARSE_TENTH, STOCK, Outcome, Part, Told

READ_ALL = {"mode": "sparse", "sample_budget": 1e9, "exact_tokens": 0}
TENTH = {"mode": "sparse", "exact_tokens": 0, "recent_tokens": 16, "error_every": 0}
PLANS = {"plan_every": 1}
"""Pages get slots within each event; a plan comes otherwise after 32 steps, which few events have. Through the ring most pages shall stay without."""

OPTIONS: dict[str, dict[str, Any]] = {STOCK: {"mode": "off"}, EXACT: {"mode": "exact", **PLANS}, RING: {"mode": "exact"},
                                      SPARSE_ALL: {**READ_ALL, **PLANS}, SPARSE_TENTH: {**TENTH, **PLANS}}

MODES: dict[str, dict[str, Any]] = {"to sparse": READ_ALL, "to stock": {"mode": "off"}, "to exact": {"mode": "exact"}, "to this mode": {}}
BUDGETS: dict[str, dict[str, Any]] = {COPIED_ROWS: {}, "a small budget": {"kv_budget": 1 << 18}, "no bound again": {"kv_budget": None}}

FLOOR = 1e-6
"""KL divergence that the order of sums explains: with F32 weights it moves a logit by 1e-4, and where that turns the rounding of a stored row, by less
than 1e-3 (e^2 / 2, Hoeffding); twice that."""
NOISE = 4
"""Times the stock attention's own distance from the processor that ours may have. Both are one run each."""

BATCH = 256
"""Tokens that are read at once."""

Logits = dict[str, np.ndarray]
"""float32 [step, n_vocab] of each stage."""


class Walk(Struct, frozen=True):
    """A case's contexts and what happens in them."""

    path: Path
    part: Part
    on_card: bool
    options: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def opened(self, **changes: Any) -> Iterator[tuple[Llama, Decoder]]:
        """A context, on the card with all layers."""
        device = self.part.kind if self.on_card else DeviceKind.HOST.value
        kv = KvOptions(attention_device=device, **self.options | changes)
        llama = Llama(str(self.path), kv_options=kv, n_ctx=-(-self._n_tokens // 512) * 512, n_batch=BATCH, n_ubatch=BATCH, n_threads=2, verbose=False,
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

    @property
    def _n_tokens(self) -> int:
        """Enough for all events."""
        return 2 * self.part.events[0][1]

    def logits(self) -> Logits:
        """What every event gives. Each has tokens of its own: where an earlier one's rows were left, they would be others."""
        found: Logits = {}
        with ExitStack() as stack:
            llama, decoder = stack.enter_context(self.opened())
            second = stack.enter_context(ExitStack())
            other, saved = decoder, None
            for number, (name, steps, *at) in enumerate(self.part.events):
                of, tokens = decoder, np.random.default_rng(number).integers(260, 350, self._n_tokens).tolist()
                if name in (*MODES, *BUDGETS) and self.options["mode"] == "off":
                    continue
                if name == "prompt":
                    decoder.read(tokens[:steps], BATCH)
                    found[name] = decoder.logits()[None]
                    continue
                if name == "rewind":
                    decoder.rewind(decoder.position - at[0])
                elif name == "shift":
                    decoder.shift(*at)
                elif name == "save and load":
                    saved = decoder.snapshot()
                    _, other = second.enter_context(self.opened(**self._less(llama)))
                    other.restore(saved)
                    of = other
                elif name in ("a second context", "the second beside it"):
                    of = other
                elif name == "load again" and saved is not None:
                    second.close()
                    decoder.restore(saved)
                elif name in (*MODES, *BUDGETS):
                    self._change(llama, name)
                found[name] = np.stack([self._step(of, tokens, n) for n in steps])
        return found

    def _change(self, llama: Llama, name: str) -> None:
        """Budgets are the card's only. Three quarters of an arena that does not hold all pages go to copies of rows: here of all that are in use."""
        change = BUDGETS.get(name, {}) if self.on_card else {}
        if name == COPIED_ROWS and self.on_card:
            change = {"kv_budget": llama.kv.memory().home_bytes * 3 // 4}
        llama.kv.configure(llama.kv.options.with_(**(self.options if name == "to this mode" else MODES.get(name, change))))
        if self.on_card and not self.part.arena:
            llama.kv.give_back(1 << 60)

    def _step(self, decoder: Decoder, tokens: list[int], n: int) -> np.ndarray:
        decoder.decode(tokens[decoder.position : decoder.position + n])
        return decoder.logits()

    def _less(self, llama: Llama) -> dict[str, Any]:
        """A smaller budget on the card, for the second context; the ring's is near the least already."""
        smaller = self.on_card and self.part.arena and self.part.name != RING
        plane = device_calls.plane(llama.kv._native_handle()) if smaller else None
        return {} if plane is None else {"kv_vram": plane.fixed_bytes + 2 * plane.budget_bytes // 3 - 2 * plane.fixed_bytes // 3}


def _check(llama: Llama) -> None:
    """Every sketch and every slot is what the rows say."""
    found = testing.check(llama.kv._native_handle())
    if found.n_groups_wrong or found.n_slots_wrong:
        raise EdgeKVError(f"{found.n_groups_wrong} of {found.n_groups} sketches and {found.n_slots_wrong} of {found.n_slots} pages on the card are not "
                          "what their rows say")


def run(part: Part) -> Iterator[Told]:
    with small_model(part.shape) as path:
        try:
            outcome, said, n_events = _judged(path, part)
        except EdgeKVError as error:
            outcome, said, n_events = Outcome.WRONG, str(error), len(part.events)
        yield part.name, outcome, said, {"events": part.events[:n_events]} if outcome.fails else {}


def _judged(path: Path, part: Part) -> tuple[Outcome, str, int]:
    """The last is the number of events up to the first that is wrong, or of all."""
    right = Walk(path, part, False, OPTIONS[EXACT]).logits()
    stock = _distances(Walk(path, part, False, OPTIONS[STOCK]).logits(), Walk(path, part, True, OPTIONS[STOCK]).logits())
    noise = max(stock.values())
    if not np.isfinite(noise):
        return Outcome.WRONG, "stock attention on the card gives no numbers", len(stock)
    if part.name == STOCK:
        return Outcome.TOLD, f"KL divergence from the processor's up to {noise:.1e}, in {len(stock)} stages: the noise", len(stock)
    options = OPTIONS[part.name]
    if part.name == RING:
        options = options | {"kv_vram": _ring_bytes(path, part)}
    logits, allowed = Walk(path, part, True, options).logits(), FLOOR + NOISE * noise
    if part.name == SPARSE_TENTH:  # a rounding may move a mark to another row: what sampling adds on the processor, it may add twice
        host = _distances(right, Walk(path, part, False, options).logits(), np.mean)
        return _told(_distances(right, logits, np.mean), lambda stage: 2 * host[stage] + allowed)
    return _told(_distances(right, logits), lambda stage: allowed)


def _told(ours: dict[str, float], allowed: Callable[[str], float]) -> tuple[Outcome, str, int]:
    for n, (stage, distance) in enumerate(ours.items(), 1):
        if not distance <= allowed(stage):
            return Outcome.WRONG, f"{stage}: KL divergence from the processor {distance:.1e}, allowed are {allowed(stage):.1e}", n
    worst = max(ours, key=lambda stage: ours[stage] / allowed(stage))
    return Outcome.RIGHT, f"{len(ours)} stages, KL divergence up to {ours[worst]:.1e} of {allowed(worst):.1e} allowed ({worst})", len(ours)


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
