"""Shapes of known models, for files of random weights (`edgekv models synth`): time and memory depend on the shape alone."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import gguf
from gguf.constants import GGML_QUANT_SIZES

from edgekv.errors import ConfigError

WEIGHT_TYPES = ("q4_0", "q8_0", "f16", "bf16")
"""Types of the matrices, the default first."""

# These make random weights behave like trained ones where measurements need it. Tried on the shape of qwen3-0.6b with 12 layers and 4,096
# tokens: two correct kernels were 1e-3 apart in KL divergence, and an eighth of the pages had 93 % of the attention.
_ATTENTION_GAIN = 2.25  # standard deviation of a query's and a key's entries; logits have its square. Less: attention is nearly uniform
_EMBEDDING_STD = 1.0    # all layers together add about as much. Much less: rounding errors grow from layer to layer into other answers
_SHARED = 0.7           # of each token's embedding, the same for all: queries of successive steps have something in common
_LOGIT_STD = 4.0


@dataclass(frozen=True)
class Weights:
    """One tensor: `n_out` rows of `n_in` numbers of standard deviation `std`; for n_out 0 a vector of `n_in` numbers around `mean`."""

    name: str
    n_out: int
    n_in: int
    std: float
    mean: float = 0.0
    shared: float = 0.0
    """The share of a matrix row's blocks that all rows have in common."""
    any_sign: bool = False
    """A random half of a vector's numbers is negative."""
    n_stacked: int = 0
    """Matrices of this size in one tensor, one for each expert; 0: one matrix."""
    is_f32: bool = False
    """A matrix that no model quantises."""

    @property
    def is_vector(self) -> bool:
        return self.n_out == 0

    @property
    def n_rows(self) -> int:
        """Rows of all stacked matrices together; 1 for a vector."""
        return max(1, self.n_stacked) * max(1, self.n_out)

    @property
    def n_elements(self) -> int:
        return self.n_rows * self.n_in

    @property
    def dims(self) -> tuple[int, ...]:
        """NumPy's shape: the row length comes last."""
        return (*([self.n_stacked] if self.n_stacked else []), *([self.n_out] if self.n_out else []), self.n_in)

    def type_in(self, weight_type: str) -> str:
        """The ggml type in a file whose matrices are of `weight_type`; vectors are f32."""
        return "f32" if self.is_vector or self.is_f32 else weight_type

    def n_bytes(self, weight_type: str) -> int:
        """Bytes in a file whose matrices are of `weight_type`."""
        return row_bytes(self.n_elements, self.type_in(weight_type))


@dataclass(frozen=True)
class ModelShape:
    """Sizes of one model. Matrix rows are multiples of 32 numbers, a block of the quantised types."""

    name: str
    architecture: str  # of llama.cpp: llama, qwen3, qwen3moe, gemma3 or lfm2
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    n_ctx_train: int  # tokens
    rope_base: float
    norm_epsilon: float = 1e-5
    tied: bool = False  # the head is the embedding
    n_expert: int = 0  # for each token `n_expert_used` of these, each `n_ff_expert` wide, in place of one network of `n_ff`
    n_expert_used: int = 0
    n_ff_expert: int = 0
    sliding_window: int = 0  # tokens that all but each `window_period`-th layer attend; 0: everything
    window_period: int = 0
    conv_kernel: int = 0  # tokens of the convolution that the layers have which are not among `attending`
    attending: tuple[int, ...] = ()  # layers with attention; empty: all of them

    def attends(self, il: int) -> bool:
        return not self.attending or il in self.attending

    @property
    def heads_kv(self) -> list[int]:
        """KV heads of each layer."""
        return [self.n_head_kv * self.attends(il) for il in range(self.n_layer)]

    @property
    def n_params(self) -> int:
        return sum(weights.n_elements for weights in self.weights())

    def file_bytes(self, weight_type: str) -> int:
        """Bytes of all tensors; the vocabulary comes on top, some 20 bytes a token."""
        return sum(weights.n_bytes(weight_type) for weights in self.weights())

    def kv_bytes_per_token(self, type_k: str = "f16", type_v: str = "f16") -> int:
        """KV cache bytes of one token over all layers."""
        return sum(row_bytes(n * self.head_dim, kind) for n in self.heads_kv for kind in (type_k, type_v))

    def weights(self) -> Iterator[Weights]:
        """Every tensor in the order of the file. Matrices map inputs of unit variance to outputs of unit variance. Those that end in the
        residual stream have unit variance over all layers together."""
        yield Weights("token_embd.weight", self.n_vocab, self.n_embd, _EMBEDDING_STD, shared=_SHARED)
        # Any sign: a head that is the embedding would otherwise predict the token it has just seen.
        gain = _LOGIT_STD / (_EMBEDDING_STD * self.n_embd ** 0.5)
        last = "token_embd_norm" if self.architecture == "lfm2" else "output_norm"
        yield Weights(f"{last}.weight", 0, self.n_embd, 0.1 * gain, mean=gain, any_sign=True)
        if not self.tied:
            yield Weights("output.weight", self.n_vocab, self.n_embd, _EMBEDDING_STD)
        for il in range(self.n_layer):
            block = f"blk.{il}"
            yield _norm(f"{block}.attn_norm.weight", self.n_embd)
            yield from self._attention(block) if self.attends(il) else self._convolution(block)
            yield from self._feed_forward(block)

    def _attention(self, block: str) -> Iterator[Weights]:
        n_q, n_kv = self.n_head * self.head_dim, self.n_head_kv * self.head_dim
        normed = self.architecture != "llama"  # queries and keys are, per head: the gain is in that norm
        gain = 1.0 if normed else _ATTENTION_GAIN
        yield _matrix(f"{block}.attn_q.weight", n_q, self.n_embd, gain)
        yield _matrix(f"{block}.attn_k.weight", n_kv, self.n_embd, gain)
        yield _matrix(f"{block}.attn_v.weight", n_kv, self.n_embd)
        if normed:
            yield _norm(f"{block}.attn_q_norm.weight", self.head_dim, _ATTENTION_GAIN)
            yield _norm(f"{block}.attn_k_norm.weight", self.head_dim, _ATTENTION_GAIN)
        yield _matrix(f"{block}.attn_output.weight", self.n_embd, n_q, self._residual)
        if self.architecture == "gemma3":
            yield _norm(f"{block}.post_attention_norm.weight", self.n_embd, self._residual)

    def _convolution(self, block: str) -> Iterator[Weights]:
        yield Weights(f"{block}.shortconv.conv.weight", self.n_embd, self.conv_kernel, 0.5, is_f32=True)
        yield _matrix(f"{block}.shortconv.in_proj.weight", 3 * self.n_embd, self.n_embd)
        yield _matrix(f"{block}.shortconv.out_proj.weight", self.n_embd, self.n_embd, self._residual)

    def _feed_forward(self, block: str) -> Iterator[Weights]:
        yield _norm(f"{block}.ffn_norm.weight", self.n_embd)
        if self.n_expert:
            yield Weights(f"{block}.ffn_gate_inp.weight", self.n_expert, self.n_embd, self.n_embd ** -0.5, is_f32=True)
        suffix, width = ("_exps", self.n_ff_expert) if self.n_expert else ("", self.n_ff)
        for name, n_out, n_in, gain in (("gate", width, self.n_embd, 1.0), ("up", width, self.n_embd, 1.0),
                                        ("down", self.n_embd, width, self._residual)):
            yield replace(_matrix(f"{block}.ffn_{name}{suffix}.weight", n_out, n_in, gain), n_stacked=self.n_expert)
        if self.architecture == "gemma3":
            yield _norm(f"{block}.post_ffw_norm.weight", self.n_embd, self._residual)

    @property
    def _residual(self) -> float:
        """The standard deviation that a layer adds to the residual stream: all layers together add as much as an embedding has."""
        return self.n_layer ** -0.5


