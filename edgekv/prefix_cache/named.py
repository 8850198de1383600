"""Named prefixes of a folder: they stay until the name expires, even unused. A name is a person's, or says that a request asked for it."""

import contextlib
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, structs

from edgekv.common import json_file
from edgekv.common.errors import ConfigError
from edgekv.prefix_cache.blocks import line
from edgekv.prefix_cache.files import PINS, BlockFile, write_note

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ASKED = "asked-"

ID_DIGITS = 12
"""Of a chain's ID: the beginning of its last key."""

Named = TypeVar("Named")


def find_id(chains: dict[bytes, Named], start: str, none: str) -> Named:
    """The chain, of those by their last key, whose ID begins with `start`. Raises ConfigError if there is more than one, or, with the sentence `none`, if
    there is none."""
    found = [key for key in chains if start and key.hex().startswith(start.lower())]
    if len(found) == 1:
        return chains[found[0]]
    if found:
        raise ConfigError(f"{start!r} is the beginning of {len(found)} IDs; write more of it: {', '.join(key.hex()[:ID_DIGITS] for key in found[:4])}")
    raise ConfigError(none)


class Pin(Struct, frozen=True):
    """Every block on the chain to `key` stays."""

    name: str
    root: bytes
    """Root key of the model identity."""
    key: bytes
    expires: float
    """Seconds since 1970."""

    @property
    def asked(self) -> bool:
        """Whether a request asked for it."""
        return self.name == asked_name(self.key)


def asked_name(key: bytes) -> str:
    """The name of a pin that a request asked for."""
    return _ASKED + key.hex()[:ID_DIGITS]


def write_pin(folder: Path, pin: Pin) -> None:
    """Raises ConfigError for a name that is none, OSError."""
    if not _NAME.fullmatch(pin.name):
        raise ConfigError(f"the name is {pin.name!r}; it must be 1 to 64 letters, digits, dots, dashes or underscores, the first a letter "
                          "or digit")
    write_note(_path(folder, pin.name), {**structs.asdict(pin), "root": pin.root.hex(), "key": pin.key.hex()})


def remove_pin(folder: Path, name: str) -> bool:
    """Remove a pin; False if there is none. Raises OSError."""
    try:
        _path(folder, name).unlink()
    except FileNotFoundError:
        return False
    return True


def read_pins(folder: Path, now: float | None = None) -> list[Pin]:
    """The pins that have not expired, by name; other files are skipped."""
    pins = []
    for path in sorted((folder / PINS).glob("*.json")):
        said = json_file.read(path)
        with contextlib.suppress(ValueError, KeyError, TypeError):
            pins.append(Pin(path.stem, bytes.fromhex(said["root"]), bytes.fromhex(said["key"]), float(said["expires"])))
    return [pin for pin in pins if pin.expires > (time.time() if now is None else now)]


def extend_pin(folder: Path, pin: Pin) -> None:
    """Write a pin, unless it lasts longer already. Those whose time is over go. Raises OSError."""
    written, now = read_pins(folder, now=0.0), time.time()
    for one in written:
        if one.expires <= now:
            remove_pin(folder, one.name)
    if all(one.name != pin.name or one.expires < pin.expires for one in written):
        write_pin(folder, pin)


def snapshots_on(chain: Iterable[BlockFile], files: Iterable[BlockFile]) -> list[BlockFile]:
    """The snapshots among some files that may belong to a chain: they follow its blocks, or the parent of one of them."""
    beside = {(file.root, key) for file in chain for key in (file.link.key, file.link.parent)}
    return [file for file in files if file.link.snapshot and (file.root, file.link.parent) in beside]


def pinned_paths(pins: Iterable[Pin], files: Iterable[BlockFile]) -> set[Path]:
    """The files that may not be evicted."""
    pins, files = list(pins), list(files) if pins else []
    paths: set[Path] = set()
    for pin in pins:
        mine = [file for file in files if file.root == pin.root]
        keys = set(line(pin.key, {file.link.key: file.link.parent for file in mine if not file.link.snapshot}))
        chain = [file for file in mine if file.link.key in keys]  # both copies of a block
        paths |= {file.path for file in (*chain, *snapshots_on(chain, mine))}
    return paths


def _path(folder: Path, name: str) -> Path:
    return folder / PINS / f"{name}.json"
