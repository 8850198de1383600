"""A tiny GGUF model of random weights under construction: sizes, tokenizer, and tensors by name."""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from msgspec import Struct

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

CONTROL, UNKNOWN, NORMAL, BYTE = (
    gguf.TokenType.CONTROL, gguf.TokenType.UNKNOWN, gguf.TokenType.NORMAL, gguf.TokenType.BYTE,
)


class SyntheticShape(Struct, frozen=True):
    """Sizes of a synthetic model. `n_head` is a multiple of `n_head_kv`; `head_dim` does not depend on `n_embd`."""

    n_layer: int = 2
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 64
    n_embd: int = 128
    n_ff: int = 192
    n_vocab: int = 384  # at least 355: 3 control tokens, 256 bytes, 96 printable ones
    n_ctx_train: int = 4096
    rope_base: float = 10000.0
    sliding_window: int = 64  # tokens; only for the architectures that have one
    attn_softcap: float = 10.0  # only gemma2
    n_latent: int = 0  # numbers of a compressed row that hold V; rotated ones follow them; only deepseek2, deepseek32. 0: 2 * head_dim
    n_turned: int = 0  # 0: head_dim / 2
    n_index_head: int = 4  # of queries of head_dim numbers that choose the cells to attend; only deepseek32
    n_top_k: int = 96  # cells that the index chooses
    attn_gain: float = 1.5  # standard deviation of a query's and a key's entries: 1 is nearly uniform attention
    dtype: str = "f16"  # of the matrices: f16 or f32


def say(writer: gguf.GGUFWriter, **facts: Any) -> None:
    """Put facts into a header, each by the writer's method of that name: head_count=4 is add_head_count(4)."""
    for name, value in facts.items():
        getattr(writer, f"add_{name}")(value)


class RandomFile:
    """A GGUF file of random numbers under construction: `say` and `gguf` take its metadata, `finish` writes it."""

    def __init__(self, path: Path, arch: str, seed: int):
        self.path, self.seed = path, seed
        self.gguf = gguf.GGUFWriter(path, arch)

    def say(self, **facts: Any) -> None:
        say(self.gguf, **facts)

    def normal(self, name: str, *shape: int) -> np.ndarray:
        # Each tensor has its own random stream: changing one size leaves the other tensors alone.
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())]).standard_normal(shape, dtype=np.float32)

    def finish(self) -> Path:
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        self.gguf.write_tensors_to_file()
        self.gguf.close()
        return self.path


