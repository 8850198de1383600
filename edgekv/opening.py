"""What a `Llama` is opened with: its KV options, the place of its attention, and llama_cpp's own options where they follow from these."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from msgspec import Struct

from edgekv.common.enums import CacheType, DeviceKind, KvMode
from edgekv.common.errors import ConfigError, ModelError
from edgekv.config import AUTO_DEVICE, KvOptions, option_names
from edgekv.config.setting_table import OLD_KEYWORDS
from edgekv.models.geometry import geometry, open_model
from edgekv.planning import devices, fit
from edgekv.planning.allocations import ContextRequest, Slots
from edgekv.planning.available import available_bytes
from edgekv.planning.context import check_context
from edgekv.planning.devices import Placement

import llama_cpp

log = logging.getLogger("edgekv")

ALL_LAYERS = -1
"""llama_cpp's n_gpu_layers for a whole model on the GPU."""

OF_MACHINE = ("n_gpu_layers", "n_threads", "n_threads_batch")

_GPUS = {"split_mode", "main_gpu", "tensor_split"}
"""llama_cpp's options that divide a model among GPUs."""
_NO_GPU = -1
"""llama.cpp's main_gpu for none."""


class Asked(Struct):
    """What was asked for, and follows from it."""

    kv: KvOptions
    types: dict[str, Any]
    """type_k and type_v as llama_cpp takes them."""
    placement: Placement


def asked(path: Path, options: dict[str, Any], kv: KvMode | str | None, kv_options: KvOptions | None, type_k: CacheType | str | int | None,
          type_v: CacheType | str | int | None, flash_attn: bool) -> Asked:
    """Read the arguments of `Llama`, and take those of KvOptions out of `options`, which then are llama_cpp's. Raises the errors of `Llama`."""
    if not isinstance(kv_options, KvOptions | None):
        raise ConfigError(f"kv_options is {kv_options!r}; give KvOptions(...), or each option by its own name")
    if "mode" in options and kv is not None:
        raise ConfigError("kv and mode are one option; leave one of the two out")
    named = {"mode": options.pop("mode", kv), "type_k": cache_name(type_k), "type_v": cache_name(type_v)}
    named |= {name: options.pop(name) for name in (*option_names(), *OLD_KEYWORDS) if name in options}
    given = {name: value for name, value in named.items() if value is not None}
    found = KvOptions.from_env(**named) if kv_options is None else kv_options.with_(**given)
    if options.get("draft_model") is not None:
        options.setdefault("logits_all", True)  # llama_cpp asks for all logits then, but makes room for those of one batch
    if found.cache.lacks_types and not options.get("vocab_only"):
        from edgekv.cache_types import with_layer_types

        found = with_layer_types(path, found, n_threads=options.get("n_threads"))
    cache = found.cache
    types = {name: one if isinstance(one, int) else chosen.ggml_type
             for name, one, chosen in (("type_k", type_k, cache.type_k), ("type_v", type_v, cache.type_v))}
    if found.mode is KvMode.EVICT:
        from edgekv.tiering import eviction

        if found.eviction.evict_to.bytes:
            found = fit.in_tokens(geometry(path), found)
        n_batch = eviction.batch_tokens(fit.kept(options.get("n_ctx", 512) or 1 << 30, found))
        options.setdefault("n_batch", n_batch)
        options.setdefault("n_ubatch", min(n_batch, options["n_batch"]))
    if cache.kv_dir is not None and not flash_attn:
        raise ConfigError("a KV home on disk needs flash_attn, without which V is stored transposed: each token would read all of it")
    if (n_ctx := options.get("n_ctx", 512)) and options.get("n_batch", 0) > n_ctx:
        options["n_batch"] = n_ctx  # as llama_cpp does, but for its array of logits
    options.setdefault("swa_full", False)
    options.setdefault("verbose", False)
    if options.get("n_gpu_layers") == 0 and found.placement.attention_device == AUTO_DEVICE:
        found = found.with_(attention_device=DeviceKind.HOST.value)
    placement = devices.place(found, path)
    if not flash_attn:
        devices.check_plain_attention(placement)
    if (adapter := options.get("lora_path")) and Path(adapter).is_file():
        devices.check_beside(placement, Path(adapter))
    if named["mode"] is None and kv_options is None and not os.environ.get("EDGEKV_KV"):  # no mode is set
        from edgekv.planning import device_mode

        found = found.with_(mode=device_mode.chosen_mode(placement, path, found, options.get("n_ctx", 512) or None))
    found.check_effect(given, lambda name: "kv" if name == "mode" else name)
    if found.mode is KvMode.EVICT and options.get("embedding"):
        raise ConfigError('an embedding is of all tokens, and mode evict drops some; use kv="exact", or leave embedding out')
    found = placement.in_force(found, given)
    if placement.warning:
        log.warning("%s", placement.warning)
    _place(path, found, placement, options)
    return Asked(found, types, placement)


