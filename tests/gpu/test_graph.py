"""With tiering on, a decode graph has as many splits as stock's, one of them on the GPU, and llama.cpp's CUDA graphs stay in
use."""

import os
import re

import pytest

pytestmark = pytest.mark.usefixtures("on_a_card")


def splits(text: str) -> list[list[str]]:
    """Backend of each split of each graph printed after the prompt, in order."""
    graphs: list[list[str]] = []
    for number, backend in re.findall(r"## SPLIT #(\d+): (\S+)", text.rpartition("== decode")[2]):
        if number == "0":
            graphs.append([])
        graphs[-1].append(backend)
    return graphs


@pytest.fixture
def logged(decoded, synthetic, monkeypatch):
    monkeypatch.setitem(os.environ, "GGML_SCHED_DEBUG", "1")

    def run(mode: str, **options):
        found = decoded(synthetic("llama", n_ctx_train=8192), mode, prompt=1500, steps=64, verbose=True, **options)
        return found["stderr"] + found["stdout"]

    return run


@pytest.mark.parametrize(("mode", "vram"), [("exact", None), ("exact", 4 << 20), ("sparse", 4 << 20)])
def test_one_split_on_the_gpu(logged, mode, vram):
    stock, ours = splits(logged("off")), splits(logged(mode, **({"vram": vram} if vram else {})))
    assert stock and ours, "GGML_SCHED_DEBUG printed no graph after the prompt"
    print(f"stock {stock[-1]}, {mode} {ours[-1]}")
    assert [backend for backend in ours[-1] if backend.startswith("CUDA")] == ["CUDA0"]
    assert len(ours[-1]) <= len(stock[-1])


@pytest.mark.parametrize(("mode", "vram"), [("exact", None), ("exact", 4 << 20), ("sparse", 4 << 20)])
def test_cuda_graphs_are_used(logged, mode, vram):
    text = logged(mode, **({"vram": vram} if vram else {})).rpartition("== decode")[2]
    said = [line for line in text.splitlines() if "CUDA graph" in line or "CUDA Graph" in line]
    print("\n".join(said[-10:]))
    assert not [line for line in said if "disabling" in line]
    assert [line for line in said if "warmup complete" in line], "no CUDA graph was captured"
    # the view of the cache grows every 256 tokens; only then may a graph be built anew
    assert len([line for line in said if "warmup reset" in line]) <= 2
