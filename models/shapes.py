"""Shapes of known models, for files of random weights (`edgekv models synth`): time and memory depend on the shape alone."""

from edgekv.common.errors import ConfigError
from edgekv.models.model_shape import Convolutions, DeltaNet, Experts, Latent, ModelShape, SlidingWindow

WEIGHT_TYPES = ("q4_0", "q8_0", "f16", "bf16")
"""Types of the matrices, the default first."""

MIXTURES = ("q4_k_m",)
"""Types by tensor, as llama.cpp's quantiser chooses them."""

SHAPES = {shape.name: shape for shape in (
    ModelShape("tiny", "llama", 2, 128, 192, 4, 2, 64, 384, 4096, 10_000.0),
    ModelShape("qwen3-0.6b", "qwen3", 28, 1024, 3072, 16, 8, 128, 151_936, 40_960, 1e6, norm_epsilon=1e-6, tied=True),
    ModelShape("llama-3.2-1b", "llama", 16, 2048, 8192, 32, 8, 64, 128_256, 131_072, 500_000.0, tied=True),
    ModelShape("lfm2-1.2b", "lfm2", 16, 2048, 8192, 32, 8, 64, 65_536, 128_000, 1e6, tied=True,
               convolutions=Convolutions(3, (2, 5, 8, 10, 12, 14))),
    ModelShape("llama-3.2-3b", "llama", 28, 3072, 8192, 24, 8, 128, 128_256, 131_072, 500_000.0, tied=True),
    ModelShape("qwen3-4b", "qwen3", 36, 2560, 9728, 32, 8, 128, 151_936, 40_960, 1e6, norm_epsilon=1e-6, tied=True),
    ModelShape("gemma-3-4b", "gemma3", 34, 2560, 10_240, 8, 4, 256, 262_144, 131_072, 1e6, norm_epsilon=1e-6, tied=True,
               window=SlidingWindow(1024, 6)),
    ModelShape("llama-3-8b", "llama", 32, 4096, 14_336, 32, 8, 128, 128_256, 131_072, 500_000.0),
    ModelShape("qwen3-14b", "qwen3", 40, 5120, 17_408, 40, 8, 128, 151_936, 40_960, 1e6, norm_epsilon=1e-6),
    ModelShape("gpt-oss-20b", "gpt-oss", 24, 2880, 2880, 64, 8, 64, 201_088, 131_072, 150_000.0, experts=Experts(32, 4, 2880),
               window=SlidingWindow(128, 2)),
    ModelShape("gemma-4-26b-a4b", "gemma4", 30, 2816, 2112, 16, 2, 512, 262_144, 262_144, 1e6, norm_epsilon=1e-6, tied=True,
               experts=Experts(128, 8, 704), window=SlidingWindow(1024, 6, head_dim=256, n_head_kv=8, rope_base=10_000.0)),
    ModelShape("qwen3.6-27b", "qwen35", 64, 5120, 17_408, 24, 4, 256, 248_320, 262_144, 1e7, norm_epsilon=1e-6, delta=DeltaNet(16, 48)),
    ModelShape("glm-4.7-flash", "deepseek2", 47, 2048, 10_240, 20, 1, 256, 154_880, 202_752, 1e6,
               experts=Experts(64, 4, 1536, n_ff_shared=1536, n_dense=1), latent=Latent(768, 512, 64, 192, 256)),
    ModelShape("qwen3-30b-a3b", "qwen3moe", 48, 2048, 6144, 32, 4, 128, 151_936, 40_960, 1e6, norm_epsilon=1e-6,
               experts=Experts(128, 8, 768)),
    ModelShape("qwen3-32b", "qwen3", 64, 5120, 25_600, 64, 8, 128, 151_936, 40_960, 1e6, norm_epsilon=1e-6),
    ModelShape("qwen3.6-35b-a3b", "qwen35moe", 40, 2048, 6144, 16, 2, 256, 248_320, 262_144, 1e7, norm_epsilon=1e-6,
               experts=Experts(256, 8, 512, n_ff_shared=512), delta=DeltaNet(16, 32)),
    ModelShape("llama-3-70b", "llama", 80, 8192, 28_672, 64, 8, 128, 128_256, 131_072, 500_000.0),
)}
"""Every shape by name. Those with a longer context by RoPE scaling have it without: random weights do not need it."""


def find_shape(name: str) -> ModelShape:
    """The shape of that name. Raises ConfigError, which lists the shapes."""
    try:
        return SHAPES[name]
    except KeyError:
        raise ConfigError(f"there is no shape {name!r}; use one of: {', '.join(SHAPES)}") from None
