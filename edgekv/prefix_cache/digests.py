"""The digest of all bytes of a model's files. It is computed once for a file, and then known by the file's place and times."""

import contextlib
import hashlib
import os
import re
import threading
import time
from concurrent.futures import Future, wait
from pathlib import Path

from edgekv.common.errors import ModelError

PIECE_BYTES = 16 << 20
"""Bytes that one thread hashes at a time."""

MOST_THREADS = 8

SETTLED_NS = 2_000_000_000
"""A file that changed less long ago may change again without a sign: clocks of file systems tick slowly. Its digest is not kept."""

_READ_BYTES = 1 << 20
_DIGEST_BYTES = 32


def digest_of_model(path: Path, kept_in: Path | None = None) -> bytes:
    """32 bytes, the digest of every byte of the model in `path`, and of all its files if llama.cpp split it.

    A digest that was computed before for a file with the same device, inode, size and times of its last change is taken from `kept_in`, by
    default a folder of this user's cache. Raises ModelError if a file cannot be read, or changes meanwhile.
    """
    folder, digests = default_folder() if kept_in is None else kept_in, []
    for part in parts(Path(path)):
        try:
            digests.append(_digest_of_file(part, folder))
        except FileNotFoundError:
            raise ModelError(f"there is no file {part}") from None
        except OSError as error:
            raise ModelError(f"{part} cannot be read: {error.strerror}") from None
    return _joined(digests)


def known_digest(path: Path) -> bytes | None:
    """The same if it was computed before and kept; None otherwise, and for files that cannot be read. No file is read."""
    files = parts(Path(path))
    try:
        known = [digest for part in files if (digest := _known(_kept_as(_stamp(part.stat()), default_folder()))) is not None]
    except OSError:
        return None
    return _joined(known) if len(known) == len(files) else None


def _joined(digests: list[bytes]) -> bytes:
    return hashlib.blake2b(b"".join(digests), digest_size=_DIGEST_BYTES, person=b"edgekv-model").digest()


class Digesting:
    """Computes the digest of a model's files on a thread of its own, from now on, while others read the same bytes. Any thread may ask for it."""

    def __init__(self, model: Path):
        self._model = model
        self._found: Future[tuple[bytes, tuple]] = Future()
        threading.Thread(target=self._compute, name="edgekv-digest", daemon=True).start()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait at most `seconds`; return whether it has ended, successfully or not."""
        return bool(wait([self._found], seconds).done)

    @property
    def done(self) -> bool:
        return self._found.done()

    @property
    def digest(self) -> bytes:
        """The digest, 32 bytes. Raises ModelError if a file cannot be read."""
        return self._found.result()[0]

    @property
    def unchanged(self) -> bool:
        """Whether the files are unchanged since they were read. Raises ModelError."""
        return self._stamps() == self._found.result()[1]

    def _stamps(self) -> tuple[tuple[int, ...], ...]:
        """Places and times of last change, which differ after a file was replaced or written to."""
        try:
            return tuple(_stamp(part.stat()) for part in parts(self._model))
        except OSError as error:
            raise ModelError(f"{self._model} cannot be read: {error.strerror}") from None

    def _compute(self) -> None:
        try:
            stamps = self._stamps()
            self._found.set_result((digest_of_model(self._model), stamps))
        except BaseException as error:  # raised again when a thread asks
            self._found.set_exception(error)


def parts(path: Path) -> list[Path]:
    """All files of a model that was split as llama.cpp does it."""
    match = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path.name)
    if match is None:
        return [path]
    return [path.with_name(f"{match[1]}-{i:05d}-of-{match[2]}.gguf") for i in range(1, int(match[2]) + 1)]


def default_folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("edgekv")) / "digests"


def _digest_of_file(path: Path, folder: Path) -> bytes:
    with path.open("rb", buffering=0) as file:
        stamp = _stamp(os.fstat(file.fileno()))
        kept = _kept_as(stamp, folder)
        if (known := _known(kept)) is not None:
            return known
        digest = _hash(file.fileno(), stamp[2])
        if _stamp(os.fstat(file.fileno())) != stamp:
            raise ModelError(f"{path} changed while it was read; start again when it is written")
    if time.time_ns() - max(stamp[3:]) > SETTLED_NS:
        _keep(kept, digest)
    return digest


def _kept_as(stamp: tuple[int, ...], folder: Path) -> Path:
    return folder / hashlib.blake2b(repr(stamp).encode(), digest_size=16).hexdigest()


def _stamp(stat: os.stat_result) -> tuple[int, ...]:
    """Device, inode, size, and when content and inode changed last, in ns. A tool that sets the first time back does not set the second."""
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _hash(descriptor: int, n_bytes: int) -> bytes:
    """SHA-256 of the SHA-256 of each piece: processors have instructions for it, and pieces are hashed side by side. The threads of this pool
    are daemons: unlike an executor's, they do not hold up the end of the process, and a large model takes them long."""
    from multiprocessing.pool import ThreadPool  # most starts know the digest

    with ThreadPool(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        digests = b"".join(pool.imap(lambda first: _hash_piece(descriptor, first), range(0, n_bytes, PIECE_BYTES)))
    return hashlib.sha256(n_bytes.to_bytes(8, "little") + digests).digest()


def _hash_piece(descriptor: int, first: int) -> bytes:
    digest, end = hashlib.sha256(), first + PIECE_BYTES
    while first < end and (data := os.pread(descriptor, min(_READ_BYTES, end - first), first)):
        digest.update(data)
        first += len(data)
    return digest.digest()


def _known(kept: Path) -> bytes | None:
    try:
        digest = kept.read_bytes()
    except OSError:
        return None
    return digest if len(digest) == _DIGEST_BYTES else None


def _keep(kept: Path, digest: bytes) -> None:
    """Keep a digest; if the folder is not writable, the next start computes it again."""
    partial = kept.with_name(f".{kept.name}-{os.getpid()}-{threading.get_ident()}")
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial.write_bytes(digest)
        partial.replace(kept)
