#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp 0c1e57098): how a text becomes tokens depends on general.name of the file. Where it contains "phi-3",
# marks take the spaces behind them with them. A file that was renamed, or a model that was trained further and named after its base, reads
# other tokens.
# Seen:  tokens of '<|end|>x' and '<|end|>  x', named tiny: [5, 11]; named Tiny Phi-3: [5, 5]
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36 gguf==0.19.0
seen - <<'PY'
import llama_cpp as L
from seen import check
from stock import load
from tiny import write


def tokens(name: str, text: bytes) -> int:
    vocab, found = L.llama_model_get_vocab(load(write("a.gguf", "gemma2", 1, name=name), vocab_only=True)), (L.llama_token * 64)()
    return L.llama_tokenize(vocab, text, len(text), found, 64, False, True)


check("tokens of '<|end|>x' and '<|end|>  x', named tiny", [tokens("tiny", text) for text in (b"<|end|>x", b"<|end|>  x")], [5, 11])
check("named Tiny Phi-3", [tokens("Tiny Phi-3", text) for text in (b"<|end|>x", b"<|end|>  x")], [5, 5])
PY
