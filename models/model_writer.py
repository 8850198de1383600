"""Writes a model of a known shape with random weights, of any size, completely or not at all.

A matrix consists of blocks of 32 numbers, drawn from a bank of `_N_BLOCKS` blocks that are quantised once. That is as fast as a disk
writes, and no two rows are alike. The bank's numbers are normally distributed with mean zero: blocks of random bits have another mean, which
would grow from layer to layer.
"""

import errno
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import gguf
import numpy as np
from msgspec.structs import replace

from edgekv.common.errors import ConfigError, DoesNotFit, EdgeKVError
from edgekv.common.units import size
from edgekv.models.model_shape import ModelShape
from edgekv.models.reader import HEADER_ONLY
from edgekv.models.shape_weights import Weights
from edgekv.models.shapes import WEIGHT_TYPES
from edgekv.models.synth_file import FIRST_PRINTABLE, add_text_tokenizer, say

Progress = Callable[[int, int], None]
"""Called with the bytes written, and all bytes."""

_BLOCK = 32  # numbers
_N_BLOCKS = 1 << 16
_CHUNK_BLOCKS = 1 << 18  # gathered at once: 4.5 to 16 MiB
_RARE = 0.1  # scale of the rows of control tokens and bytes that are no text: they are hardly ever sampled

_FILE_TYPES = {"q4_0": gguf.LlamaFileType.MOSTLY_Q4_0, "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0, "f16": gguf.LlamaFileType.MOSTLY_F16,
               "bf16": gguf.LlamaFileType.MOSTLY_BF16}
_PART = ".part"


def write_model(shape: ModelShape, path: Path, weight_type: str = WEIGHT_TYPES[0], seed: int = 0,
                progress: Progress = lambda done, total: None) -> Path:
    """Write a GGUF file of `shape` whose matrices are of `weight_type`; the same arguments give the same bytes.

    The file is `<path>.part` until it is complete; an interrupt or an error removes it. Raises ConfigError for an impossible type or path,
    DoesNotFit if the disk has no room.
    """
    _check_type(weight_type)
    return _whole(shape, path, weight_type, lambda writer, total: _write_tensors(writer, shape, path, weight_type, seed, progress, total))


def write_mixture(shape: ModelShape, path: Path, quantise: Callable[[Path, Path], None], seed: int = 0,
                  progress: Progress = lambda done, total: None) -> Path:
    """Write a file of f16 beside `path`, and `path` from it: quantise(source, target). Both are removed where it does not end; the file of f16
    always is. Raises as `write_model`, and what quantise raises."""
    _check_path(path)
    plain, part = path.with_name(f"{path.name}.f16{_PART}"), path.with_name(path.name + _PART)
    plain.unlink(missing_ok=True)  # left by a killed process
    try:
        quantise(write_model(shape, plain, "f16", seed, progress), part)
        part.rename(path)
    finally:
        plain.unlink(missing_ok=True)
        part.unlink(missing_ok=True)
    return path


def write_header(shape: ModelShape, path: Path, weight_type: str = WEIGHT_TYPES[0]) -> Path:
    """Write a header that lists the tensors, without their data. `edgekv plan` reads such a file; nothing can run it. Raises as
    `write_model`."""
    _check_type(weight_type)
    return _whole(shape, path, weight_type, lambda writer, total: None, header_only=True)


def write_empty(shape: ModelShape, path: Path, weight_type: str) -> Path:
    """Write a model whose matrices are zero bytes, for measurements of speed and memory. weight_type: any ggml type whose blocks divide the
    matrix rows. The matrices are holes in the file, which take no disk. Random are vectors, and, in f32, a mixture's embeddings and the matrices
    that choose experts, so that tokens go to different ones."""
    if shape.experts is not None:
        shape = replace(shape, embeds_f32=True)
    return _whole(shape, path, weight_type, lambda writer, total: _write_all_but_matrices(writer, shape, weight_type))


def _check_type(weight_type: str) -> None:
    if weight_type not in WEIGHT_TYPES:
        raise ConfigError(f"there is no weight type {weight_type!r}; use one of: {', '.join(WEIGHT_TYPES)}")


def _check_path(path: Path) -> None:
    if path.exists():
        raise ConfigError(f"{path} exists; remove it, or name another file with -o")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent} for {path.name}; make it, or name another with -o")


def _file_of(writer: gguf.GGUFWriter) -> BinaryIO:
    """The writer's file, open since the header was written."""
    if not writer.fout:
        raise EdgeKVError("a model could not be written: the header comes first")
    return writer.fout[0]


def _write_all_but_matrices(writer: gguf.GGUFWriter, shape: ModelShape, weight_type: str) -> None:
    file = _file_of(writer)
    for tensor in shape.weights():
        end = file.tell() + writer.ggml_pad(tensor.n_bytes(weight_type), writer.data_alignment)
        if tensor.is_vector or tensor.is_f32:
            _drawn(tensor, seed=0).tofile(file)
        file.seek(end)
    file.truncate()


