"""A file that cannot be used is left out alone: the rest of the folder serves."""

import errno
import os
import threading
from pathlib import Path

import pytest
from support.prefix_rows import conversation
from support.stores import n_restored, open_store, restore
from support.stores import save_through as save

from edgekv.prefix_cache.blocks import Reading
from edgekv.prefix_cache.files import TEMPORARY, scan
from edgekv.prefix_cache.listing import check_files, list_chains

EXACT = Reading.EXACT
TOKENS = [conversation(600, seed) for seed in range(3)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = open_store(tmp_path)
    for tokens in TOKENS:
        save(store, tokens)
    store.close()
    return tmp_path


def theirs(monkeypatch: pytest.MonkeyPatch, paths: set[Path], number: int = errno.EACCES) -> None:
    """Make the files another user's, also for tests that root runs: nobody can open, rename or remove them or what these folders hold."""
    def refuse(call):
        def wrapped(path, *arguments, **more):
            touched = {Path(os.fsdecode(one)) for one in (path, *arguments) if isinstance(one, str | bytes | os.PathLike)}
            if any(one in paths or one.parent in paths for one in touched):
                raise OSError(number, os.strerror(number), str(path))
            return call(path, *arguments, **more)

        return wrapped

    for name in ("open", "scandir", "listdir", "unlink", "replace", "utime"):
        monkeypatch.setattr(os, name, refuse(getattr(os, name)))


def file_of(folder: Path, which: int, n: int = 256) -> Path:
    """The first block of a conversation."""
    store = open_store(folder)
    chain = restore(store, TOKENS[which], 0, EXACT).chain
    store.close()
    return next(file.path for file in scan(folder) if file.link == next(link for link in chain if link.n == n))


@pytest.mark.parametrize("in_part", [False, True])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP])
def test_a_file_that_cannot_be_read_is_skipped_alone(folder, monkeypatch, caplog, number, in_part):
    path = file_of(folder, 1)
    theirs(monkeypatch, {path}, number)
    store = open_store(folder)
    assert restore(store, TOKENS[1], 0, EXACT, in_part).n_tokens == 0
    assert store.places[0].working
    assert [n_restored(store, TOKENS[which]) for which in (0, 2)] == [600, 600]
    assert len(caplog.records) == 1 and "left alone" in caplog.text
    assert store.stats().disk.n_refused == 1 and store.stats().disk.n_errors == 0


def test_a_tail_that_cannot_be_read_is_skipped_alone(folder, monkeypatch):
    """A search opens files of which a chain could have its end."""
    theirs(monkeypatch, {file_of(folder, 1, 88)})
    store = open_store(folder)
    assert [n_restored(store, tokens) for tokens in TOKENS] == [600, 512, 600]
    assert store.places[0].working


def test_a_disk_that_cannot_be_read_is_left_alone_as_a_whole(folder, monkeypatch, caplog):
    """The disk fails, not the file."""
    theirs(monkeypatch, {file.path for file in scan(folder)}, errno.EIO)
    store = open_store(folder)
    assert n_restored(store, TOKENS[0]) == 0 and not store.places[0].working
    assert len(caplog.records) == 1 and "stay in RAM" in caplog.text


def test_a_folder_of_anothers_is_skipped_alone(folder, monkeypatch):
    """The folder that holds the second blocks of a conversation is another user's."""
    theirs(monkeypatch, {file_of(folder, 1, 88).parent})
    store = open_store(folder)
    assert [n_restored(store, tokens) for tokens in TOKENS] == [600, 512, 600]
    save(store, conversation(100, 9))
    assert store.places[0].working and store.places[0].writable
    assert store.stats().disk.n_written == 1


def test_a_folder_in_a_files_place_is_not_written_over(folder, caplog):
    path = file_of(folder, 1)
    path.unlink()
    path.mkdir()
    (path / "mine").write_text("x")
    store = open_store(folder)
    save(store, TOKENS[1])
    save(store, conversation(300, 7))
    assert store.places[0].working and store.places[0].writable and (path / "mine").read_text() == "x"
    assert n_restored(open_store(folder), conversation(300, 7)) == 300
    assert store.stats().n_unwritten == 0 and len(caplog.records) == 1
    assert not list(folder.rglob(f"{TEMPORARY}*"))


def test_what_is_anothers_is_not_written_over(folder, monkeypatch):
    path = file_of(folder, 1)
    before = path.read_bytes()
    with monkeypatch.context() as patched:
        theirs(patched, {path})
        store = open_store(folder)
        assert n_restored(store, TOKENS[1]) == 0
        save(store, TOKENS[1])
        assert store.places[0].writable and store.stats().n_unwritten == 0
        assert n_restored(store, TOKENS[1]) == 600  # from RAM
        store.close()
    assert path.read_bytes() == before


def test_anothers_temporaries_and_files_do_not_stop_the_bound(folder, monkeypatch, caplog):
    files = sorted(scan(folder), key=lambda file: file.used_ns)
    left = files[0].path.parent / f"{TEMPORARY}theirs"
    left.write_bytes(b"half")
    theirs(monkeypatch, {left, files[0].path})
    most = sum(file.n_bytes for file in files)
    store = open_store(folder, folder_bytes=most)
    save(store, conversation(600, 8))
    assert store.places[0].writable and not caplog.records
    assert files[0].path.exists() and sum(file.n_bytes for file in scan(folder)) <= most
    assert n_restored(open_store(folder), conversation(600, 8)) == 600


def test_one_that_vanishes_between_two_looks_is_no_outage(folder, monkeypatch, caplog):
    """Another process evicts a tail just when a longer block replaces it."""
    store = open_store(folder)
    longer = conversation(200, 5, after=TOKENS[1])
    exists = Path.exists
    tail = file_of(folder, 1, 88)

    def vanish(path: Path, *arguments, **more):
        found = exists(path, *arguments, **more)
        if path == tail and found:
            os.unlink(path)
        return found

    monkeypatch.setattr(Path, "exists", vanish)
    save(store, longer)
    assert store.places[0].writable and not caplog.records and store.stats().disk.n_errors == 0
    assert n_restored(open_store(folder), longer) == 800


def test_a_sparse_file_of_a_terabyte_takes_no_memory(folder, caplog):
    path = file_of(folder, 1)
    os.truncate(path, 1 << 40)
    store = open_store(folder)
    assert n_restored(store, TOKENS[1]) == 0 and n_restored(store, TOKENS[0]) == 600
    assert "longer than its rows" in caplog.text


def test_people_still_see_the_rest(folder, monkeypatch):
    path = file_of(folder, 1)
    theirs(monkeypatch, {path, file_of(folder, 2, 88).parent})
    assert len(list_chains(folder)) >= 2
    checked = [one for _, _, one in check_files(folder)]
    assert [one.file.path for one in checked if one.refused] == [path]


def test_many_threads_and_one_that_cannot_be_read(folder, monkeypatch):
    path = file_of(folder, 1)
    theirs(monkeypatch, {path})
    store, found = open_store(folder), []
    threads = [threading.Thread(target=lambda which=which: found.append((which, restore(store, TOKENS[which], 0, EXACT).n_tokens)))
               for which in (0, 1, 2) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [(0, 600)] * 4 + [(1, 0)] * 4 + [(2, 600)] * 4
    assert store.stats().disk.n_refused == 1
