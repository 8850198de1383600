"""The folder of a KV home on disk: its free space, and why no home can be made there."""

import errno
import os
import sys
from pathlib import Path

from edgekv.common.errors import ConfigError, DoesNotFit, EdgeKVError
from edgekv.common.units import MIB, size

PAGE = 4096
"""Bytes that a disk reads at least."""

HOT_SHARE, LEAST_REST = 0.75, 16 * MIB
"""Of the memory that is free for K and V in a file, the share for copies of the rows that are read most lately, and the least bytes beside them: the
system needs them for the pages that are written and read whole. With 10 MiB a token of the default model waited for 277 pages, with 19 MiB for 68."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def free_on_disk(folder: Path) -> int:
    """Bytes that a home can take there. Raises ConfigError if it is no folder in which a file can be made."""
    if not sys.platform.startswith("linux"):
        raise ConfigError("a KV home on disk needs Linux; leave it out")
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder} for the KV home; make it, or name another")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"no file can be made in the folder {folder} for the KV home: it is not writable; name another")
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def hot_rows_bytes(free: int, home: int) -> int:
    """Bytes for copies of rows; free: memory for K and V beside everything else. 0 where all K and V fit there, which the system then keeps there."""
    return 0 if home <= free else max(0, min(int(HOT_SHARE * free), free - LEAST_REST))


def check_space(folder: Path, n_ctx: int, needed: int, instead: str) -> None:
    """Raise DoesNotFit if a home of `needed` bytes does not fit there; the message ends with what to do instead. Raises as `free_on_disk`."""
    if needed > (free := free_on_disk(folder)):
        raise no_space(folder, n_ctx, needed, free, instead)


def no_space(folder: Path, n_ctx: int, needed: int, free: int, instead: str) -> DoesNotFit:
    return DoesNotFit(f"K and V of a context of {n_ctx:,} tokens take {size(needed)} in {folder}, and {size(free)} are free there; {instead}")


def no_home(number: int, folder: Path) -> EdgeKVError:
    """The error for a file that could not be made there. number: an errno."""
    if number in _FULL:
        return DoesNotFit(f"there is no room for the KV cache in {folder}; use fewer tokens of context, or another folder")
    if number == errno.EOPNOTSUPP:
        return ConfigError(f"the file system of {folder} cannot reserve space for the KV home; name a folder on another")
    return ConfigError(f"no file can be made in {folder} for the KV home: {os.strerror(number)}; name another folder")