def _whole(shape: ModelShape, path: Path, weight_type: str, body: Callable[[gguf.GGUFWriter, int], None], header_only: bool = False) -> Path:
    """Write a header and then `body`, completely or not at all. body(writer, bytes of all tensors with their padding)."""
    _check_path(path)
    part = path.with_name(path.name + _PART)
    writer = gguf.GGUFWriter(part, shape.architecture)
    try:
        part.unlink(missing_ok=True)  # left by a killed process
        body(writer, _write_header(writer, shape, weight_type, header_only))
        writer.close()
        part.rename(path)
    except BaseException as error:
        writer.close()
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DoesNotFit(f"{path} could not be written: its disk is full; name a file on another with -o") from error
        if isinstance(error, OSError):
            raise EdgeKVError(f"{path} could not be written: {error.strerror or error}; nothing of it was kept") from error
        raise
    return path


def _write_header(writer: gguf.GGUFWriter, shape: ModelShape, weight_type: str, header_only: bool) -> int:
    """Write the header; return the bytes of all tensors with their padding."""
    from edgekv._native.gguf_header import type_numbers

    _add_metadata(writer, shape, weight_type)
    if header_only:
        writer.add_bool(HEADER_ONLY, True)
    total = 0
    for tensor in shape.weights():
        n_bytes = tensor.n_bytes(weight_type)
        number = type_numbers()[tensor.type_in(weight_type).upper()]  # gguf's list is shorter, and it writes any number
        writer.add_tensor_info(tensor.name, tensor.dims, np.dtype(np.float32), n_bytes, raw_dtype=cast(gguf.GGMLQuantizationType, number))
        total += writer.ggml_pad(n_bytes, writer.data_alignment)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    file = _file_of(writer)
    writer.write_padding(file, file.tell())
    return total


def _write_tensors(writer: gguf.GGUFWriter, shape: ModelShape, path: Path, weight_type: str, seed: int, progress: Progress, total: int) -> None:
    file = _file_of(writer)
    _check_room(path, total)
    bank = _Bank(weight_type, seed)
    done = 0
    for tensor in shape.weights():
        n_bytes = 0
        for chunk in _chunks(tensor, bank, seed):
            chunk.tofile(file)
            n_bytes += chunk.nbytes
            progress(done + n_bytes, total)
        writer.write_padding(file, n_bytes)
        done += writer.ggml_pad(n_bytes, writer.data_alignment)
    progress(total, total)