def _place(path: Path, kv: KvOptions, placement: Placement, options: dict[str, Any]) -> None:
    """Set llama_cpp's options that follow from the place."""
    if placement.kind is DeviceKind.CUDA:
        options.setdefault("n_gpu_layers", ALL_LAYERS)
    if not _GPUS.intersection(options) and (gpu := _only_gpu(placement, options.get("n_gpu_layers", 0))) is not None:
        options |= {"split_mode": llama_cpp.LLAMA_SPLIT_MODE_NONE, "main_gpu": gpu}
    if placement.room is not None and (placement.kind is DeviceKind.EMULATED or options["n_gpu_layers"] == ALL_LAYERS):
        from edgekv.planning.device_fit import device_plan

        model = geometry(path)
        n_ctx = options.get("n_ctx", 512) or model.n_ctx_train
        n_ubatch = device_plan(model, n_ctx, kv, placement.room, all_logits=True).n_ubatch
        options.setdefault("n_batch", n_ubatch)
        options.setdefault("n_ubatch", min(n_ubatch, options["n_batch"]))


def _only_gpu(placement: Placement, n_gpu_layers: int) -> int | None:
    """The one GPU that the model may use. Without layers there it is none: llama.cpp would not repack the weights for its kernels and ours, and
    send prompts to the GPU. None: whichever there are."""
    if placement.kind is DeviceKind.CUDA:
        return None if placement.others else placement.index
    return _NO_GPU if placement.kind is DeviceKind.HOST and n_gpu_layers == 0 else None


def checked(path: Path, asked: Asked, options: dict[str, Any], from_disk: bool) -> KvOptions:
    """The KV options, on the host with the bytes for rows of a KV home on disk. Raises ConfigError if a cache type cannot hold the heads, or if the
    context is longer than the table of positions; on the host DoesNotFit if memory is missing. llama.cpp judges files that are not chat models."""
    kv = asked.kv
    try:
        file = open_model(path)
    except ModelError:
        return kv
    fit.check_types(file.geometry, kv.cache)
    n_ctx = options.get("n_ctx", 512) or file.geometry.n_ctx_train
    most = next((tensor.shape[-1] for tensor in file.tensors if tensor.name == "position_embd.weight"), n_ctx)
    if n_ctx > most:
        raise ConfigError(f"{path} has {most:,} positions, and a context of {n_ctx:,} tokens needs more; ask for n_ctx={most} or less")
    if asked.placement.room is not None:
        return kv
    n_threads = options.get("n_threads_batch") or os.cpu_count() or 1
    request = ContextRequest(file, kv, n_ctx, Slots(), available_bytes(), n_threads=n_threads, from_disk=from_disk)
    check_context(request, n_ctx)
    return request.with_hot_rows(n_ctx, kv)


def cache_name(value: CacheType | str | int | None) -> CacheType | str | None:
    """The name of a cache type. None for numbers of other types: llama_cpp takes these, and the layers run stock."""
    if isinstance(value, int):
        return next((kind for kind in CacheType if kind.ggml_type == value), None)
    return value
