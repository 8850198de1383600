"""Files with matrices that llama.cpp multiplies by cuBLAS, on a machine with a card and without the library: refused before anything runs."""

import math
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.fake_gpus import CARD

from edgekv import opening
from edgekv._native import libraries
from edgekv.common.enums import DeviceKind
from edgekv.common.errors import EXIT_LIBRARY, CudaUnavailable
from edgekv.config import KvOptions
from edgekv.models import model_writer, shapes
from edgekv.models.reader import TensorInfo
from edgekv.planning import cublas, devices, later
from edgekv.proof.run import find_device

MISSING = 'cuBLAS cannot be opened (libcublas.so.13: cannot open shared object file); pip install "nvidia-cublas==13.*" brings it'


def tensors(**shapes: tuple[int, ...]) -> list[TensorInfo]:
    """`tensors(F32=(8, 8), ...)`: one matrix of each type, which a layer multiplies with."""
    return [TensorInfo(f"blk.0.ffn_{kind.lower()}.weight", shape, kind, math.prod(shape), 0) for kind, shape in shapes.items()]


@pytest.fixture
def asked(gpus, monkeypatch) -> list[Path]:
    """A machine with a card and no cuBLAS, and the libraries of llama.cpp that were asked for it."""
    gpus(CARD)
    monkeypatch.setattr(devices, "library_problem", lambda: None)
    monkeypatch.setattr(devices, "cupy_version", lambda: "14.2.0")
    monkeypatch.setattr(devices, "_folder", lambda: Path("/plug-in"))
    found: list[Path] = []
    monkeypatch.setattr(libraries, "cublas_problem", lambda backend: found.append(backend) or MISSING)
    return found


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "IQ1_M"])
def test_types_without_a_kernel_for_prompts(kind):
    quantised = tensors(Q4_K=(256, 8), Q8_0=(256, 8), IQ1_S=(256, 8), MXFP4=(256, 8))
    assert cublas.matrix(quantised, 75) is None
    assert cublas.matrix(quantised + tensors(**{kind: (256, 8)}), 75).type == kind
    assert cublas.matrix(quantised, 70).type == "Q4_K", "before 7.5 cuBLAS multiplies prompts of each type"


def test_what_is_not_multiplied_does_not_count():
    def one(name: str, *shape: int) -> TensorInfo:
        return TensorInfo(name, shape, "F32", math.prod(shape), 0)

    head = replace(one("output.weight", 256, 512), type="Q6_K")
    rows = [one("token_embd.weight", 256, 512), one("position_embd.weight", 256, 64)]
    others = [one("blk.0.attn_norm.weight", 256), one("blk.0.attn_q_norm.weight", 64, 4), one("blk.0.ffn_up_exps.bias", 256, 8),
              one("blk.0.shortconv.conv.weight", 3, 256), one("rope_freqs.weight", 32), one("blk.0.ssm_conv1d.weight", 4, 256), one("blk.0.ssm_a", 8),
              one("blk.1.ssm_a", 16, 256)]
    assert cublas.matrix([head, *rows, *others], 89) is None
    assert cublas.matrix([*rows, *others], 89).name == "token_embd.weight", "it is the head where there is no other"
    assert cublas.matrix([head, one("blk.0.attn_q.weight.lora_a", 256, 8)], 89) is not None
    assert cublas.matrix([head, one("blk.0.ssm_a", 1, 8)], 89) is not None, "the scan of Mamba-2, which has a number for each head"


@pytest.mark.parametrize(("shape", "kind", "needs"), [("llama-3-8b", "q4_0", None), ("llama-3-8b", "f16", "output.weight in F16"),
                                                      ("lfm2-1.2b", "q4_0", None), ("qwen3.6-27b", "q4_0", None),
                                                      ("qwen3-30b-a3b", "q4_0", "blk.0.ffn_gate_inp.weight in F32")])
def test_a_model_is_refused_only_where_it_needs_what_is_missing(asked, monkeypatch, header_file, shape, kind, needs):
    model = header_file(shape, kind)
    if needs is None:
        assert devices.place(KvOptions(), model).kind is DeviceKind.CUDA and not asked, "600 MB that nobody needs are not opened"
        return
    placed = devices.place(KvOptions(), model)
    assert placed.kind is DeviceKind.HOST and needs in placed.warning and MISSING in placed.warning and "THE GPU IS NOT USED" in placed.warning
    assert asked == [Path("/plug-in/libggml-cuda.so")]
    with pytest.raises(CudaUnavailable) as caught:
        devices.place(KvOptions(attention_device="cuda"), model)
    message = str(caught.value)
    assert caught.value.exit_code == EXIT_LIBRARY and needs in message and MISSING in message and "\n" not in message
    assert "--attention-device cpu" in message
    monkeypatch.setattr(libraries, "cublas_problem", lambda backend: None)
    assert devices.place(KvOptions(), model).kind is DeviceKind.CUDA


def test_what_is_loaded_beside_a_model_is_refused_too(asked, header_file):
    placed, unquantised = devices.place(KvOptions(), header_file("llama-3-8b")), str(header_file("qwen3-0.6b", "f16"))
    with pytest.raises(CudaUnavailable, match="cuBLAS cannot be opened"):
        later.check_placed(("--mmproj", unquantised), placed)
    for options in ((), ("--mmproj", unquantised, "--no-mmproj-offload"), ("--model-draft", str(header_file("qwen3-0.6b"))), ("--lora", "none.gguf")):
        later.check_placed(options, placed)
    later.check_placed(("--mmproj", unquantised), devices.place(KvOptions(attention_device="cpu")))


def test_what_a_llama_opens_is_refused_too(asked, tmp_path, header_file):
    """Attention without flash attention, and an adapter."""
    model = model_writer.write_model(shapes.SHAPES["tiny"], tmp_path / "quantised.gguf", "q4_0")
    assert opening.asked(model, {}, "off", None, None, None, flash_attn=True).placement.kind is DeviceKind.CUDA and not asked
    for options, flash_attn in (({}, False), ({"lora_path": str(header_file("qwen3-0.6b", "f16"))}, True)):
        with pytest.raises(CudaUnavailable, match="cuBLAS cannot be opened"):
            opening.asked(model, options, "off", None, None, None, flash_attn)
    assert opening.asked(model, {"attention_device": "cpu"}, "off", None, None, None, flash_attn=False).placement.kind is DeviceKind.HOST


def test_the_proof_of_a_card_is_refused_too(asked, monkeypatch):
    """Its small model is in F32: a card must not be called wrong for that."""
    monkeypatch.delenv("EDGEKV_ATTENTION_DEVICE", raising=False)
    with pytest.raises(CudaUnavailable, match="cuBLAS cannot be opened"):
        find_device()
    monkeypatch.setattr(libraries, "cublas_problem", lambda backend: None)
    assert find_device() == CARD
