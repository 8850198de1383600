"""A process has a bounded number of mappings: parked rows take few, however often a conversation comes back and grows."""

import ctypes
import errno
import os
import platform
import resource
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.held_rows import all_rows, back, filled, hold_blocks, in_cells, leave, read

IOCTL = {"x86_64": 16, "aarch64": 29}
known_machine = pytest.mark.skipif(platform.machine() not in IOCTL, reason="the number of a system call")

TURNS, MORE = 24, 40


def refuse_ioctl() -> None:
    """The kernel refuses this call to this thread until it ends, as an older one or a container's rules do."""
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, IOCTL[platform.machine()]), (0x06, 0, 0, 0x50000 | errno.ENOTTY), (0x06, 0, 0, 0x7FFF0000)]
    filters = (ctypes.c_uint8 * (8 * len(code))).from_buffer_copy(b"".join(struct.pack("=HBBI", *one) for one in code))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(filters)))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, seccomp, by_filter = 38, 22, 2
    assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0 and libc.prctl(seccomp, by_filter, program, 0, 0) == 0, os.strerror(ctypes.get_errno())


def mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def turns(context, run) -> int:
    """A conversation comes back into either slot, goes on and leaves, again and again. The mappings that it takes in the end."""
    n, before = 1024, mappings()
    held, rows = hold_blocks(run, n), in_cells(run, 0, n)
    leave(context)
    for turn in range(TURNS):
        seq = (turn + 1) % 2
        assert all(one.parked for one in held) and all_rows(run, held, n=n) == rows
        assert back(run, held, seq=seq, n=n) == [True] * len(held)
        for one in held:
            one.release()
        read(context, n, n + MORE, seq=seq)
        n += MORE
        held, rows = hold_blocks(run, n, seq), in_cells(run, seq, n)
        leave(context, seq=seq)
    return mappings() - before


@pytest.mark.parametrize("tells", [True, pytest.param(False, marks=known_machine)], ids=["this kernel", "before 6.11"])
def test_a_conversation_that_grows_takes_few(synthetic, tells):
    """If one piece of each of the four tensors came each time, they would be as many as asked for here."""
    with filled(synthetic, n=1024) as (context, run):
        if tells:
            assert turns(context, run) < 4 * TURNS
            return
        with ThreadPoolExecutor(1, initializer=refuse_ioctl) as pool:
            assert pool.submit(turns, context, run).result() < 4 * TURNS


def test_rows_stay_where_no_file_can_be_opened(synthetic):
    """Nothing then tells where mappings end: rows are copied, and not moved page by page."""
    with filled(synthetic, n=1024) as (context, run):
        held, before = hold_blocks(run, 1024), in_cells(run, 0, 1024)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        asked = []
        for one in held:
            one.needed = lambda *_, one=one: (asked.append(one.parked), one.release())
        rows = all_rows(run, held, n=1024)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            copied = run.tokens.must_copy(0, [(one, True) for one in held])
            leave(context)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert copied == held and asked == [False] * 4 and rows == before
