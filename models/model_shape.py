"""The sizes of a model, and the tensors of a file of random weights in its shape."""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from edgekv.models.shape_weights import Weights, matrix, norm, row_bytes

# These make random weights behave like trained ones where measurements need it. Tried on the shape of qwen3-0.6b with 12 layers and 4,096
# tokens: two correct kernels were 1e-3 apart in KL divergence, and an eighth of the pages had 93 % of the attention.
_ATTENTION_GAIN = 2.25  # standard deviation of a query's and a key's entries; logits have its square. Less: attention is nearly uniform
_EMBEDDING_STD = 1.0    # all layers together add about as much. Much less: rounding errors grow from layer to layer into other answers
_SHARED = 0.7           # of each token's embedding, the same for all: queries of successive steps have something in common
_LOGIT_STD = 4.0


class Experts(Struct, frozen=True):
    """A mixture: `n_used` of `n` networks for each token, each `n_ff` wide."""

    n: int
    n_used: int
    n_ff: int
    n_ff_shared: int = 0  # of the network that every token goes through; 0: there is none
    n_dense: int = 0  # first layers with one network of the model's `n_ff` in place of the mixture


class SlidingWindow(Struct, frozen=True):
    """All but each `period`-th layer attend the newest `n` tokens."""

    n: int
    period: int
    head_dim: int = 0  # of these layers; 0: as the others
    n_head_kv: int = 0
    rope_base: float = 0.0


class DeltaNet(Struct, frozen=True):
    """Gated delta nets in all but each `period`-th layer: a recurrent state of [n_value_heads, head_dim, head_dim]."""

    n_key_heads: int
    n_value_heads: int
    head_dim: int = 128
    conv_kernel: int = 4  # tokens
    period: int = 4
    rope_dim: int = 64  # rotated numbers of the attending layers' heads


class Latent(Struct, frozen=True):
    """Compressed K and V (MLA): a token has one row of `n_kv + n_rope` numbers for all heads."""

    n_q: int
    n_kv: int
    n_rope: int
    n_key: int  # numbers of an expanded head's key without the rotated ones
    n_value: int


class Convolutions(Struct, frozen=True):
    """Short convolutions over `kernel` tokens in the layers that are not among `attending`."""

    kernel: int
    attending: tuple[int, ...]


