"""Faults below RAM of which the machine has no rule: other users, processes that share, threads, disks that are really full
(test_faults_machine.py)."""

import fcntl
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.calls import Held
from support.faulty import theirs
from support.prefix_rows import conversation, identity
from support.stores import n_restored, open_store, restore, save, save_through

from edgekv.prefix_cache import files
from edgekv.prefix_cache import folder as folder_module
from edgekv.prefix_cache.blocks import Reading
from edgekv.prefix_cache.files import TEMPORARY, scan

TOKENS = [conversation(600, seed) for seed in range(3)]

# ---- several processes, and threads ------------------------------------------------------------------------------------------------


def test_temporaries_of_the_dead_are_removed_and_those_of_the_living_stay(tmp_path):
    store, tokens = open_store(tmp_path), conversation(300)
    save(store, tokens)
    store.close()
    parent = next(scan(tmp_path)).path.parent
    dead, living = parent / f"{TEMPORARY}1-0", parent / f"{TEMPORARY}1-1"
    dead.write_bytes(b"half")
    with living.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        open_store(tmp_path)
        assert not dead.exists() and living.exists()
    open_store(tmp_path)
    assert not living.exists()


@pytest.mark.parametrize("write", ["named.write_pin(folder, named.Pin({}, bytes(16), bytes(16), 9e9))", "conversations.add_blocks(folder, {}, [bytes(16)])"],
                         ids=["pin", "conversation"])
def test_what_is_left_of_a_small_file_is_removed(tmp_path, write):
    """Its process was killed before the file got its name."""
    lines = ["import os", "from pathlib import Path", "from edgekv.prefix_cache import conversations, named", f"folder = Path({str(tmp_path)!r})",
             write.format("'whole'"), "os.replace = lambda *_: os._exit(9)", write.format("'half'")]
    assert subprocess.run([sys.executable, "-c", "\n".join(lines)], check=False).returncode == 9
    (folder,) = tmp_path.iterdir()
    assert len(list(folder.iterdir())) == 2
    open_store(tmp_path)
    assert [path.name for path in folder.iterdir()] == ["whole.json"]


def test_a_thread_that_cannot_start_is_started_later(tmp_path, monkeypatch):
    store = open_store(tmp_path)

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        assert save(store, conversation(256)).n_new == 256
    save(store, conversation(256, 1))
    assert store.flush(10) and len(list(scan(tmp_path))) == 2


def test_temporary_names_of_containers_do_not_collide():
    """Two processes that share a folder have the number 1 each."""
    program = "import os; os.getpid = lambda: 1; from edgekv.prefix_cache.files import temporary_name; print(temporary_name())"
    names = {subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert len(names) == 2


def test_one_that_exists_is_no_failure(tmp_path, monkeypatch, caplog):
    """Another container has an unfinished file of the same name at any moment."""
    chosen = iter([f"{TEMPORARY}x", f"{TEMPORARY}x", f"{TEMPORARY}y"])
    monkeypatch.setattr(files, "temporary_name", lambda: next(chosen))
    store = open_store(tmp_path)
    parent = tmp_path / identity().root_key().hex() / identity().root_key().hex()
    parent.mkdir(parents=True)
    (parent / f"{TEMPORARY}x").write_bytes(b"half")
    save(store, conversation(256))
    store.close()
    assert not caplog.records
    fresh = open_store(tmp_path)
    assert n_restored(fresh, conversation(256)) == 256


def test_threads_share_a_store(tmp_path):
    store = open_store(tmp_path, ram_bytes=100_000, folder_bytes=300_000)
    system = conversation(512, 1000)

    def work(seed: int) -> None:
        for n in range(12):
            tokens = conversation(100 + 40 * n, seed, after=system)
            save(store, tokens)
            n_restored(store, tokens)
            assert store.stats().ram.n_bytes <= 100_000

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert store.flush(20)
    store.close()
    for seed in range(6):
        assert n_restored(open_store(tmp_path), conversation(100, seed, after=system)) >= 512


# ---- disks -------------------------------------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_made_is_said_once(tmp_path, caplog):
    (tmp_path / "file").write_text("mine")
    store, tokens = open_store(tmp_path / "file" / "prefixes"), conversation(600)
    save(store, tokens)
    assert store.flush(5)
    assert n_restored(store, tokens) == 600
    assert len(caplog.records) == 1 and "prefixes stay in RAM" in caplog.text


def test_a_folder_that_vanishes_is_made_anew(tmp_path, caplog):
    folder = tmp_path / "prefixes"
    store, tokens = open_store(folder), conversation(600)
    save(store, tokens)
    assert store.flush(5)
    shutil.rmtree(folder)
    assert n_restored(store, tokens) == 600
    assert store.flush(5)
    longer = conversation(300, 1, after=tokens)
    save(store, longer)
    assert store.flush(5)
    assert len(caplog.records) == 1 and "vanished" in caplog.text
    assert n_restored(open_store(folder), longer) == 900


# ---- RAM that is behind ------------------------------------------------------------------------------------------------------------


def test_when_the_writer_is_behind_the_bound_of_ram_holds(tmp_path, monkeypatch):
    slow = Held(monkeypatch, folder_module, "write_file")
    store = open_store(tmp_path, ram_bytes=60_000)
    for seed in range(4):
        save(store, conversation(600, seed))
        assert store.stats().ram.n_bytes <= 60_000
    assert store.stats().n_dropped
    assert n_restored(store, conversation(600, 3)) == 600
    slow.go_on.set()
    assert store.flush(20)
    assert n_restored(open_store(tmp_path), conversation(600, 3)) == 600


# ---- files of others ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = open_store(tmp_path)
    for tokens in TOKENS:
        save_through(store, tokens)
    store.close()
    return tmp_path


def file_of(folder: Path, which: int, n: int = 256) -> Path:
    """The first block of a conversation."""
    store = open_store(folder)
    chain = restore(store, TOKENS[which], 0, Reading.EXACT).chain
    store.close()
    return next(file.path for file in scan(folder) if file.link == next(link for link in chain if link.n == n))


def test_a_folder_of_anothers_is_skipped_alone(folder):
    """The folder that holds the second blocks of a conversation is another user's."""
    with theirs({file_of(folder, 1, 88).parent}):
        store = open_store(folder)
        assert [n_restored(store, tokens) for tokens in TOKENS] == [600, 512, 600]
        save_through(store, conversation(100, 9))
    assert store.places[0].working and store.places[0].writable
    assert store.stats().disk.n_written == 1


def test_anothers_temporaries_and_files_do_not_stop_the_bound(folder, caplog):
    files = sorted(scan(folder), key=lambda file: file.used_ns)
    left = files[0].path.parent / f"{TEMPORARY}theirs"
    left.write_bytes(b"half")
    most = sum(file.n_bytes for file in files)
    with theirs({left, files[0].path}):
        store = open_store(folder, folder_bytes=most)
        save_through(store, conversation(600, 8))
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
    save_through(store, longer)
    assert store.places[0].writable and not caplog.records and store.stats().disk.n_errors == 0
    assert n_restored(open_store(folder), longer) == 800


def test_many_threads_and_one_that_cannot_be_read(folder):
    path, store = file_of(folder, 1), open_store(folder)
    with theirs({path}), ThreadPoolExecutor(12) as pool:
        assert list(pool.map(lambda tokens: restore(store, tokens, 0, Reading.EXACT).n_tokens, 4 * TOKENS)) == [600, 0, 600] * 4
    assert store.stats().disk.n_refused == 1
