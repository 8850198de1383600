"""GGUF files on this machine: the default model, and those in other tools' caches."""

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgekv.errors import ModelError
from edgekv.models.default import default_model

_MAGIC = b"GGUF"
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
_LAYER = "application/vnd.ollama.image.model"


@dataclass(frozen=True)
class LocalModel:
    """One file, or the first part of a split model."""

    name: str
    source: str
    path: Path


def local_models() -> list[LocalModel]:
    """Every model file in the known places, each once, in the order of the places. No file is opened."""
    found: dict[Path, LocalModel] = {}
    for model in (*_default(), *_hub(), *_llama_cpp(), *_ollama(), *_lm_studio()):
        found.setdefault(model.path.resolve(), model)
    return list(found.values())


def find_local(name: str) -> LocalModel:
    """The one of `local_models` with this name, or the only one whose name contains it. Raises ModelError, which names the candidates."""
    models = local_models()
    exact = [model for model in models if model.name == name]
    found = exact or [model for model in models if name.lower() in model.name.lower()]
    if len(found) == 1:
        return found[0]
    if found:
        raise ModelError(f"{name!r} is a part of several names: {', '.join(model.name for model in found)}; write more of one")
    there = ", ".join(model.name for model in models) or "none"
    raise ModelError(f"there is no model {name!r} on this machine; there are: {there} (edgekv models pull fetches one)")


def _default() -> Iterator[LocalModel]:
    try:
        path = default_model()
    except ModelError:
        return
    yield LocalModel(path.stem, "default model", path)


def hub_folder() -> Path:
    """The folder of huggingface_hub's cache, by the variables that it reads; as there they may begin with ~ and name others."""
    home = os.environ.get("HF_HOME") or _cache() / "huggingface"
    return Path(os.path.expandvars(os.path.expanduser(os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or Path(home) / "hub")))


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _hub() -> Iterator[LocalModel]:
    for repo in sorted(hub_folder().glob("models--*")):
        owner = repo.name.removeprefix("models--").replace("--", "/")
        for path in _files(repo / "snapshots"):
            yield LocalModel(f"{owner}/{path.name.removesuffix('.gguf')}", "Hugging Face cache", path)


def _llama_cpp() -> Iterator[LocalModel]:
    folder = os.environ.get("LLAMA_CACHE")
    default = Path.home() / "Library/Caches/llama.cpp" if sys.platform == "darwin" else _cache() / "llama.cpp"
    for path in _files(Path(folder) if folder else default):
        yield LocalModel(path.stem, "llama.cpp cache", path)


def _ollama() -> Iterator[LocalModel]:
    """Models in Ollama's cache: manifests map names to blobs, which are named by their contents. Blobs without a manifest are no models."""
    root = Path(os.environ.get("OLLAMA_MODELS") or Path.home() / ".ollama/models")
    names: dict[str, str] = {}
    for manifest in sorted((root / "manifests").rglob("*")):
        if manifest.is_file():
            names |= dict.fromkeys(_model_layers(manifest), f"{manifest.parent.name}:{manifest.name}")
    for blob in sorted((root / "blobs").glob("sha256-*")):
        if _is_gguf(blob):
            yield LocalModel(names.get(blob.name, blob.name[:19]), "Ollama", blob)


def _model_layers(manifest: Path) -> list[str]:
    try:
        layers = json.loads(manifest.read_text(encoding="utf-8"))["layers"]
        return [layer["digest"].replace(":", "-") for layer in layers if layer["mediaType"] == _LAYER]
    except (OSError, ValueError, KeyError, TypeError):  # another tool's file, or an unfinished one
        return []


def _lm_studio() -> Iterator[LocalModel]:
    for root in (Path.home() / ".lmstudio/models", _cache() / "lm-studio/models"):
        for path in _files(root):
            yield LocalModel(path.stem, "LM Studio", path)


def _files(folder: Path) -> Iterator[Path]:
    """GGUF files below a folder, without projectors and later parts of split models."""
    for path in sorted(folder.rglob("*.gguf")):
        if not _LATER_PART.search(path.name) and "mmproj" not in path.name.lower() and _is_gguf(path):
            yield path


def _is_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False
