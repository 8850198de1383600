"""Fixtures that several test modules share."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("support")

import support.laboratory  # noqa: E402, F401
from support.native_build import NATIVE, build, prepare  # noqa: E402 (support's own assertions are rewritten only when told before)

# `python -m pytest` puts the repository first on the path, and its edgekv/ is only a part of the installed package.
_ROOT = Path(__file__).resolve().parent.parent
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _ROOT]


pytest_plugins = ("support.arithmetic", "support.fake_cupy", "support.fake_gpus", "support.homes", "support.serve_process", "support.wordy")


QUICK = ("arrays", "config", "models", "planning", "policies", "prefix_cache", "tiering", "test_house.py", "test_imports.py")
"""Folders and files of `pytest -m quick`: pure packages, and the house rules."""

NOT_QUICK = ("test_backend.py", "test_bound_of_ram.py", "test_codec.py", "test_context.py", "test_crafted.py",
             "test_device_fit.py", "test_device_mode.py", "test_device_tier.py", "test_digests.py", "test_faults.py", "test_faults_machine.py",
             "test_gather.py", "test_head_errors.py", "test_hierarchy.py", "test_local.py", "test_ops.py", "test_plan.py",
             "test_remote.py", "test_roofline.py", "test_snapshots.py", "test_workspace.py")
"""Files in these folders that measure, wait, fill memory, compile, try many random cases, or run contexts on a device."""

FIRST = ("native/test_device.py", "runtime/test_architectures.py", "native/test_kernels.py", "proof/test_doctor_gpu.py", "test_docs_run.py",
         "planning/test_device_fit.py", "runtime/test_exact.py")
"""What takes longest begins first, so that the workers of `-n 2` end together."""


def _is_quick(path: Path) -> bool:
    tests = _ROOT / "tests"
    return path.is_relative_to(tests) and path.relative_to(tests).parts[0] in QUICK and path.name not in NOT_QUICK


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m quick` imports no other test, nor what only these import: that would take longer than many quick tests."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if config.option.markexpr == "quick" and is_test and not _is_quick(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {_ROOT / "tests" / name: index for index, name in enumerate(FIRST)}
    items.sort(key=lambda item: place.get(item.path, len(FIRST)))
    for item in items:
        if _is_quick(item.path):
            item.add_marker("quick")


@pytest.fixture(scope="session", autouse=True)
def _outside_the_checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Python processes that tests start look for modules in the current folder first: it is not the checkout."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("work"))
    yield
    os.chdir(before)


@pytest.fixture(scope="session", autouse=True)
def _no_config_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests read no file of options of the person who runs them."""
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))
    os.environ.pop("EDGEKV_CONFIG", None)


@pytest.fixture(scope="session")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`synthetic(kind="llama", seed=0, **shape)`: path of a tiny model (edgekv.models.synth), written once for all tests."""
    from edgekv.models import synth

    folder = tmp_path_factory.mktemp("synthetic")
    written: dict[tuple, Path] = {}

    def write(kind: str = "llama", seed: int = 0, **shape: object) -> Path:
        key = (kind, seed, *sorted(shape.items()))
        if key not in written:
            path = folder / f"{kind}-{len(written)}.gguf"
            written[key] = synth.write(kind, path, seed=seed, **shape)
        return written[key]

    return write


@pytest.fixture(scope="session")
def header_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`header_file("llama-3-8b", "q4_0")`: the header of a model of such a shape without its weights (edgekv.models.shapes), written once."""
    from edgekv.models import model_writer, shapes

    folder = tmp_path_factory.mktemp("headers")

    def write(name: str, weight_type: str = "q4_0") -> Path:
        path = folder / f"{name}-{weight_type}.gguf"
        return path if path.exists() else model_writer.write_header(shapes.SHAPES[name], path, weight_type)

    return write


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The real default model; tests that need it are skipped where the extra `demo` is not installed."""
    from edgekv.common.errors import ModelError
    from edgekv.models import default_model

    try:
        return default_model()
    except ModelError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of the emulated device, built once. Its path stands in the environment of this process and of those that it starts."""
    library = build(NATIVE / "emulator", tmp_path_factory.mktemp("emulated"), names=("g++",)) / "libedgekv-emulated.so"
    os.environ["EDGEKV_EMULATOR"] = str(library)
    return library


@pytest.fixture(scope="session")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pinned llama.cpp with our patches, unpacked once."""
    folder = tmp_path_factory.mktemp("upstream") / "llama.cpp"
    prepare(folder)
    return folder


@pytest.fixture(scope="session")
def emulated_backend(emulator: Path, upstream: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of the emulated device's ggml backend, built once with ggml's own headers."""
    from edgekv import _native

    return build(NATIVE / "tests" / "backend", tmp_path_factory.mktemp("backend"), f"-DGGML_SOURCE={upstream / 'ggml'}",
                 f"-DLIBRARIES={_native.lib_dir()}", f"-DEMULATOR={emulator}", names=("g++",)) / "libggml-emulated.so"
