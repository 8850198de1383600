"""Faults below RAM: processes that are killed, full and read-only disks, folders that vanish, processes that share."""

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from support.prefix_rows import conversation
from support.stores import n_restored, open_store, restore, save

from edgekv.prefix_cache import folder as folder_module
from edgekv.prefix_cache.blocks import Reading
from edgekv.prefix_cache.files import TEMPORARY, read_header, remove_file, scan
from edgekv.prefix_cache.folder import FolderPlace
from edgekv.prefix_cache.listing import check_files

# ---- kill -9 -----------------------------------------------------------------------------------------------------------------------

WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from edgekv.prefix_cache.blocks import Conversation
from support.prefix_rows import conversation, exact, state
from support.stores import open_store, save
store = open_store(Path(sys.argv[1]), folder_bytes=400_000)
for seed in range(10**9):
    tokens = conversation(700 + seed % 99, seed)
    save(store, tokens)
    store.insert_snapshot(Conversation(tokens[:650]), exact(tokens[:650]), state(tokens[:650]))
    store.flush()
    print(seed, flush=True)
"""

LOADER = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from support.prefix_rows import conversation
from support.stores import n_restored, open_store
while True:
    store = open_store(Path(sys.argv[1]), ram_bytes=0)
    for seed in range(8):
        assert n_restored(store, conversation(700, seed)) == 700
        print(seed, flush=True)
    store.close()
"""

HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "wb")
fcntl.flock(file, fcntl.LOCK_EX)
print(flush=True)
time.sleep(99)
"""


def start(script, folder) -> subprocess.Popen:
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return subprocess.Popen([sys.executable, "-c", script, str(folder), tests], stdout=subprocess.PIPE, text=True, cwd=folder.parent)


def test_kill_9_at_any_moment_leaves_a_folder_that_the_next_start_reads(tmp_path, caplog):
    folder, chance = tmp_path / "prefixes", random.Random(1)
    for _ in range(5):
        writer = start(WRITER, folder)
        seed = int(writer.stdout.readline())  # it has begun
        time.sleep(chance.uniform(0, 0.3))
        writer.send_signal(signal.SIGKILL)
        finished = [seed, *map(int, writer.stdout.read().split())]
        writer.wait()
        store = open_store(folder)
        assert not list(folder.rglob(f"{TEMPORARY}*"))
        checked = [one for *_, one in check_files(folder)]
        assert checked and not [one for one in checked if one.refused]  # every file is whole
        for seed in finished[-3:]:  # flushed blocks and snapshots are there
            tokens = conversation(700 + seed % 99, seed)
            assert n_restored(store, tokens) == len(tokens) and restore(store, tokens, 0, Reading.EXACT, goes_on=0).snapshot.position == 650
        store.close()
    assert not caplog.records


def test_kill_9_in_the_middle_of_a_load_loses_nothing(tmp_path, caplog):
    folder, chance = tmp_path / "prefixes", random.Random(2)
    store, kept = open_store(folder), [conversation(700, seed) for seed in range(8)]
    for tokens in kept:
        save(store, tokens)
    store.close()
    files = {file.path for file in scan(folder)}
    for _ in range(4):
        loader = start(LOADER, folder)
        assert loader.stdout.readline()  # it has begun
        time.sleep(chance.uniform(0, 0.3))
        loader.send_signal(signal.SIGKILL)
        loader.stdout.read()
        assert loader.wait() == -signal.SIGKILL, "it was still loading"
        assert {file.path for file in scan(folder)} == files and not list(folder.rglob(f"{TEMPORARY}*"))
    store = open_store(folder, ram_bytes=0)
    assert [n_restored(store, tokens) for tokens in kept] == [len(tokens) for tokens in kept]
    assert not caplog.records


def test_temporaries_of_the_dead_are_removed_and_those_of_the_living_stay(tmp_path):
    store, tokens = open_store(tmp_path), conversation(300)
    save(store, tokens)
    store.close()
    parent = next(scan(tmp_path)).path.parent
    dead, living = parent / f"{TEMPORARY}1-0", parent / f"{TEMPORARY}1-1"
    dead.write_bytes(b"half")
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(living)], stdout=subprocess.PIPE)
    holder.stdout.readline()
    open_store(tmp_path)
    assert not dead.exists() and living.exists()
    holder.kill()
    holder.wait()
    open_store(tmp_path)
    assert not living.exists()


# ---- disks -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number, says", [(errno.ENOSPC, "full"), (errno.EROFS, "read-only"), (errno.EACCES, "permission"), (errno.EIO, "error")])
@pytest.mark.parametrize("call", ["write_all", "os.open", "os.fsync", "os.replace"])
def test_a_disk_that_cannot_be_written_to_is_said_once_and_all_stays_in_ram(tmp_path, caplog, monkeypatch, number, says, call):
    store = open_store(tmp_path)
    store.places[0]._writing._back_off_s = 0.3
    before = conversation(600, 99)
    save(store, before)
    assert store.flush(20)

    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr(folder_module, "write_all", fail) if call == "write_all" else broken.setattr(call, fail)
        for seed in range(3):
            assert save(store, conversation(600, seed)).n_left_out == 0
        assert store.flush(5)
        for seed in range(3):
            assert n_restored(store, conversation(600, seed)) == 600
        assert len(caplog.records) == 1 and says in caplog.text.lower()
        assert store.stats().n_unwritten == 9
    time.sleep(0.4)  # the disk has room again
    for _ in range(100):
        time.sleep(0.05)
        if not store.stats().n_unwritten:
            break
    assert len(caplog.records) == 2 and "works again" in caplog.text
    fresh = open_store(tmp_path)
    for seed in (0, 1, 2, 99):
        assert n_restored(fresh, conversation(600, seed)) == 600
    assert not list(tmp_path.rglob(f"{TEMPORARY}*"))


def test_what_is_on_a_read_only_disk_is_used(tmp_path, monkeypatch, caplog):
    save(store := open_store(tmp_path), tokens := conversation(600))
    store.close()

    def fail(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    for call in ("os.utime", "os.replace", "os.unlink", "os.mkdir"):
        monkeypatch.setattr(call, fail)
    monkeypatch.setattr(folder_module, "write_all", fail)
    store = open_store(tmp_path)
    assert n_restored(store, tokens) == 600
    save(store, conversation(300, 1))
    assert store.flush(5) and len(caplog.records) == 1
    assert n_restored(store, tokens) == 600


def test_a_folder_that_cannot_be_made_is_said_once(tmp_path, caplog):
    (tmp_path / "file").write_text("mine")
    store, tokens = open_store(tmp_path / "file" / "prefixes"), conversation(600)
    save(store, tokens)
    assert store.flush(5)
    assert n_restored(store, tokens) == 600
    assert len(caplog.records) == 1 and "prefixes stay in RAM" in caplog.text


def test_a_real_full_disk(tmp_path):
    """A file system of 1 MiB, where this user may mount one."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("mounting a small file system needs rights that this user does not have")
    try:
        store = open_store(tmp_path)
        for seed in range(60):
            save(store, conversation(700, seed))
        assert store.flush(20)
        assert store.stats().disk.n_errors
        assert all(n_restored(store, conversation(700, seed)) == 700 for seed in range(60))
        assert n_restored(open_store(tmp_path), conversation(700, 0)) == 700
        store.close(0)
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)


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
    slow = threading.Event()
    write_file = FolderPlace._write_file
    monkeypatch.setattr(FolderPlace, "_write_file", lambda *arguments: (slow.wait(30), write_file(*arguments))[1])
    store = open_store(tmp_path, ram_bytes=60_000)
    for seed in range(4):
        save(store, conversation(600, seed))
        assert store.stats().ram.n_bytes <= 60_000
    assert store.stats().n_dropped and not slow.is_set()
    assert n_restored(store, conversation(600, 3)) == 600
    slow.set()
    assert store.flush(20)
    assert n_restored(open_store(tmp_path), conversation(600, 3)) == 600


