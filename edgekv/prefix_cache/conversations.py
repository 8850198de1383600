"""Notes which blocks of a folder a conversation uses, so that deleting it deletes them.

    FOLDER/conversations/NAME.json    keys of blocks, hexadecimal
"""

import contextlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

from edgekv.prefix_cache.blocks import line
from edgekv.prefix_cache.files import CONVERSATIONS, listed, remove_files, removing, write_note
from edgekv.prefix_cache.named import pinned_paths, read_pins, snapshots_on

_NAME = re.compile(r"[0-9a-z]{1,64}")
_ENDING = ".json"


def add_blocks(folder: Path, name: str, keys: Iterable[bytes]) -> None:
    """The conversation has these blocks too; `name`: small letters and digits. Raises OSError."""
    path = _path(folder, name)
    had = _keys(path)
    if had.issuperset(keys := set(keys)):
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_note(path, sorted(key.hex() for key in had | keys))


def knows(folder: Path, name: str) -> bool:
    """Whether blocks of the conversation were ever kept in the folder."""
    return _path(folder, name).exists()


def blocks_alone(folder: Path, name: str) -> set[bytes]:
    """Keys of the blocks that only this conversation uses."""
    keys = _keys(own := _path(folder, name))
    for path in own.parent.glob(f"*{_ENDING}"):
        if path != own:
            keys -= _keys(path)
    return keys


def forget(folder: Path, name: str) -> int:
    """Remove the blocks that the conversation has and no other one, with all that goes on from them; what is pinned stays. Bytes removed.
    Raises EdgeKVError."""
    files = listed(folder)
    alone, parents = blocks_alone(folder, name), {file.link.key: file.link.parent for file in files}
    doomed = [file for file in files if not alone.isdisjoint(line(file.link.key, parents))]  # what follows too: only this conversation leads there
    pinned = pinned_paths(read_pins(folder), files)
    n_bytes = remove_files(file for file in (*doomed, *snapshots_on(doomed, files)) if file.path not in pinned)
    with removing():
        _path(folder, name).unlink(missing_ok=True)
    return n_bytes


def forget_all(folder: Path) -> None:
    """Forget the blocks of every conversation, because the folder has none left. Raises EdgeKVError."""
    with removing():
        for path in (folder / CONVERSATIONS).glob(f"*{_ENDING}"):
            path.unlink(missing_ok=True)


def _keys(path: Path) -> set[bytes]:
    """None of them if the file is missing or not ours."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return {bytes.fromhex(key) for key in json.loads(path.read_text())}
    return set()


def _path(folder: Path, name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a conversation")
    return folder / CONVERSATIONS / f"{name}{_ENDING}"
