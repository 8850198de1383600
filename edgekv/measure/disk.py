"""How fast a folder's disk gives scattered pages, for a KV home there."""

import mmap
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from edgekv.common.errors import EdgeKVError
from edgekv.planning.home import PAGE

_FILE_BYTES = 64 << 20
_PIECE_BYTES = 1 << 20
_THREADS = 8
"""As many reads wait at once: more gain little on most disks, and the kernel is asked for at least so many."""
_SECONDS = 0.3


def scattered_reads_per_s(folder: Path) -> float:
    """Reads a second of pages of PAGE bytes at random places, past the memory of the kernel, in a file that is gone afterwards. Takes half a second.
    Raises EdgeKVError if the file system cannot."""
    path = folder / f"edgekv-rate-{os.getpid()}"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
        try:
            os.unlink(path)
            piece = mmap.mmap(-1, _PIECE_BYTES)
            piece.write(random.Random(0).randbytes(_PIECE_BYTES))
            for first in range(0, _FILE_BYTES, _PIECE_BYTES):
                os.pwritev(file, [piece], first)
            return _reads(file)
        finally:
            os.close(file)
    except OSError as error:
        raise EdgeKVError(f"the disk of {folder} could not be measured: {error.strerror}") from error


def _reads(file: int) -> float:
    end = time.perf_counter() + _SECONDS

    def read(seed: int) -> int:
        places, page, n = random.Random(seed), mmap.mmap(-1, PAGE), 0
        while time.perf_counter() < end:
            os.preadv(file, [page], PAGE * places.randrange(_FILE_BYTES // PAGE))
            n += 1
        return n

    with ThreadPoolExecutor(_THREADS) as pool:
        return sum(pool.map(read, range(_THREADS))) / _SECONDS
