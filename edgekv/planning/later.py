"""Files that llama.cpp's server loads after the model, by its options, and the memory that they take."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from edgekv.common.errors import ModelError
from edgekv.models.geometry import open_model
from edgekv.models.inspector import check_projector, projector_bytes
from edgekv.models.reader import open_gguf

if TYPE_CHECKING:
    from edgekv.planning.device_fit import DeviceRoom
    from edgekv.planning.devices import Placement

PROJECTOR = ("-mm", "--mmproj")
DRAFTS = ("-md", "--model-draft", "--spec-draft-model")
_LISTS = ("--lora", "--lora-scaled", "--control-vector", "--control-vector-scaled")
"""Options for several files."""
_WORK_SHARE = 1 / 4  # estimate: caches and work buffers of a draft model, as a share of its file's bytes


def later_bytes(options: Sequence[str]) -> int:
    """Memory for what these options of llama.cpp's server name: projectors as llama.cpp tells, adapters as long as their files, a draft model by
    estimate. Missing files count nothing: the server reports them. Raises ModelError for a projector that is none."""
    return sum(projector_bytes(path) if name in PROJECTOR else int(path.stat().st_size * (1 + _WORK_SHARE * (name in DRAFTS)))
               for name, path in _files(options) if path.is_file())


def place_later(room: DeviceRoom | None, n_bytes: int) -> tuple[DeviceRoom | None, int]:
    """What such files leave of a device's memory, and the bytes of them that host memory takes: all where there is no device."""
    return (None, n_bytes) if room is None else (room.less(n_bytes), 0)


def check_later(options: Sequence[str]) -> None:
    """Raise ModelError, by the header alone, where one of these options names a file that is missing or of another kind."""
    for name, path in _files(options):
        if name in PROJECTOR:
            check_projector(path)
        elif name in DRAFTS:
            open_model(path, whole=False)
        elif "lora" in name and open_gguf(path).value("general.type") != "adapter":
            raise ModelError(f"{path} is not a LoRA adapter; {name} takes the file that convert_lora_to_gguf.py writes")
        elif "vector" in name and not any(tensor.name.startswith("direction.") for tensor in open_gguf(path).tensor_infos):
            raise ModelError(f"{path} is not a control vector; {name} takes the file that llama-cvector-generator writes")


def check_placed(options: Sequence[str], placement: Placement) -> None:
    """Raise CudaUnavailable where one of these options names a file that the GPUs of a placement cannot compute with."""
    from edgekv.planning.devices import check_beside

    for name, path in _files(options):
        if path.is_file() and not (name in PROJECTOR and "--no-mmproj-offload" in options):
            check_beside(placement, path)


def _files(options: Sequence[str]) -> Iterator[tuple[str, Path]]:
    for argument, value in pairwise(options):
        name = argument.replace("_", "-")
        if name in _LISTS:  # separated by commas, with a scale behind each or none
            yield from ((name, Path(file.rpartition(":")[0] if name.endswith("-scaled") else file)) for file in next(csv.reader([value]), []))
        elif name in (*PROJECTOR, *DRAFTS):
            yield name, Path(value)
