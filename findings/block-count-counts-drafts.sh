#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp 0c1e57098), gguf 0.19.0: block_count of a GGUF file counts layers that the model does not run: those
# that predict further tokens (nextn_predict_layers). They have no K and V, and llama_model_n_layer() leaves them out, so that a header and
# the function disagree.
# Seen:  exaone4 with block_count 9 and nextn_predict_layers 1: llama_model_n_layer: 8; caches as (tokens, layers): [(16384, 8)]
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36 gguf==0.19.0
seen - <<'PY'
import llama_cpp as L
from seen import check
from stock import load
from tiny import caches, write

path = write("a.gguf", "exaone4", 8, n_next=1, nextn_predict_layers=1)
check("llama_model_n_layer", L.llama_model_n_layer(load(path)), 8)
check("caches as (tokens, layers)", caches(path), [(16384, 8)])
PY
