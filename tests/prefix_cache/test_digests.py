"""The digest of a model's files: every byte counts, and each is read once."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from support.calls import watch

from edgekv.common.errors import ModelError
from edgekv.models import synth
from edgekv.models.reader import open_gguf
from edgekv.prefix_cache import digests
from edgekv.prefix_cache.digests import digest_of_model

SMALL = 4096
"""Bytes of a piece, so that a tiny model has many."""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return synth.write("llama", tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def path(model, tmp_path) -> Path:
    """A copy that may change."""
    path = tmp_path / "model.gguf"
    path.write_bytes(model.read_bytes())
    return path


@pytest.fixture
def kept(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(digests, "PIECE_BYTES", SMALL)
    return tmp_path / "digests"


@pytest.fixture
def hashed(monkeypatch) -> list[int]:
    """The offset of each piece that is hashed."""
    calls: list[int] = []
    watch(monkeypatch, digests, "_hash_piece", lambda _, first: calls.append(first))
    return calls


def settle(path: Path) -> Path:
    """A file that nobody has touched for a while. Its times cannot be set back, so the clock goes on."""
    while time.time_ns() - path.stat().st_ctime_ns <= digests.SETTLED_NS:
        time.sleep(0.1)
    return path


def test_each_weight_counts_to_its_last_byte(model, kept, tmp_path):
    """Only the first 4 KiB of each tensor used to count: two fine-tunings that differ behind them took each other's rows."""
    places = {tensor.name: tensor.end - 1 for tensor in open_gguf(model).tensor_infos} | {"metadata": 40}
    data, found = np.fromfile(model, np.uint8), {digest_of_model(model, kept)}
    for offset in places.values():
        changed = data.copy()
        changed[offset] ^= 1
        changed.tofile(tmp_path / "changed.gguf")
        found.add(digest_of_model(tmp_path / "changed.gguf", kept))
    assert len(found) == len(places) + 1 and {len(one) for one in found} == {32}
    (tmp_path / "copy.gguf").write_bytes(data.tobytes())
    assert digest_of_model(tmp_path / "copy.gguf", kept) in found
    (tmp_path / "longer.gguf").write_bytes(data.tobytes() + bytes(SMALL))
    assert digest_of_model(tmp_path / "longer.gguf", kept) not in found


def test_pieces_do_not_change_places(kept, tmp_path):
    one, two = bytes(SMALL), bytes([1]) * SMALL
    for name, data in {"a": one + two, "b": two + one}.items():
        (tmp_path / name).write_bytes(data)
    assert digest_of_model(tmp_path / "a", kept) != digest_of_model(tmp_path / "b", kept)


def test_a_file_is_read_once(path, kept, hashed, tmp_path):
    settle(path)
    first = digest_of_model(path, kept)
    assert len(hashed) == -(-path.stat().st_size // SMALL)
    hashed.clear()
    assert digest_of_model(path, kept) == first and not hashed
    path.rename(tmp_path / "moved.gguf")  # the file is the same, but its inode changed: it is read once more
    assert digest_of_model(tmp_path / "moved.gguf", kept) == first and hashed


@pytest.mark.parametrize("change", ["written", "times set back", "replaced"])
def test_a_file_that_changed_is_read_again(path, kept, tmp_path, change):
    before, stat = digest_of_model(settle(path), kept), path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    if change == "replaced":
        (tmp_path / "other.gguf").write_bytes(data)
        os.replace(tmp_path / "other.gguf", path)
    else:
        with path.open("r+b") as file:
            file.write(data)
    if change != "written":
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_size == stat.st_size
    assert digest_of_model(path, kept) != before


def test_what_was_written_just_now_is_not_remembered(path, kept, hashed, tmp_path):
    digest_of_model(path, kept)
    hashed.clear()
    digest_of_model(path, kept)
    assert hashed and not kept.exists()


def test_a_file_that_is_still_written_has_none(path, kept, tmp_path, monkeypatch):
    def write_meanwhile(*_: object) -> None:
        with path.open("ab") as file:
            file.write(b"x")

    watch(monkeypatch, digests, "_hash_piece", write_meanwhile)
    with pytest.raises(ModelError, match="changed while it was read"):
        digest_of_model(path, kept)


def test_a_damaged_or_unwritable_memory_costs_time_only(path, kept, hashed, tmp_path):
    first = digest_of_model(settle(path), kept)
    (known,) = kept.iterdir()
    known.write_bytes(b"half")
    assert digest_of_model(path, kept) == first
    kept.rename(tmp_path / "gone")
    kept.write_text("no folder")
    assert digest_of_model(path, kept) == first


def test_no_file_is_a_model_error(kept, tmp_path):
    with pytest.raises(ModelError, match="there is no file"):
        digest_of_model(tmp_path / "none.gguf", kept)
    with pytest.raises(ModelError, match="cannot be read"):
        digest_of_model(tmp_path, kept)


def test_every_part_of_a_split_model_counts(model, kept, tmp_path):
    other = synth.write("llama", tmp_path / "other.gguf", seed=1)
    parts = [tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    for part in parts:
        part.write_bytes(model.read_bytes())
    before = digest_of_model(parts[0], kept)
    parts[1].write_bytes(other.read_bytes())
    assert digest_of_model(parts[0], kept) != before
    parts[1].unlink()
    with pytest.raises(ModelError, match="00002-of-00002"):
        digest_of_model(parts[0], kept)