# ---- several processes and threads -------------------------------------------------------------------------------------------------


def test_one_process_removes_while_the_other_reads(tmp_path):
    """Every row that is found is right, and nothing is logged."""
    writer = start(WRITER, tmp_path / "prefixes")
    folder = tmp_path / "prefixes"
    stop, chance = time.monotonic() + 3, random.Random(2)
    n_found = 0
    while time.monotonic() < stop:
        seed = int(writer.stdout.readline())
        store = open_store(folder, ram_bytes=0)
        for back in range(min(seed + 1, 8)):
            tokens = conversation(700 + (seed - back) % 99, seed - back)
            n_found += n_restored(store, tokens)
        for file in list(scan(folder)):
            if chance.random() < 0.2:
                remove_file(file.path)
        assert not store.stats().disk.n_refused and not store.stats().disk.n_errors
        store.close()
    writer.kill()
    writer.wait()
    assert n_found
    for file in scan(folder):
        read_header(file.path)


def test_threads_share_a_store(tmp_path):
    store = open_store(tmp_path, ram_bytes=100_000, folder_bytes=300_000)
    system, errors = conversation(512, 1000), []

    def work(seed: int) -> None:
        try:
            for n in range(12):
                tokens = conversation(100 + 40 * n, seed, after=system)
                save(store, tokens)
                n_restored(store, tokens)
                assert store.stats().ram.n_bytes <= 100_000
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert store.flush(20)
    store.close()
    for seed in range(6):
        assert n_restored(open_store(tmp_path), conversation(100, seed, after=system)) >= 512