class SyntheticFile(RandomFile):
    """A text model under construction."""

    def __init__(self, path: Path, arch: str, shape: SyntheticShape, seed: int):
        super().__init__(path, arch, seed)
        self.shape, self.arch = shape, arch
        self.say(type="model", name=f"EdgeKV synthetic {arch}",
                 file_type=gguf.LlamaFileType.MOSTLY_F16 if shape.dtype == "f16" else gguf.LlamaFileType.ALL_F32, context_length=shape.n_ctx_train,
                 embedding_length=shape.n_embd, block_count=shape.n_layer, feed_forward_length=shape.n_ff, vocab_size=shape.n_vocab)

    def attention(self, n_head_kv: int | list[int] | None = None) -> None:
        s = self.shape
        self.say(head_count=s.n_head, head_count_kv=s.n_head_kv if n_head_kv is None else n_head_kv, key_length=s.head_dim, value_length=s.head_dim,
                 layer_norm_rms_eps=1e-5, rope_dimension_count=s.head_dim, rope_freq_base=s.rope_base)

    def matrix(self, name: str, n_out: int, n_in: int, gain: float = 1.0, dtype: str | None = None) -> None:
        """Add a matrix that maps inputs of unit variance to outputs of standard deviation `gain`."""
        self.tensor(name, self.normal(name, n_out, n_in) * (gain / np.sqrt(n_in)), dtype or self.shape.dtype)

    def embedding(self, name: str, gain: float) -> None:
        """Add the embedding. Control tokens and bytes that are not text get small rows, so that they are hardly ever sampled."""
        s = self.shape
        rows = self.normal(name, s.n_vocab, s.n_embd) * (gain / np.sqrt(s.n_embd))
        rows[:FIRST_PRINTABLE] *= 0.1
        self.tensor(name, rows, s.dtype)

    def norm(self, name: str, n: int, bias: bool = False, gain: float = 1.0) -> None:
        self.tensor(f"{name}.weight", gain * (1 + 0.1 * self.normal(name, n)), "f32")
        if bias:
            self.vector(f"{name}.bias", n)

    def vector(self, name: str, *shape: int, gain: float = 0.1) -> None:
        self.tensor(name, gain * self.normal(name, *shape), "f32")

    def tensor(self, name: str, values: np.ndarray, dtype: str) -> None:
        self.gguf.add_tensor(name, np.ascontiguousarray(values, dtype={"f16": np.float16, "f32": np.float32}[dtype]))

    def qkv(self, block: str, bias: bool = False, n_head_kv: int | None = None, normed: bool = False) -> None:
        """normed: queries and keys are normalised per head before RoPE."""
        s = self.shape
        n_head_kv = n_head_kv or s.n_head_kv
        for part, n_head in (("q", s.n_head), ("k", n_head_kv), ("v", n_head_kv)):
            self.matrix(f"{block}.attn_{part}.weight", n_head * s.head_dim, s.n_embd, s.attn_gain if part != "v" else 1.0)
            if bias:
                self.vector(f"{block}.attn_{part}.bias", n_head * s.head_dim)
        for part in "qk" if normed else "":
            self.norm(f"{block}.attn_{part}_norm", s.head_dim)
        self.matrix(f"{block}.attn_output.weight", s.n_embd, s.n_head * s.head_dim)

    def ffn(self, block: str) -> None:
        s = self.shape
        self.matrix(f"{block}.ffn_gate.weight", s.n_ff, s.n_embd)
        self.matrix(f"{block}.ffn_up.weight", s.n_ff, s.n_embd)
        self.matrix(f"{block}.ffn_down.weight", s.n_embd, s.n_ff)

    def text_tokenizer(self) -> None:
        add_text_tokenizer(self.gguf, self.shape.n_vocab)

    def layers(self, attend: Callable[[str, int], None], feed: Callable[[str], None] | None = None, between: str = "ffn_norm") -> Path:
        """Add each layer: a norm, attend(block, number), the norm `between`, and feed(block), or the usual matrices. Write the file."""
        for il in range(self.shape.n_layer):
            block = f"blk.{il}"
            self.norm(f"{block}.attn_norm", self.shape.n_embd)
            attend(block, il)
            self.norm(f"{block}.{between}", self.shape.n_embd)
            (feed or self.ffn)(block)
        return self.finish()

    def text_and_ends(self, output: bool = True, norm: str = "output_norm") -> None:
        """Add what stands before and behind the layers: tokenizer, embedding, last norm, and the head, or with `output` off a tied one."""
        self.text_tokenizer()
        self.embedding("token_embd.weight", 4.0)
        self.norm(norm, self.shape.n_embd)
        if output:
            self.embedding("output.weight", 4.0)


FIRST_PRINTABLE = 3 + 256
"""The first token of text; those before it are control tokens and bytes."""


def add_text_tokenizer(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    """Add a SentencePiece tokenizer with byte fallback, and a chat template: a token for each printable ASCII character, and one for each
    byte. The rest of the vocabulary are words that no text has."""
    tokens, types = ["<unk>", "<s>", "</s>"], [UNKNOWN, CONTROL, CONTROL]
    tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    types += [BYTE] * 256
    printable = ["▁", "\n", *(chr(c) for c in range(33, 127))]
    filler = [f"word{i}" for i in range(n_vocab - len(tokens) - len(printable))]
    types += [NORMAL] * (len(printable) + len(filler))
    tokens += printable + filler
    if len(tokens) != n_vocab:
        raise ValueError(f"n_vocab is {n_vocab}; a synthetic tokenizer needs at least {len(tokens)} tokens")
    say(writer, tokenizer_model="llama", tokenizer_pre="default", token_list=tokens, token_scores=[0.0] * len(tokens), token_types=types,
        bos_token_id=1, eos_token_id=2, unk_token_id=0, add_bos_token=True, add_space_prefix=False, chat_template=CHAT_TEMPLATE)
