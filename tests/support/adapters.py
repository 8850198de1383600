"""LoRA adapters and control vectors, which change a synthetic model's rows without being in its file."""

from pathlib import Path

import gguf
import numpy as np

from edgekv.models.synth_file import SyntheticShape

RANK = 4


def lora(path: Path, shape: SyntheticShape, seed: int = 0, alpha: float = RANK) -> Path:
    """An adapter of all K and V projections, strong enough to change what the model says."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    rng = np.random.default_rng(seed)
    for il in range(shape.n_layer):
        for part in "kv":
            name = f"blk.{il}.attn_{part}.weight"
            writer.add_tensor(f"{name}.lora_a", rng.standard_normal((RANK, shape.n_embd), dtype=np.float32) / 8)
            writer.add_tensor(f"{name}.lora_b", rng.standard_normal((shape.n_head_kv * shape.head_dim, RANK), dtype=np.float32) / 2)
    return finish(writer, path)


def control_vector(path: Path, shape: SyntheticShape, seed: int = 0) -> Path:
    """A direction for each layer but the first: llama.cpp has none for it."""
    writer = gguf.GGUFWriter(path, "controlvector")
    rng = np.random.default_rng(seed)
    for il in range(1, shape.n_layer):
        writer.add_tensor(f"direction.{il}", rng.standard_normal(shape.n_embd, dtype=np.float32))
    return finish(writer, path)


def finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    """Write the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
