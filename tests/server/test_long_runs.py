"""A long run of one character is read, whatever the model's pre-tokenizer; tests/native/test_splits.py asks all of them."""

from pathlib import Path

import pytest
from support.stub_server import stubbed

N = 100_000


@pytest.mark.parametrize("pre_tokenizer", ["gpt-4o", "tekken", "deepseek-v3", "bloom", "default"])
def test_a_long_run_is_tokenised(tmp_path: Path, pre_tokenizer: str):
    with stubbed(tmp_path, "a word", "--ctx", "512", pre_tokenizer=pre_tokenizer) as served:
        for character in ("-", " ", "a", "\n"):
            assert len(served.ask("/tokenize", {"content": character * N}).body["tokens"]) == N
        chat = {"messages": [{"role": "user", "content": "=" * N}]}
        assert served.ask("/v1/chat/completions", chat).status == 400  # too long for the context
        assert served.ask("/health").status == 200
