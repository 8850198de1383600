"""The thread that writes behind survives every fault of a place, and the log says at the end what it could not write."""

import subprocess
import sys
import threading

import pytest
from support.prefix_rows import conversation, identity
from support.stores import n_restored, open_store, restore, save

from edgekv.prefix_cache import folder as folder_module
from edgekv.prefix_cache.blocks import Reading
from edgekv.prefix_cache.files import TEMPORARY, scan
from edgekv.prefix_cache.folder import FolderPlace

EXACT = Reading.EXACT


@pytest.mark.parametrize("raised", [RuntimeError("boom"), MemoryError(), RecursionError(), SystemExit(3)], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("method", ["write", "touch"])
def test_the_writer_survives_what_a_place_raises(tmp_path, monkeypatch, caplog, method, raised):
    store = open_store(tmp_path)
    works = getattr(FolderPlace, method)
    failures = iter([raised, raised])

    def fail(place, what):
        error = next(failures, None) if place in store.places else None  # stores of other tests may still write
        if error is not None:
            raise error
        return works(place, what)

    monkeypatch.setattr(FolderPlace, method, fail)
    for seed in range(4):
        save(store, conversation(256, seed))
        assert store.flush(10)
    for seed in range(4):
        assert restore(store, conversation(256, seed), 0, EXACT).n_tokens == 256
        assert store.flush(10)  # else a busy machine touches several at once
    assert store.stats().disk.n_errors == 2
    said = [record for record in caplog.records if record.name == "edgekv"]
    assert len(said) == 1 and type(raised).__name__ in caplog.text
    monkeypatch.undo()
    fresh = open_store(tmp_path)  # the next use of a block that had failed wrote it
    assert sorted(restore(fresh, conversation(256, seed), 0, EXACT).n_tokens for seed in range(4)) == [256] * 4


def test_a_thread_that_cannot_start_is_started_later(tmp_path, monkeypatch):
    store = open_store(tmp_path)

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        assert save(store, conversation(256)).n_new == 256
    save(store, conversation(256, 1))
    assert store.flush(10) and len(list(scan(tmp_path))) == 2


@pytest.mark.parametrize("n", [1, 3])
def test_what_is_unwritten_at_the_end_is_said(tmp_path, monkeypatch, caplog, n):
    go_on, begun = threading.Event(), threading.Event()

    def hold(*_):
        begun.set()
        go_on.wait(60)
        raise OSError(5, "gone")

    monkeypatch.setattr(FolderPlace, "_write_file", hold)
    store = open_store(tmp_path)
    for seed in range(n):
        save(store, conversation(256, seed))
    assert begun.wait(10)
    closer = threading.Thread(target=store.close, args=(0.1,))
    threading.Timer(0.3, go_on.set).start()
    closer.start()
    closer.join(30)
    assert not closer.is_alive()
    (said,) = [record.getMessage() for record in caplog.records if "not written" in record.getMessage()]
    assert f"{n} block" in said and "disk" in said
    assert store.stats().n_unwritten == n


def test_temporary_names_of_containers_do_not_collide():
    """Two processes that share a folder have the number 1 each."""
    program = "import os; os.getpid = lambda: 1; from edgekv.prefix_cache.files import temporary_name; print(temporary_name())"
    names = {subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert len(names) == 2


def test_one_that_exists_is_no_failure(tmp_path, monkeypatch, caplog):
    """Another container has an unfinished file of the same name at any moment."""
    chosen = iter([f"{TEMPORARY}x", f"{TEMPORARY}x", f"{TEMPORARY}y"])
    monkeypatch.setattr(folder_module, "temporary_name", lambda: next(chosen))
    store = open_store(tmp_path)
    parent = tmp_path / identity().root_key().hex() / identity().root_key().hex()
    parent.mkdir(parents=True)
    (parent / f"{TEMPORARY}x").write_bytes(b"half")
    save(store, conversation(256))
    store.close()
    assert not caplog.records
    fresh = open_store(tmp_path)
    assert n_restored(fresh, conversation(256)) == 256
