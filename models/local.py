"""GGUF files on this machine: the default model, and those in other tools' caches."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from platformdirs import user_config_path

from edgekv.common.errors import ModelError
from edgekv.models.default import default_model

_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}$")
_FIRST_PART = re.compile(r"-00001-of-\d{5}$")
_LAYER = "application/vnd.ollama.image.model"
_HEAD_BYTES = 64 << 10
_N_TENSORS = slice(8, 16)  # of a GGUF file's first 24 bytes
_TEXT = re.compile(rb"general\.(type|architecture)\x08\0\0\0(.)\0{7}", re.DOTALL)
"""A key of a GGUF header, and the length of its text."""
_NO_MODELS = {"adapter", "mmproj", "imatrix", "clip", "controlvector"}
"""Types and architectures of files that go with a model."""


class LocalModel(Struct, frozen=True):
    """One file, or the first part of a split model."""

    name: str
    source: str
    path: Path


def local_models() -> list[LocalModel]:
    """Every model file in the known places, in the order of the places: each once, but under every name that one place has for it. Of a file only
    the beginning is read."""
    found: dict[tuple[Path, str], LocalModel] = {}
    for place in (_default, _hub, _llama_cpp, _ollama, _lm_studio):
        elsewhere = {path for path, _ in found}
        for model in place():
            if (path := model.path.resolve()) not in elsewhere:
                found.setdefault((path, model.name), model)
    return list(found.values())


def find_local(name: str) -> LocalModel:
    """The one of `local_models` with this name, or the only file whose names contain it. Raises ModelError, which names the candidates."""
    models = local_models()
    exact = [model for model in models if model.name == name]
    found = exact or [model for model in models if name.lower() in model.name.lower()]
    if len({model.path for model in found}) == 1:
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
        owner = repo.name.removeprefix("models--").replace("--", "/", 1)  # a user's name has no --
        for path in _files(repo / "snapshots"):
            yield LocalModel(f"{owner}/{path.stem}", "Hugging Face cache", path)


def _llama_cpp() -> Iterator[LocalModel]:
    folder = os.environ.get("LLAMA_CACHE")
    default = Path.home() / "Library/Caches/llama.cpp" if sys.platform == "darwin" else _cache() / "llama.cpp"
    for path in _files(Path(folder) if folder else default):
        yield LocalModel(path.stem, "llama.cpp cache", path)


def _ollama() -> Iterator[LocalModel]:
    """Models in Ollama's cache: manifests map names, as `ollama list` shows them, to blobs. Blobs without a manifest are no models."""
    root = Path(os.environ.get("OLLAMA_MODELS") or Path.home() / ".ollama/models")
    for manifest in sorted((root / "manifests").rglob("*")):
        if manifest.is_file():
            name = manifest.parent.relative_to(root / "manifests").as_posix().removeprefix("registry.ollama.ai/").removeprefix("library/")
            for blob in (root / "blobs" / digest for digest in _model_layers(manifest)):
                if _is_model(blob):
                    yield LocalModel(f"{name}:{manifest.name}", "Ollama", blob)


def _model_layers(manifest: Path) -> list[str]:
    try:
        layers = json.loads(manifest.read_text(encoding="utf-8"))["layers"]
        return [layer["digest"].replace(":", "-") for layer in layers if layer["mediaType"] == _LAYER]
    except (OSError, ValueError, KeyError, TypeError):  # another tool's file, or an unfinished one
        return []


def _lm_studio() -> Iterator[LocalModel]:
    """Models of LM Studio: in its folder, which a file in the home folder names where it was moved, and in the one for models that its settings name."""
    home = Path.home()
    bases = [home / ".lmstudio", _cache() / "lm-studio"]
    if named := _text_of(home / ".lmstudio-home-pointer").strip():
        bases.insert(0, Path(named))
    settings = [*(base / "settings.json" for base in bases), user_config_path("LM Studio", appauthor=False, roaming=True) / "settings.json"]
    for root in dict.fromkeys([*(base / "models" for base in bases), *filter(None, map(_downloads, settings))]):
        for path in _files(root):
            yield LocalModel(path.stem, "LM Studio", path)


def _downloads(settings: Path) -> Path | None:
    """The folder for models in LM Studio's settings; None: they name none."""
    try:
        folder = json.loads(_text_of(settings))["downloadsFolder"]
    except (ValueError, KeyError, TypeError):
        return None
    return Path(folder) if isinstance(folder, str) and folder else None


def _text_of(path: Path) -> str:
    """The text of another tool's file; empty if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _files(folder: Path) -> Iterator[Path]:
    """GGUF files of models below a folder, without later parts of split ones."""
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() == ".gguf" and not _LATER_PART.search(path.stem) and "mmproj" not in path.name.lower() and _is_model(path):
            yield path


def _is_model(path: Path) -> bool:
    """Whether a file is a GGUF file of a model, as far as its beginning says: no adapter, projector, imatrix, or vocabulary alone."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    if not head.startswith(b"GGUF"):
        return False
    said = {head[match.end():match.end() + match[2][0]].decode(errors="replace") for match in _TEXT.finditer(head)}
    no_tensors = head[_N_TENSORS] == bytes(8) and not _FIRST_PART.search(path.stem)
    return not said & _NO_MODELS and not no_tensors
