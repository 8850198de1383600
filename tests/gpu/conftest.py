"""These tests need a GPU and the environment that `python tests/gpu_command run` makes; a plain `pytest` leaves them out."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

DEVICE = os.environ.get("EDGEKV_GPU_TESTS", "")
"""cuda; in a rehearsal emulated or cpu. The command sets it."""

collect_ignore_glob = [] if DEVICE else ["test_*.py"]

DECODE = Path(__file__).resolve().parents[1] / "support" / "decode_process.py"


@pytest.fixture(scope="session")
def device() -> str:
    return DEVICE


@pytest.fixture(scope="session")
def on_a_card(device: str) -> None:
    if device != "cuda":
        pytest.skip("needs a GPU")


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model, where it was carried along."""
    path = Path(os.environ["EDGEKV_GPU_MODELS"]) / "default.gguf"
    if not path.exists():
        pytest.skip("the default model was not carried along")
    return path


@pytest.fixture(scope="session")
def shaped() -> Callable[[str, int], Path]:
    """`shaped(name, n_ctx_train)`: a model of random weights in one of `edgekv.models.shapes`, kept between calls."""
    from dataclasses import replace

    from edgekv.models.model_writer import write_model
    from edgekv.models.shapes import find_shape

    def write(name: str, n_ctx_train: int) -> Path:
        path = Path(os.environ["EDGEKV_GPU_MODELS"]) / f"{name}-{n_ctx_train}.gguf"
        if not path.exists():
            write_model(replace(find_shape(name), n_ctx_train=n_ctx_train), path, "q4_0", 0, lambda done, total: None)
        return path

    return write


@pytest.fixture
def decoded(tmp_path: Path, device: str) -> Callable[..., dict]:
    """`decoded(model, mode, **options)`: the results of decode_process.py in a process of its own, so that a crash fails its test alone."""
    import numpy as np

    def run(model: Path, mode: str, expect: int | None = 0, **options: object) -> dict:
        out = tmp_path / f"{len(list(tmp_path.iterdir()))}.npz"
        words = []
        for name, value in options.items():
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        environment = {**os.environ, **({"EDGEKV": "0"} if mode == "off" else {})}
        done = subprocess.run([sys.executable, str(DECODE), "--model", str(model), "--mode", mode, "--device", device,
                               "--out", str(out), *words], capture_output=True, text=True, env=environment, timeout=220)
        said = f"{mode}: exit code {done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
        assert expect is None or done.returncode == expect, said
        found = dict(np.load(out)) if out.exists() else {}
        return {**found, "stdout": done.stdout, "stderr": done.stderr, "code": done.returncode}

    return run
