#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp 0c1e57098): a file with a BPE vocabulary that names no end (and no beginning) has one all the same:
# token 11, whatever its text is. An answer ends where the model says it.
# Seen:  of a to z, with no ids, ends: ['l']; with {'eos': 3}: ['d']
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36 gguf==0.19.0
seen - <<'PY'
import gguf
import llama_cpp as L
from seen import check
from stock import load

for ids in ({}, {"eos": 3}):
    w = gguf.GGUFWriter("a.gguf", "llama")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list([chr(ord("a") + i) for i in range(26)])
    w.add_token_types([1] * 26)
    w.add_token_merges(["a b"])
    for name, token in ids.items():
        w.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    vocab = L.llama_model_get_vocab(load("a.gguf", vocab_only=True))
    ends = [L.llama_vocab_get_text(vocab, token).decode() for token in range(26) if L.llama_vocab_is_eog(vocab, token)]
    check(f"of a to z, with {ids or 'no ids'}, ends", ends, ["d"] if ids else ["l"])
PY