def _matrix(name: str, n_out: int, n_in: int, gain: float = 1.0) -> Weights:
    return Weights(name, n_out, n_in, gain / n_in ** 0.5)


def _norm(name: str, n: int, gain: float = 1.0) -> Weights:
    return Weights(name, 0, n, 0.1 * gain, mean=gain)


def row_bytes(n_elements: int, type_name: str) -> int:
    """Bytes of `n_elements` numbers of a ggml type; a multiple of its block."""
    block, block_bytes = GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name.upper()]]
    return n_elements * block_bytes // block


SHAPES = {shape.name: shape for shape in (
    ModelShape("tiny", "llama", 2, 128, 192, 4, 2, 64, 384, 4096, 10_000.0),
    ModelShape("qwen3-0.6b", "qwen3", 28, 1024, 3072, 16, 8, 128, 151_936, 40_960, 1e6, norm_epsilon=1e-6, tied=True),
    ModelShape("llama-3.2-1b", "llama", 16, 2048, 8192, 32, 8, 64, 128_256, 131_072, 500_000.0, tied=True),
    ModelShape("lfm2-1.2b", "lfm2", 16, 2048, 8192, 32, 8, 64, 65_536, 128_000, 1e6, tied=True, conv_kernel=3,
               attending=(2, 5, 8, 10, 12, 14)),
    ModelShape("llama-3.2-3b", "llama", 28, 3072, 8192, 24, 8, 128, 128_256, 131_072, 500_000.0, tied=True),
    ModelShape("qwen3-4b", "qwen3", 36, 2560, 9728, 32, 8, 128, 151_936, 40_960, 1e6, norm_epsilon=1e-6, tied=True),
    ModelShape("gemma-3-4b", "gemma3", 34, 2560, 10_240, 8, 4, 256, 262_144, 131_072, 1e6, norm_epsilon=1e-6, tied=True,
               sliding_window=1024, window_period=6),
    ModelShape("llama-3-8b", "llama", 32, 4096, 14_336, 32, 8, 128, 128_256, 131_072, 500_000.0),
    ModelShape("qwen3-14b", "qwen3", 40, 5120, 17_408, 40, 8, 128, 151_936, 40_960, 1e6, norm_epsilon=1e-6),
    ModelShape("qwen3-30b-a3b", "qwen3moe", 48, 2048, 6144, 32, 4, 128, 151_936, 40_960, 1e6, norm_epsilon=1e-6, n_expert=128,
               n_expert_used=8, n_ff_expert=768),
    ModelShape("qwen3-32b", "qwen3", 64, 5120, 25_600, 64, 8, 128, 151_936, 40_960, 1e6, norm_epsilon=1e-6),
    ModelShape("llama-3-70b", "llama", 80, 8192, 28_672, 64, 8, 128, 128_256, 131_072, 500_000.0),
)}
"""Every shape by name. llama-3-8b and llama-3-70b have the contexts of Llama 3.1 without its RoPE scaling, which random weights do not need."""


def find_shape(name: str) -> ModelShape:
    """The shape of that name. Raises ConfigError, which lists the shapes."""
    try:
        return SHAPES[name]
    except KeyError:
        raise ConfigError(f"there is no shape {name!r}; use one of: {', '.join(SHAPES)}") from None
