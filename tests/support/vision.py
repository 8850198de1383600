"""Tiny models that see: projectors of random weights, a text model whose positions have three dimensions, images, and messages with them."""

import base64
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

from edgekv.models.synth_file import RandomFile, SyntheticFile, SyntheticShape

N_EMBD, N_FF, N_HEAD = 32, 48, 2
MEAN = [0.5, 0.5, 0.5]


class _Projector(RandomFile):
    """A GGUF file of a vision tower of one layer that is used, and a projector, under construction."""

    def __init__(self, path: Path, kind: str, n_out: int, image_size: int, patch_size: int, seed: int):
        super().__init__(path, "clip", seed)
        writer = self.gguf
        writer.add_type("mmproj")
        writer.add_file_type(gguf.LlamaFileType.ALL_F32)
        writer.add_string("clip.projector_type", kind)
        writer.add_bool("clip.has_vision_encoder", True)
        writer.add_bool("clip.use_gelu", True)
        for name, number in {"image_size": image_size, "patch_size": patch_size, "embedding_length": N_EMBD, "feed_forward_length": N_FF,
                             "block_count": 2, "projection_dim": n_out, "attention.head_count": N_HEAD}.items():
            writer.add_uint32(f"clip.vision.{name}", number)
        writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
        writer.add_array("clip.vision.image_mean", MEAN)
        writer.add_array("clip.vision.image_std", MEAN)

    def layers(self) -> None:
        for il in range(2):
            block = f"v.blk.{il}"
            for part in ("q", "k", "v", "out"):
                self.linear(f"{block}.attn_{part}", N_EMBD, N_EMBD)
            for norm in ("ln1", "ln2"):
                self.norm(f"{block}.{norm}", N_EMBD)
            self.linear(f"{block}.ffn_up", N_FF, N_EMBD)
            self.linear(f"{block}.ffn_down", N_EMBD, N_FF)

    def linear(self, name: str, n_out: int, n_in: int) -> None:
        self.add(f"{name}.weight", self.normal(name, n_out, n_in) / np.sqrt(n_in))
        self.add(f"{name}.bias", 0.1 * self.normal(f"{name}.bias", n_out))

    def norm(self, name: str, n: int) -> None:
        self.add(f"{name}.weight", 1 + 0.1 * self.normal(name, n))
        self.add(f"{name}.bias", 0.1 * self.normal(f"{name}.bias", n))

    def patches(self, name: str, patch_size: int) -> None:
        self.add(name, self.normal(name, N_EMBD, 3, patch_size, patch_size) / patch_size)

    def add(self, name: str, values: np.ndarray) -> None:
        self.gguf.add_tensor(name, np.ascontiguousarray(values, np.float32))


def llava(path: Path, seed: int = 0, n_out: int = 128) -> Path:
    """Each image is 64 tokens, and each token sees those before it."""
    made = _Projector(path, "mlp", n_out, 64, 8, seed)
    made.patches("v.patch_embd.weight", 8)
    made.add("v.position_embd.weight", made.normal("v.position_embd.weight", 64, N_EMBD))
    made.layers()
    made.linear("mm.0", n_out, N_EMBD)
    made.linear("mm.2", n_out, n_out)
    return made.finish()


def gemma3(path: Path, seed: int = 0, n_out: int = 128) -> Path:
    """Each image is 64 tokens that see each other."""
    made = _Projector(path, "gemma3", n_out, 128, 8, seed)
    made.gguf.add_uint32("clip.vision.projector.scale_factor", 2)
    made.patches("v.patch_embd.weight", 8)
    made.add("v.patch_embd.bias", made.normal("v.patch_embd.bias", N_EMBD))
    made.add("v.position_embd.weight", made.normal("v.position_embd.weight", 256, N_EMBD))
    made.layers()
    made.norm("v.post_ln", N_EMBD)
    made.add("mm.input_projection.weight", made.normal("mm.input_projection", N_EMBD, n_out) / np.sqrt(N_EMBD))
    made.add("mm.soft_emb_norm.weight", 1 + 0.1 * made.normal("mm.soft_emb_norm", N_EMBD))
    return made.finish()


def qwen2vl(path: Path, seed: int = 0, n_out: int = 128) -> Path:
    """An image of 28x28 pixels is a token. All tokens of an image have the same position; lines and columns tell them apart."""
    made = _Projector(path, "qwen2vl_merger", n_out, 560, 14, seed)
    for name in ("v.patch_embd.weight", "v.patch_embd.weight.1"):
        made.patches(name, 14)
    made.layers()
    made.norm("v.post_ln", N_EMBD)
    made.linear("mm.0", 4 * N_EMBD, 4 * N_EMBD)
    made.linear("mm.2", n_out, 4 * N_EMBD)
    return made.finish()


def qwen2vl_text(path: Path, shape: SyntheticShape = SyntheticShape(n_head=2, n_head_kv=1, dtype="f32"), seed: int = 0) -> Path:
    """A text model whose positions have three dimensions."""
    m = SyntheticFile(path, "qwen2vl", shape, seed)
    m.attention()
    m.say(rope_dimension_sections=[8, 12, 12, 0])
    m.text_and_ends()
    return m.layers(lambda block, il: m.qkv(block, bias=True))


# ---- images -----------------------------------------------------------------------------------------------------------------------


def picture(seed: int, width: int = 64, height: int = 64) -> bytes:
    """A PNG of random colours in squares of 8x8 pixels."""
    squares = np.random.default_rng(seed).integers(0, 256, (-(-height // 8), -(-width // 8), 3), np.uint8)
    pixels = squares.repeat(8, axis=0).repeat(8, axis=1)[:height, :width]
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def user(*parts: str | bytes) -> dict:
    """A user's message of texts and PNGs."""
    def of(part: str | bytes) -> dict:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(part).decode()}}

    return {"role": "user", "content": [of(part) for part in parts]}


def assistant(text: str) -> dict:
    return {"role": "assistant", "content": text}


def text(seed: int, n: int) -> str:
    """n tokens of the tiny models' tokenizer."""
    return "".join(chr(c) for c in np.random.default_rng(seed).integers(97, 123, n))


def request(messages: Sequence[dict], n: int = 8, **more) -> dict:
    """The body of a question to the chat endpoint, whose answer has the tokens' log-probabilities."""
    return {"messages": list(messages), "max_tokens": n, "temperature": 0, "logprobs": True, "top_logprobs": 2, "ignore_eos": True, **more}
