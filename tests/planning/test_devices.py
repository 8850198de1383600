"""Which device a context gets, and the sentence where it is not the GPU."""

import subprocess
import sys

import pytest
from msgspec.structs import replace
from support.fake_gpus import CARD

from edgekv.common.enums import DeviceKind, KvMode
from edgekv.common.errors import EXIT_LIBRARY, CudaUnavailable
from edgekv.config import KvOptions
from edgekv.planning import devices

LISTED = "GeForce RTX 4070, 12282 MiB, driver 550.54"
EMULATED = replace(CARD, kind=DeviceKind.EMULATED, name="emulated device", arch=0, driver=0, runtime=0)


@pytest.fixture
def machine(gpus, monkeypatch):
    """`machine(infos, smi, built, cupy)`: what CUDA finds, what nvidia-smi lists, whether the build has CUDA code, CuPy's version."""
    def set_up(*infos, smi=(LISTED,), built=True, cupy="14.2.0"):
        monkeypatch.setattr(devices, "nvidia_gpus", lambda: (list(smi), "" if smi else "no NVIDIA driver is installed"))
        monkeypatch.setattr(devices, "has_cuda_build", lambda: built)
        monkeypatch.setattr(devices, "cupy_version", lambda: cupy)
        return gpus(*infos)

    return set_up


def refusal(**options) -> str:
    with pytest.raises(CudaUnavailable) as caught:
        devices.place(KvOptions(**{"attention_device": "cuda"} | options))
    message = str(caught.value)
    assert caught.value.exit_code == EXIT_LIBRARY, "another exit code"
    assert "\n" not in message and "--attention-device cpu" in message, "a message is one line and says what helps"
    return message


def test_a_usable_gpu(machine):
    machine(CARD)
    for device in ("auto", "cuda"):
        placed = devices.place(KvOptions(attention_device=device))
        assert placed.kind is DeviceKind.CUDA and placed.info == CARD and placed.warning is None
        assert placed.room.free == CARD.free_bytes and placed.room.holds_model
    host = devices.place(KvOptions(attention_device="cpu"))
    assert host.kind is DeviceKind.HOST and host.room is None and host.warning is None


def test_the_model_lies_on_the_gpu_with_the_most_free_memory(machine, header_file):
    machine(CARD, replace(CARD, index=1, name="the freest", free_bytes=CARD.free_bytes + 1))
    model = header_file("llama-3-8b")
    placed = devices.place(KvOptions(), model)
    assert (placed.index, placed.others, placed.stock, placed.room.name) == (1, (), False, "the freest")


def test_weights_that_no_gpu_holds_alone_lie_on_all_with_stock_attention(machine, header_file):
    small = replace(CARD, free_bytes=3 << 30)
    machine(small, replace(small, index=1))
    model = header_file("llama-3-8b")
    placed = devices.place(KvOptions(mode="sparse"), model)
    assert placed.stock and len(placed.others) == 1 and placed.room.free == 6 << 30 and "on none of 2 GPUs alone" in placed.warning
    assert devices.place(KvOptions(mode="off"), model).room.free == 6 << 30
    with pytest.raises(CudaUnavailable, match="on none of 2 GPUs alone"):
        devices.place(KvOptions(mode="sparse", attention_device="cuda"), model)


def test_the_driver_is_asked_once(machine, monkeypatch):
    machine(smi=())
    asked = []
    monkeypatch.setattr(devices, "nvidia_gpus", lambda: asked.append(1) or ([LISTED], ""))
    assert LISTED in devices.place(KvOptions()).warning and len(asked) == 1


def test_the_first_usable_one(machine):
    machine(replace(CARD, usable=False, problem="too old"), replace(CARD, index=1, name="the other"))
    assert devices.place(KvOptions()).info.name == "the other"


