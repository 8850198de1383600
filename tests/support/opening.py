"""Opening a model on the device under test. Files that run inside the installed package use it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from edgekv.config import KvOptions
from edgekv.llama import Llama
from edgekv.measure.decoder import Decoder
from edgekv.runtime.runtime import Runtime


def open_model(path: Path | str, device: str, mode: str, vram: int | None = None, n_ctx: int = 4096, **more: Any) -> Llama:
    """All layers on the device. `vram` is the KV budget there, in bytes; on the processor that of the arena."""
    options = {name: more.pop(name) for name in ("type_k", "type_v", "observe", "sample_budget", "exact_tokens") if name in more}
    budget = {} if vram is None else {"kv_budget" if device == "cpu" else "kv_vram": vram}
    kv = KvOptions(mode=mode, attention_device=device, **budget, **options)
    settings = {"n_batch": 2048, "n_ubatch": 512, "verbose": False, "n_gpu_layers": 0 if device == "cpu" else -1, **more}
    return Llama(str(path), kv_options=kv, n_ctx=n_ctx, **settings)


def logits_behind(decoder: Decoder, tokens: Iterable[int]) -> np.ndarray:
    """Logits after each of these tokens is decoded, float32 [token, n_vocab]."""
    logits = []
    for token in tokens:
        decoder.decode([token])
        logits.append(decoder.logits())
    return np.stack(logits)


def check(runtime: Runtime) -> None:
    """Every sketch and every slot of the page table is what home says, and the table agrees with itself."""
    from edgekv._native import testing

    found = testing.check(runtime._native_handle())
    assert found.n_groups_wrong == 0, f"sketches differ from a rebuild: {found}"
    assert found.n_slots_wrong == 0, f"slots differ from home: {found}"
    if runtime._tiering is not None:
        runtime._tiering.hierarchy.check()
