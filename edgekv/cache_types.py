"""The types of a context's K and V: what they cost a model, measured once, and the choice by layer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from edgekv import _native, messages  # noqa: F401  # first: it puts llama_cpp on our libraries
from edgekv.common.enums import DeviceKind
from edgekv.common.errors import ConfigError, EdgeKVError, ModelError
from edgekv.common.machine import n_cores
from edgekv.config import CacheOptions, KvOptions, TypeErrors
from edgekv.models.geometry import Geometry, geometry
from edgekv.planning import devices
from edgekv.planning.kept import Kept, key_of
from edgekv.planning.type_choice import check_by_layer, with_types
from edgekv.planning.type_costs import TypeCost, type_cost
from edgekv.prefix_cache.digests import digest_of_model, known_digest
from edgekv.runtime import attachments, measured_heads, measured_types

import llama_cpp

log = logging.getLogger("edgekv")

Progress = measured_types.Progress

_PIECE = 64
"""Tokens whose predictions are held together."""


def with_layer_types(model: Path, kv: KvOptions, progress: Progress = lambda what, done, total: None, n_threads: int | None = None) -> KvOptions:
    """These options, with the types by layer if `kv_bytes` is set: by what types cost this model, which this machine keeps, or measures now, in about
    a minute for a small model. If nothing is missing, the options stay as they are.

    Raises ConfigError if `kv_bytes` is below what the smallest types take, or for a model or a device that serves no types by layer."""
    if not kv.cache.lacks_types:
        return kv
    file = geometry(model)
    assert kv.cache.kv_bytes is not None
    if kv.cache.kv_bytes >= file.kv_bytes_per_token():
        return with_types(file, kv, None)
    check_by_layer(file, kv)
    check_place(kv)
    return with_types(file, kv, type_errors(model, progress, n_threads))


def type_errors(model: Path, progress: Progress = lambda what, done, total: None, n_threads: int | None = None, again: bool = False) -> TypeErrors:
    """What types cost a model, on the processor: as this machine keeps it, or measured now. again: measured in any case. Raises ModelError, and
    EdgeKVError if llama.cpp cannot make a context."""
    kept, key = _kept(), _key(digest_of_model(model))
    found = None if again else kept.find(key, TypeErrors)
    if found is None:
        file = geometry(model)
        log.warning("what coarse types of K and V cost %s is measured once; the next start knows it", model.name)
        with _predictions(model, file, n_threads or n_cores()) as predict:
            rows = [bool(file.layer_kv_bytes(il, "f16", "f16")) for il in range(file.n_layer)]
            by_layer = rows if file.holds("q4_0") and not (file.mla or file.index_rows or any(file.index_dims)) else [False] * file.n_layer
            found = measured_types.measure(KvOptions(attention_device="cpu"), file.n_layer, by_layer, predict, progress)
        kept.keep(key, found, indent=None)
    return found


def known_errors(model: Path) -> TypeErrors | None:
    """What this machine knows of what types cost a model; nothing is measured, and the model's file is not read."""
    digest = known_digest(model)
    return None if digest is None else _kept().find(_key(digest), TypeErrors)


def known_cost(model: Path, cache: CacheOptions) -> TypeCost | None:
    """What a cache's types cost a model, as far as this machine knows; None: nothing."""
    return type_cost(geometry(model), cache, known_errors(model))


def _kept() -> Kept:
    return Kept("type-errors.json", "what types of K and V cost", "it is measured each time")


def _key(digest: bytes) -> str:
    return key_of(digest, _native.isa(), f"text {measured_heads.text_digest()}")


@contextmanager
def _predictions(model: Path, file: Geometry, n_threads: int) -> Iterator[Callable[[KvOptions], measured_types.Logits]]:
    """Predictions of new contexts on the model's weights, of the text."""
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    told = logging.getLogger("llama-cpp-python")
    level = told.level
    told.setLevel(logging.ERROR)
    weights = llama_cpp.llama_model_load_from_file(str(model).encode(), params)
    try:
        if not weights:
            raise ModelError(f"llama.cpp could not load {model}")
        tokens = _text(weights, min(measured_types.READ_TOKENS + measured_types.STEPS, file.n_ctx_train))

        def predict(kv: KvOptions) -> measured_types.Logits:
            with attachments.defaults(kv), _context(weights, kv, len(tokens), n_threads) as ctx:
                yield from _read(ctx, tokens, llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(weights)))

        yield predict
    finally:
        told.setLevel(level)
        if weights:
            llama_cpp.llama_model_free(weights)


@contextmanager
def _context(weights: Any, kv: KvOptions, n_tokens: int, n_threads: int) -> Iterator[Any]:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = n_tokens, measured_types.READ_TOKENS, measured_types.READ_TOKENS
    params.type_k, params.type_v = kv.cache.type_k.ggml_type, kv.cache.type_v.ggml_type
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.n_threads = params.n_threads_batch = n_threads
    params.offload_kqv, params.swa_full = False, False
    ctx = llama_cpp.llama_init_from_model(weights, params)
    if not ctx:
        raise EdgeKVError(f"llama.cpp could not create a context with a cache of {kv.cache.types_text}")
    try:
        yield ctx
    finally:
        llama_cpp.llama_free(ctx)


def _text(weights: Any, n_tokens: int) -> list[int]:
    text = measured_heads.own_text().encode()
    out = (llama_cpp.llama_token * (len(text) + 8))()
    n = llama_cpp.llama_tokenize(llama_cpp.llama_model_get_vocab(weights), text, len(text), out, len(out), True, False)
    if n < n_tokens:
        raise ModelError(f"the text of the measurement has {n} tokens in this model, and {n_tokens} are needed")
    return list(out[:n_tokens])


def _read(ctx: Any, tokens: list[int], n_vocab: int) -> Iterator[np.ndarray]:
    """Logits [_PIECE, n_vocab] of the last half of the tokens."""
    batch, position = llama_cpp.llama_batch_init(measured_types.READ_TOKENS, 0, 1), 0
    n_first = max(1, len(tokens) - measured_types.STEPS)
    try:
        parts = [(part, False) for part in measured_types.batches(tokens[:n_first], measured_types.READ_TOKENS)]
        for part, wanted in parts + [(part, True) for part in measured_types.batches(tokens[n_first:], _PIECE)]:
            batch.n_tokens = len(part)
            for i, token in enumerate(part):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, position + i, 1, 0
                batch.logits[i] = wanted
            if llama_cpp.llama_decode(ctx, batch) != 0:
                raise EdgeKVError("llama.cpp could not read the text of the measurement")
            position += len(part)
            if wanted:
                yield np.ctypeslib.as_array(llama_cpp.llama_get_logits(ctx), (len(part), n_vocab)).copy()
    finally:
        llama_cpp.llama_batch_free(batch)


def check_place(kv: KvOptions) -> None:
    """Raise ConfigError if attention runs where layers have no types of their own."""
    if not _native.info()["enabled"]:
        raise ConfigError("EDGEKV=0 is set, and stock llama.cpp has one type for all layers; unset it, or use --cache-type-k and --cache-type-v")
    if devices.place(kv).kind is not DeviceKind.HOST:
        raise ConfigError("--kv-bytes is served on the processor; use --cache-type-k and --cache-type-v on a GPU, or --attention-device cpu")