UNUSABLE = [
    ("no driver", dict(smi=()), "no NVIDIA driver is installed"),
    ("no code", dict(built=False), 'pip install ".[cuda12]" builds it with the CUDA toolkit and EDGEKV_CUDA=on'),
    ("old driver", dict(), "driver 550.54 is too old for this build (CUDA 13 needs 580 or newer, CUDA 12 needs 525 or newer)"),
    ("no code, a new driver", dict(built=False, smi=("GeForce RTX 4070, 12282 MiB, driver 580.65.06",)), 'pip install ".[cuda13]"'),
    ("hidden", dict(smi=("GeForce RTX 4070, 12282 MiB, driver 580.65.06",)), "CUDA_VISIBLE_DEVICES"),
]


@pytest.mark.parametrize(("case", "facts", "said"), UNUSABLE, ids=[case for case, _, _ in UNUSABLE])
def test_why_there_is_no_gpu(machine, case, facts, said):
    machine(**facts)
    assert said in refusal()
    placed = devices.place(KvOptions())
    assert placed.kind is DeviceKind.HOST
    if case == "no driver":
        assert placed.warning is None, "a machine without a GPU is nothing to be loud about"
    else:
        assert said in placed.warning and "THE GPU IS NOT USED" in placed.warning and "RTX 4070" in placed.warning


@pytest.mark.parametrize("found", [(), (CARD,)])
def test_without_the_libraries_of_cuda(machine, monkeypatch, found):
    machine(*found)
    monkeypatch.setattr(devices, "library_problem", lambda: "the library libcudart.so.13 is not found")
    assert "libcudart.so.13" in refusal()
    assert "libcudart.so.13" in devices.place(KvOptions()).warning


def test_the_native_library_says_why(machine):
    problem = "this build has code for sm_80, 86, 89, 90, 120, and the card is sm_75"
    machine(replace(CARD, usable=False, problem=problem))
    assert problem in refusal() and problem in devices.place(KvOptions()).warning


@pytest.mark.parametrize(("runtime", "extra"), [(13000, "edgekv[cuda13]"), (12080, "edgekv[cuda12]")])
def test_without_cupy(machine, runtime, extra):
    machine(replace(CARD, runtime=runtime), cupy=None)
    assert "CuPy is not installed" in refusal() and extra in refusal()
    assert extra in devices.place(KvOptions()).warning
    assert devices.place(KvOptions(mode="off", attention_device="cuda")).kind is DeviceKind.CUDA, "stock llama.cpp does without CuPy"


@pytest.mark.parametrize("cupy", [None, "14.2.0"], ids=["no CuPy", "no compiler"])
def test_what_only_our_attention_lacks_leaves_the_model_on_the_gpu(machine, cupy):
    """Stock attention over K and V in GPU memory, never over the link, and one line that says why."""
    machine(CARD, cupy=cupy).cupy_problem = "CuPy cannot load EdgeKV's kernels"
    kv = KvOptions(mode="sparse", kv_vram=1 << 30)
    placed = devices.place(kv)
    assert placed.kind is DeviceKind.CUDA and placed.room.free == CARD.free_bytes and placed.stock
    assert (placed.in_force(kv).mode, placed.in_force(kv).placement.kv_vram) == (KvMode.OFF, None)
    assert "CuPy" in placed.warning and "mode off" in placed.warning and "\n" not in placed.warning
    assert devices.measured_mode(placed) is KvMode.OFF
    assert "CuPy" in refusal()


def test_the_emulated_device(machine):
    machine(EMULATED, smi=())
    placed = devices.place(KvOptions(attention_device="emulated"))
    assert placed.kind is DeviceKind.EMULATED and not placed.room.holds_model
    assert devices.place(KvOptions()).kind is DeviceKind.HOST, "it is never chosen by itself"
    machine(smi=())
    assert "libedgekv-emulated" in refusal(attention_device="emulated")


def test_cupy_is_not_imported():
    code = "import sys; from edgekv.planning import devices; devices.cupy_version(); print('cupy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
