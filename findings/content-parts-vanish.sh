#!/usr/bin/env bash
# llama-cpp-python 0.3.36: chat formats that are functions of its own ("chatml", "llama-2", ...) take a message's content as OpenAI's list
# of parts without a word, and leave its text out of the prompt.
# Seen:  format_chatml: the prompt has the text of a string, of a part: [True, False]; zephyr, gemma, mistral_instruct alike
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36
seen - <<'PY'
from llama_cpp.llama_chat_format import format_chatml, format_gemma, format_mistral_instruct, format_zephyr
from seen import check, outcome

for form in (format_chatml, format_zephyr, format_gemma, format_mistral_instruct):
    found = [outcome(lambda: "Paris" in form([{"role": "user", "content": content}]).prompt) for content in ("Paris", [{"type": "text", "text": "Paris"}])]
    check(f"{form.__name__}: the prompt has the text of a string, of a part", found, [True, False])
PY