def _check_room(path: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if n_bytes > free:
        raise DoesNotFit(f"{path.name} takes {size(n_bytes)}, and {size(free)} are free on its disk: {size(n_bytes - free)} are "
                         "missing; name a file on another disk with -o, or ask for fewer --layers")


def _add_metadata(writer: gguf.GGUFWriter, shape: ModelShape, weight_type: str) -> None:
    if weight_type in _FILE_TYPES:
        writer.add_file_type(_FILE_TYPES[weight_type])
    same = len(set(shape.heads_kv)) == 1 or shape.delta is not None  # llama.cpp counts a delta net's layers by their period
    say(writer, type="model", name=f"EdgeKV synthetic {shape.name}", quantization_version=gguf.GGML_QUANT_VERSION,
        description="random weights in the shape of a model, for measurements; it has nothing to say", context_length=shape.n_ctx_train,
        embedding_length=shape.n_embd, block_count=shape.n_layer, feed_forward_length=shape.n_ff, head_count=shape.n_head,
        head_count_kv=shape.n_head_kv if same else shape.heads_kv, layer_norm_rms_eps=shape.norm_epsilon, rope_freq_base=shape.rope_base,
        vocab_size=shape.n_vocab, **_heads(shape), **_experts(shape), **_layer_kinds(shape))
    add_text_tokenizer(writer, shape.n_vocab)


def _heads(shape: ModelShape) -> dict[str, Any]:
    if (latent := shape.latent) is not None:
        return {"key_length": latent.n_kv + latent.n_rope, "value_length": latent.n_kv, "key_length_mla": latent.n_key + latent.n_rope,
                "value_length_mla": latent.n_value, "q_lora_rank": latent.n_q, "kv_lora_rank": latent.n_kv, "rope_dimension_count": latent.n_rope}
    return {"key_length": shape.head_dim, "value_length": shape.head_dim, "rope_dimension_count": shape.delta.rope_dim if shape.delta else shape.head_dim}


def _experts(shape: ModelShape) -> dict[str, Any]:
    if (experts := shape.experts) is None:
        return {}
    facts: dict[str, Any] = {"expert_count": experts.n, "expert_used_count": experts.n_used, "expert_feed_forward_length": experts.n_ff}
    if shape.latent is not None:
        facts |= {"leading_dense_block_count": experts.n_dense, "expert_shared_count": experts.n_ff_shared // experts.n_ff,
                  "expert_gating_func": gguf.ExpertGatingFuncType.SIGMOID, "expert_weights_norm": True, "expert_weights_scale": 1.8}
    elif experts.n_ff_shared:
        facts["expert_shared_feed_forward_length"] = experts.n_ff_shared
    return facts


def _layer_kinds(shape: ModelShape) -> dict[str, Any]:
    """Facts about windows, delta nets and convolutions."""
    facts: dict[str, Any] = {}
    if (window := shape.window) is not None:
        facts["sliding_window"] = window.n
        if window.head_dim:
            facts |= {"sliding_window_pattern": [shape.slides(il) for il in range(shape.n_layer)], "key_length_swa": window.head_dim,
                      "value_length_swa": window.head_dim, "rope_dimension_count_swa": window.head_dim, "rope_freq_base_swa": window.rope_base,
                      "embedding_length_per_layer_input": 0, "final_logit_softcapping": 30.0}
    if (delta := shape.delta) is not None:
        facts |= {"rope_dimension_sections": [delta.rope_dim // 6 + 1, delta.rope_dim // 6 + 1, delta.rope_dim // 6, 0],
                  "ssm_conv_kernel": delta.conv_kernel, "ssm_inner_size": delta.n_value_heads * delta.head_dim, "ssm_state_size": delta.head_dim,
                  "ssm_time_step_rank": delta.n_value_heads, "ssm_group_count": delta.n_key_heads, "full_attention_interval": delta.period}
    return facts | ({} if shape.convolutions is None else {"shortconv_l_cache": shape.convolutions.kernel})


class _Bank:
    """Blocks of `_BLOCK` normally distributed numbers of unit variance, in the bytes of a weight type."""

    def __init__(self, weight_type: str, seed: int):
        values = np.random.default_rng([seed, _N_BLOCKS]).standard_normal((_N_BLOCKS, _BLOCK), dtype=np.float32)
        self._plain = values if weight_type == "bf16" else None
        if self._plain is not None:
            return
        if weight_type == "f16":
            self._blocks = values.astype(np.float16).view([("scaled", np.float16, _BLOCK)])[:, 0]
        else:
            quantised = gguf.quants.quantize(values, gguf.GGMLQuantizationType[weight_type.upper()])
            codes = quantised.shape[1] - 2
            self._blocks = quantised.view([("scaled", np.float16), ("codes", np.uint8, codes)])[:, 0]

    def scaled(self, std: float, chosen: np.ndarray | slice = np.s_[:]) -> np.ndarray:
        """The chosen blocks, of numbers with this standard deviation. Both quantised types begin with their scale."""
        if self._plain is not None:
            upper = ((self._plain[chosen] * np.float32(std)).view(np.uint32) >> 16).astype(np.uint16)  # bf16 is the upper half of an f32
            return upper.view(f"V{upper.itemsize * _BLOCK}")[:, 0]
        blocks = self._blocks[chosen].copy()
        blocks["scaled"] = blocks["scaled"].astype(np.float32) * std
        return blocks.view(f"V{blocks.dtype.itemsize}")  # NumPy gathers plain bytes faster than fields


def _random(tensor: Weights, seed: int) -> np.random.Generator:
    """Each tensor has its own random stream, so that changing one leaves the others alone."""
    return np.random.default_rng([seed, zlib.crc32(tensor.name.encode())])


def _drawn(tensor: Weights, seed: int) -> np.ndarray:
    """The numbers of a vector, or of a matrix of f32."""
    random = _random(tensor, seed)
    values = tensor.mean + np.float32(tensor.std) * random.standard_normal(tensor.n_elements, dtype=np.float32)
    return values * random.choice(np.array([-1, 1], np.float32), tensor.n_in) if tensor.any_sign else values


def _chunks(tensor: Weights, bank: _Bank, seed: int) -> Iterator[np.ndarray]:
    """The bytes of a tensor, a few MiB at a time."""
    if tensor.is_vector or tensor.is_f32:
        yield _drawn(tensor, seed)
        return
    random = _random(tensor, seed)
    per_row = tensor.n_in // _BLOCK
    common = random.integers(0, _N_BLOCKS, per_row, dtype=np.uint16)
    n_rare = FIRST_PRINTABLE if tensor.name in ("token_embd.weight", "output.weight") else 0
    for n_rows, std in ((n_rare, _RARE * tensor.std), (tensor.n_rows - n_rare, tensor.std)):
        blocks, left = bank.scaled(std) if n_rows * per_row >= _N_BLOCKS else None, n_rows  # a small matrix scales only its own
        while left:
            n = min(left, max(1, _CHUNK_BLOCKS // per_row))
            chosen = random.integers(0, _N_BLOCKS, (n, per_row), dtype=np.uint16)
            if tensor.shared:
                common_here = random.random((n, per_row), dtype=np.float32) < tensor.shared
                common_here[:, 0] = False  # otherwise short rows would all be equal
                chosen = np.where(common_here, common, chosen)
            yield bank.scaled(std, chosen.ravel()) if blocks is None else blocks.take(chosen.ravel(), mode="clip")
            left -= n
