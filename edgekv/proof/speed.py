"""Milliseconds of a token in modes off (stock), exact and sparse behind several depths. Cells are filled with made-up rows; no prompt is read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from edgekv.common.enums import KvMode
from edgekv.common.errors import DoesNotFit, EdgeKVError
from edgekv.config import KvOptions
from edgekv.llama import Llama
from edgekv.measure.decoder import Decoder
from edgekv.measure.filling import Bank, TokenLayout, put, taken
from edgekv.measure.steps import best_step
from edgekv.models import geometry
from edgekv.opening import ALL_LAYERS
from edgekv.planning.device_fit import choose_device_context
from edgekv.planning.devices import place
from edgekv.planning.fit import CONTEXT_STEP, rounded
from edgekv.proof.models import model_of
from edgekv.proof.steps import Outcome, Part, Told

DEPTHS = (0, 4096, 16_384, 65_536, 131_072)
"""Tokens in the cache."""
EMULATED_DEPTHS = (0, 192)
COMPUTED = 128
"""Tokens after which the others are made up."""
BEGINNING = 16
"""The first of these are like no others."""
WARM = 32
"""Tokens at each depth before any is measured, in which pages come to the card."""
BATCH = 512

MODES = {"stock": KvMode.OFF, "exact": KvMode.EXACT, "sparse": KvMode.SPARSE}


def run(part: Part) -> Iterator[Told]:
    began = time.monotonic()
    with model_of(part) as path:
        for n, (name, mode) in enumerate(MODES.items(), 1):
            try:
                yield from _mode(part, path, name, mode, began + 0.8 * part.limit * n / len(MODES))
            except EdgeKVError as error:
                yield name, Outcome.SKIPPED, str(error)


def _mode(part: Part, path: Path, name: str, mode: KvMode, end: float) -> Iterator[Told]:
    """A context for the deepest test that fits. end: by the clock; what would begin later is left out."""
    kv = KvOptions(mode=mode, attention_device=part.kind)
    fitting, lost = [], list[tuple[int, str]]()
    for depth in EMULATED_DEPTHS if part.emulated else DEPTHS[: 2 if part.quick else None]:
        why = _lost(path, kv, depth)
        fitting += [] if why else [depth]
        lost += [(depth, why)] if why else []
    if fitting:
        n_ctx = _n_ctx(fitting[-1])
        with closing(Llama(str(path), kv_options=kv, n_ctx=n_ctx, n_batch=BATCH, n_ubatch=BATCH, verbose=False,
                           n_gpu_layers=0 if part.emulated else ALL_LAYERS)) as llama, closing(Decoder(llama)) as decoder:
            bank = _bank(decoder)
            for depth in fitting:
                if time.monotonic() > end:
                    lost += [(depth, "there was no time left")]
                    continue
                _fill(decoder, depth, *bank)
                decoder.read([300 + i % 8 for i in range(1 if part.emulated else WARM)], 1)
                decoder.rewind(depth)
                told = f"{1e3 * best_step(decoder, 1, depth):.2f} ms a token" + ("; of an emulated device it means nothing" if part.emulated else "")
                yield f"{name} behind {depth:,} tokens", Outcome.TOLD, told
    for depth, why in lost:
        yield f"{name} behind {depth:,} tokens", Outcome.SKIPPED, why


def _n_ctx(depth: int) -> int:
    return rounded(depth + max(CONTEXT_STEP, COMPUTED + WARM))


def _lost(path: Path, kv: KvOptions, depth: int) -> str:
    """Why a depth cannot be measured."""
    model, room = geometry(path), place(kv, path).room
    assert room is not None
    if depth > model.n_ctx_train:
        return f"the model was trained for {model.n_ctx_train:,} tokens"
    try:
        choose_device_context(model, min(_n_ctx(depth), model.n_ctx_train), kv, room)
    except DoesNotFit as error:
        return str(error)
    return ""


def _bank(decoder: Decoder) -> tuple[TokenLayout, Bank]:
    """Made-up tokens like those that the model computes. Raises EdgeKVError for a cache that cannot be filled so."""
    layout = TokenLayout.of(decoder)
    if decoder.keeps_more:
        raise EdgeKVError("windows and states cannot be made up, so that speeds are not measured")
    decoder.read([300 + i % 50 for i in range(COMPUTED)], BATCH)
    bank = Bank(layout, next(taken(decoder, layout, BEGINNING, COMPUTED)))
    decoder.rewind(0)
    return layout, bank


def _fill(decoder: Decoder, depth: int, layout: TokenLayout, bank: Bank) -> None:
    for block in bank.blocks(decoder.position, depth):
        put(decoder, layout, block)