class ModelShape(Struct, frozen=True):
    """Sizes of one model. Matrix rows are multiples of 32 numbers, a block of the quantised types."""

    name: str
    architecture: str  # of llama.cpp: llama, qwen3, qwen3moe, qwen35, qwen35moe, gemma3, gemma4, gpt-oss, deepseek2 or lfm2
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
    embeds_f32: bool = False  # whatever the type of the other matrices
    experts: Experts | None = None
    window: SlidingWindow | None = None
    delta: DeltaNet | None = None
    latent: Latent | None = None
    convolutions: Convolutions | None = None

    def attends(self, il: int) -> bool:
        """Whether a layer has attention; the others keep a state."""
        if self.delta is not None:
            return (il + 1) % self.delta.period == 0
        return self.convolutions is None or il in self.convolutions.attending

    def slides(self, il: int) -> bool:
        """Whether a layer attends the newest tokens alone."""
        return self.window is not None and (il + 1) % self.window.period != 0

    def heads(self, il: int) -> tuple[int, int]:
        """(KV heads, numbers of a head) of a layer; no heads where it does not attend."""
        n, dim = self.n_head_kv * self.attends(il), self.head_dim
        return (self.window.n_head_kv or n, self.window.head_dim or dim) if self.window is not None and self.slides(il) else (n, dim)

    @property
    def heads_kv(self) -> list[int]:
        """KV heads of each layer."""
        return [self.heads(il)[0] for il in range(self.n_layer)]

    @property
    def n_params(self) -> int:
        return sum(weights.n_elements for weights in self.weights())

    def file_bytes(self, weight_type: str) -> int:
        """Bytes of all tensors; the vocabulary comes on top, some 20 bytes a token."""
        return sum(weights.n_bytes(weight_type) for weights in self.weights())

    def kv_bytes_per_token(self, type_k: str = "f16", type_v: str = "f16") -> int:
        """KV cache bytes of one token over all layers."""
        if self.latent is not None:
            return self.n_layer * row_bytes(self.latent.n_kv + self.latent.n_rope, type_k)
        return sum(row_bytes(n * dim, kind) for n, dim in map(self.heads, range(self.n_layer)) for kind in (type_k, type_v))

    def weights(self) -> Iterator[Weights]:
        """Every tensor in the order of the file. Matrices map inputs of unit variance to outputs of unit variance. Those that end in the
        residual stream have unit variance over all layers together."""
        yield Weights("token_embd.weight", self.n_vocab, self.n_embd, _EMBEDDING_STD, shared=_SHARED, is_f32=self.embeds_f32)
        # Any sign: a head that is the embedding would otherwise predict the token it has just seen.
        gain = _LOGIT_STD / (_EMBEDDING_STD * self.n_embd ** 0.5)
        last = "token_embd_norm" if self.architecture == "lfm2" else "output_norm"
        yield Weights(f"{last}.weight", 0, self.n_embd, 0.1 * gain, mean=gain, any_sign=True)
        if not self.tied:
            yield Weights("output.weight", self.n_vocab, self.n_embd, _EMBEDDING_STD)
        if self.architecture == "gemma4":
            yield Weights("rope_freqs.weight", 0, self.head_dim // 2, 0.0, mean=1.0)
        for il in range(self.n_layer):
            block = f"blk.{il}"
            yield norm(f"{block}.attn_norm.weight", self.n_embd)
            if self.latent is not None:
                yield from self._latent_attention(block, self.latent)
            elif self.attends(il):
                yield from self._attention(block, il)
            elif self.delta is not None:
                yield from self._delta_net(block, self.delta)
            elif self.convolutions is not None:
                yield from self._convolution(block, self.convolutions)
            yield from self._feed_forward(block, il)

    # ---- attention -------------------------------------------------------------------------------------------------------------------

    def _attention(self, block: str, il: int) -> Iterator[Weights]:
        n_head_kv, dim = self.heads(il)
        n_q, n_kv = self.n_head * dim, n_head_kv * dim
        normed = self.architecture not in ("llama", "gpt-oss")  # queries and keys are, per head: the gain is in that norm
        gain = 1.0 if normed else _ATTENTION_GAIN
        yield matrix(f"{block}.attn_q.weight", n_q * (2 if self.delta else 1), self.n_embd, gain)  # with a gate for each number
        yield matrix(f"{block}.attn_k.weight", n_kv, self.n_embd, gain)
        if self.architecture != "gemma4" or self.slides(il):  # there V is K
            yield matrix(f"{block}.attn_v.weight", n_kv, self.n_embd)
        if normed:
            unscaled = dim ** -0.25 if self.architecture == "gemma4" else 1.0  # logits are not divided by the root of a head's size there
            yield norm(f"{block}.attn_q_norm.weight", dim, _ATTENTION_GAIN * unscaled)
            yield norm(f"{block}.attn_k_norm.weight", dim, _ATTENTION_GAIN * unscaled)
        yield matrix(f"{block}.attn_output.weight", self.n_embd, n_q, self._residual)
        if self.architecture == "gpt-oss":
            for name, n in (("q", n_q), ("k", n_kv), ("v", n_kv), ("output", self.n_embd)):
                yield Weights(f"{block}.attn_{name}.bias", 0, n, 0.02)
            yield Weights(f"{block}.attn_sinks.weight", 0, self.n_head, 1.0)
        if self.architecture in ("gemma3", "gemma4"):
            yield norm(f"{block}.post_attention_norm.weight", self.n_embd, self._residual)

    def _latent_attention(self, block: str, latent: Latent) -> Iterator[Weights]:
        yield matrix(f"{block}.attn_q_a.weight", latent.n_q, self.n_embd)
        yield norm(f"{block}.attn_q_a_norm.weight", latent.n_q)
        yield matrix(f"{block}.attn_q_b.weight", self.n_head * (latent.n_key + latent.n_rope), latent.n_q, _ATTENTION_GAIN)
        yield matrix(f"{block}.attn_kv_a_mqa.weight", latent.n_kv + latent.n_rope, self.n_embd, _ATTENTION_GAIN)
        yield norm(f"{block}.attn_kv_a_norm.weight", latent.n_kv)
        yield matrix(f"{block}.attn_k_b.weight", latent.n_kv, latent.n_key, _ATTENTION_GAIN, n_stacked=self.n_head)
        yield matrix(f"{block}.attn_v_b.weight", latent.n_value, latent.n_kv, n_stacked=self.n_head)
        yield matrix(f"{block}.attn_output.weight", self.n_embd, self.n_head * latent.n_value, self._residual)

    # ---- layers that keep a state ----------------------------------------------------------------------------------------------------

    def _convolution(self, block: str, convolutions: Convolutions) -> Iterator[Weights]:
        yield Weights(f"{block}.shortconv.conv.weight", self.n_embd, convolutions.kernel, 0.5, is_f32=True)
        yield matrix(f"{block}.shortconv.in_proj.weight", 3 * self.n_embd, self.n_embd)
        yield matrix(f"{block}.shortconv.out_proj.weight", self.n_embd, self.n_embd, self._residual)

    def _delta_net(self, block: str, delta: DeltaNet) -> Iterator[Weights]:
        n_value = delta.n_value_heads * delta.head_dim
        n_qkv = 2 * delta.n_key_heads * delta.head_dim + n_value
        yield matrix(f"{block}.attn_qkv.weight", n_qkv, self.n_embd)
        yield matrix(f"{block}.attn_gate.weight", n_value, self.n_embd)
        yield Weights(f"{block}.ssm_conv1d.weight", n_qkv, delta.conv_kernel, 0.5, is_f32=True)
        yield Weights(f"{block}.ssm_dt.bias", 0, delta.n_value_heads, 0.5, mean=-3.0)
        yield Weights(f"{block}.ssm_a", 0, delta.n_value_heads, 0.1, mean=-1.0)  # a state halves within some twenty tokens
        yield matrix(f"{block}.ssm_beta.weight", delta.n_value_heads, self.n_embd)
        yield matrix(f"{block}.ssm_alpha.weight", delta.n_value_heads, self.n_embd)
        yield norm(f"{block}.ssm_norm.weight", delta.head_dim)
        yield matrix(f"{block}.ssm_out.weight", self.n_embd, n_value, self._residual)

    # ---- feed-forward networks -------------------------------------------------------------------------------------------------------

    def _feed_forward(self, block: str, il: int) -> Iterator[Weights]:
        name = "post_attention_norm" if self.delta or self.architecture == "gpt-oss" else "ffn_norm"
        yield norm(f"{block}.{name}.weight", self.n_embd)
        mixes = self.experts is not None and il >= self.experts.n_dense
        if not mixes or self.architecture == "gemma4":
            yield from self._network(block, "", self.n_ff)
        if self.experts is not None and mixes:
            yield from self._mixture(block, self.experts)
        if self.architecture in ("gemma3", "gemma4"):
            yield norm(f"{block}.post_ffw_norm.weight", self.n_embd, self._residual)

    def _network(self, block: str, suffix: str, width: int, n_stacked: int = 0) -> Iterator[Weights]:
        for part, n_out, n_in, gain in (("gate", width, self.n_embd, 1.0), ("up", width, self.n_embd, 1.0),
                                        ("down", self.n_embd, width, self._residual)):
            yield matrix(f"{block}.ffn_{part}{suffix}.weight", n_out, n_in, gain, n_stacked)

    def _mixture(self, block: str, experts: Experts) -> Iterator[Weights]:
        yield replace(matrix(f"{block}.ffn_gate_inp.weight", experts.n, self.n_embd), is_f32=True)
        yield from self._network(block, "_exps", experts.n_ff, experts.n)
        if experts.n_ff_shared:
            yield from self._network(block, "_shexp", experts.n_ff_shared)
        if self.architecture == "qwen35moe":
            yield Weights(f"{block}.ffn_gate_inp_shexp.weight", 0, self.n_embd, self.n_embd ** -0.5)
        if self.architecture == "deepseek2":
            yield Weights(f"{block}.exp_probs_b.bias", 0, experts.n, 0.01)
        if self.architecture == "gemma4":
            yield norm(f"{block}.ffn_gate_inp.scale", self.n_embd)
            for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
                yield norm(f"{block}.{name}.weight", self.n_embd)
        if self.architecture == "gpt-oss":
            yield Weights(f"{block}.ffn_gate_inp.bias", 0, experts.n, 0.02)
            for part, n in (("gate", experts.n_ff), ("up", experts.n_ff), ("down", self.n_embd)):
                yield Weights(f"{block}.ffn_{part}_exps.bias", experts.n, n, 0.02, is_f32=True)

    @property
    def _residual(self) -> float:
        """The standard deviation that a layer adds to the residual stream: all layers together add as much as an embedding has."""
        return self.n_layer ** -0.5
