"""A model and its attention lie in one place, as `devices.place` decides: in Llama and in a server."""

import logging
import re

import pytest
from msgspec.structs import replace
from support.backend_process import beside_the_backend
from support.fake_gpus import CARD

from edgekv import Llama
from edgekv.common.enums import DeviceKind, KvMode
from edgekv.models.model_writer import write_model
from edgekv.models.shapes import find_shape
from edgekv.planning import devices
from edgekv.planning.devices import Placement
from edgekv.server.room import gpu_arguments

import llama_cpp

ONE_GPU = llama_cpp.LLAMA_SPLIT_MODE_NONE
OTHER = replace(CARD, index=1, free_bytes=CARD.free_bytes + 1)


def opened(path, **options) -> Llama:
    return Llama(str(path), n_ctx=256, n_threads=1, verbose=False, **options)


@pytest.mark.parametrize("asked", [None, "sparse"])
def test_without_our_attention_the_model_runs_stock_on_the_gpu(gpus, synthetic, monkeypatch, caplog, asked):
    """Here llama.cpp knows no GPU: what is seen is what it was asked for."""
    monkeypatch.setattr(devices, "cupy_version", lambda: None)
    monkeypatch.delenv("EDGEKV_KV", raising=False)
    gpus(CARD, OTHER)
    with caplog.at_level(logging.WARNING, "edgekv"):
        llama = opened(synthetic("llama"), kv=asked)
    given = llama.model_params
    assert given.n_gpu_layers > 1000 and (given.split_mode, given.main_gpu) == (ONE_GPU, 1) and llama.kv.mode is KvMode.OFF
    assert len(caplog.records) == 1 and "CuPy is not installed" in caplog.records[0].message, "one line says why"
    llama.eval([261])


def test_a_person_who_divides_a_model_is_obeyed(gpus, synthetic, monkeypatch):
    monkeypatch.setattr(devices, "cupy_version", lambda: None)
    gpus(CARD, OTHER)
    assert opened(synthetic("llama"), main_gpu=0).model_params.split_mode == llama_cpp.LLAMA_SPLIT_MODE_LAYER


def test_weights_that_stay_off_the_gpu_are_repacked(emulated_backend, tmp_path):
    """Beside a GPU llama.cpp would keep them as they are in the file, for the GPU to fetch, also where none of its layers lie there."""
    model = tmp_path / "tiny.gguf"
    write_model(replace(find_shape("tiny"), n_ctx_train=512), model, "q4_0", 0, lambda done, total: None)
    code = "from edgekv import Llama; Llama(sys.argv[1], attention_device='cpu', n_ctx=256, n_threads=1, verbose=True)"
    done = beside_the_backend(emulated_backend, code, model)
    assert done.returncode == 0 and re.search("(CPU_REPACK|AMX) model buffer", done.stderr), done.stderr[-3000:]


@pytest.mark.parametrize(("placement", "extra", "arguments"), [
    (Placement(DeviceKind.HOST), (), ["--device", "none"]),
    (Placement(DeviceKind.HOST, warning="no CuPy"), (), ["--device", "none"]),
    (Placement(DeviceKind.CUDA, 1, OTHER), (), ["--device", "CUDA1"]),
    (Placement(DeviceKind.CUDA, 1, OTHER, others=(CARD,)), (), []),
    (Placement(DeviceKind.CUDA, 1, OTHER), ("--tensor-split", "1,1"), []),
])
def test_a_server_is_told_the_same_place(placement, extra, arguments):
    assert gpu_arguments(placement, extra) == arguments


def test_a_context_reserves_nothing_before_it_is_attached(emulator, emulated_backend, synthetic):
    """Stock nodes would copy K and V of a layer to the device: buffers for that lie in no plan."""
    code = ("from support.contexts import attached; from edgekv.config import KvOptions\n"
            "with attached(Path(sys.argv[1]), KvOptions(attention_device='emulated', mode='exact'), n_ctx=32768, n_seq=1, n_threads=1,\n"
            "              model_params={'n_gpu_layers': -1}) as (context, run):\n"
            "    assert run is not None; context.decode([261] * 20, range(20), [0] * 20)")
    done = beside_the_backend(emulated_backend, code, synthetic("llama", n_ctx_train=32768))
    reserved = [float(size) for size in re.findall(r"EMULATED0 compute buffer size = +([\d.]+) MiB", done.stderr)]
    assert done.returncode == 0 and len(reserved) == 1, done.stderr[-3000:]


def test_memory_that_the_system_does_not_pin_is_told(emulator, emulated_backend, synthetic):
    """The GPU cannot read it. ggml takes other memory then, without a word."""
    code = ("import ctypes; from edgekv import Llama; from edgekv.common.errors import NotPinned\n"
            "has = ctypes.CDLL(sys.argv[1]).edgekv_emulator_has; has.argtypes = [ctypes.c_size_t] * 2 + [ctypes.c_bool, ctypes.c_size_t]\n"
            "has(8 << 30, 0, False, 0)\n"
            "try: Llama(sys.argv[2], attention_device='emulated', kv='exact', n_gpu_layers=-1, n_ctx=256, n_threads=1)\n"
            "except NotPinned as error: sys.exit(str(error))")
    done = beside_the_backend(emulated_backend, code, emulator, synthetic("llama"))
    assert done.returncode == 1 and "refused to pin the KV cache" in done.stderr and "ask for a smaller context" in done.stderr, done.stderr[-3000:]
