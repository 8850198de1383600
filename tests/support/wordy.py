"""A tiny model of random weights with the default model's tokenizer and chat template: for tests that count the tokens of texts, whatever the answer is.
It reads a prompt in a hundredth of the default model's time."""

from pathlib import Path

import pytest

from edgekv.models.reader import open_gguf
from edgekv.models.synth_file import SyntheticFile, SyntheticShape


class _WithTokenizer(SyntheticFile):
    """A plain decoder with the byte-pair tokenizer of another file."""

    def __init__(self, path: Path, other: Path):
        self._other = open_gguf(other)
        super().__init__(path, "llama", SyntheticShape(n_vocab=self._other.length("tokenizer.ggml.tokens"), n_embd=64, n_ctx_train=8192), 0)

    def text_tokenizer(self) -> None:
        facts = {name: self._other.value(f"tokenizer.ggml.{name}") for name in ("bos_token_id", "eos_token_id", "add_bos_token")}
        self.say(tokenizer_model=self._other.value("tokenizer.ggml.model"), tokenizer_pre=self._other.value("tokenizer.ggml.pre"),
                 token_list=self._other.texts("tokenizer.ggml.tokens"), token_types=self._other.value("tokenizer.ggml.token_type"),
                 token_merges=self._other.texts("tokenizer.ggml.merges"), chat_template=self._other.value("tokenizer.chat_template"), **facts)


@pytest.fixture(scope="session")
def wordy_model(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = _WithTokenizer(tmp_path_factory.mktemp("wordy") / "wordy.gguf", default_model)
    model.attention()
    model.text_and_ends()
    return model.layers(lambda block, il: model.qkv(block))
