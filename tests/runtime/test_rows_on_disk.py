"""A home on disk that memory does not hold: the second file, rows in memory, and K-shifts."""

import resource
import sys

import numpy as np
import pytest
from support.contexts import Context, attached
from support.homes import at_random, files_of_homes, homes, in_process, n_resident, page_out

from edgekv.common.errors import DoesNotFit
from edgekv.config import KvOptions
from edgekv.models.geometry import open_model
from edgekv.planning import allocations
from edgekv.planning.allocations import ContextRequest, Slots
from edgekv.planning.context import check_context

import llama_cpp

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a home on disk needs Linux")

MIB = 1 << 20
SPARSE = {"mode": "sparse", "exact_tokens": 0, "sample_budget": 60, "recent_tokens": 32, "policy": "none"}


def read_4096(context: Context) -> None:
    for first in range(0, 4096, 512):
        context.decode([260 + i % 90 for i in range(first, first + 512)], range(first, first + 512), [0] * 512)


def test_rows_that_were_read_lately_are_not_read_again(synthetic, tmp_path):
    """The second file's pages are asked for and given back, so what of it stays in memory is the copies alone."""
    options = KvOptions(kv_dir=tmp_path, kv_budget=8 * MIB, **SPARSE)
    with attached(synthetic("llama", n_layer=2, head_dim=128), options, n_ctx=8192, n_seq=1) as (context, run):
        assert run.memory().arena_bytes == pytest.approx(8 * MIB, rel=0.01)
        read_4096(context)
        rates = []
        for i in range(24):
            before = run.selection()
            context.decode([270], [4096 + i], [0])
            rates.append(run.selection().since(before).hit_rate)
        assert rates[0] == 0 and np.median(rates[-8:]) > 0.6
        run.configure(run.options.with_(sample_budget=50, kv_budget=None))
        before = run.selection()
        context.decode([270], [4120], [0])
        assert run.selection().since(before).hit_rate > 0.5, "copies stay where another option changes"
        run.configure(run.options.with_(kv_budget=0))
        assert run.memory().arena_bytes == 0 and len(files_of_homes()) == 1
        context.decode([270], [4121], [0])
        run.configure(run.options.with_(kv_budget=MIB))
        context.decode([270], [4122], [0])
        before = run.selection()
        context.decode([270], [4123], [0])
        assert run.selection().since(before).hit_rate > 0.3, "the new file has the rows of before"


def test_a_k_shift_is_read_ahead(synthetic, tmp_path):
    """The kernel reads ahead of the shift, which passes over all keys, and not of the tokens behind it, which read rows here and there."""
    with attached(synthetic("llama", n_layer=2, n_head=8, n_head_kv=8, head_dim=128), KvOptions(kv_dir=tmp_path, **SPARSE), n_ctx=8192,
                  n_seq=1) as (context, _):
        read_4096(context)
        assert at_random() == [True] * len(homes())
        page_out()
        before, faults = n_resident(), resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        if before > 2048:
            pytest.skip("this file system keeps its pages in memory")
        llama_cpp.llama_memory_seq_add(context.memory, 0, 0, -1, 1)
        context.decode([270], [4097], [0])
        assert at_random() == [True] * len(homes())
        assert n_resident() - before > 4096, "2 layers of 4,096 keys of 2 KiB"
        assert resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults < 2048


@pytest.mark.parametrize("kind", [1, 2], ids=["f16", "q4_0"])
def test_a_k_shift_in_pieces_turns_the_same_keys(synthetic, kind):
    """All of 4,096 tokens at once, which takes pieces, and a part after the other, the last first."""
    found = []
    for parts in ([(0, -1)], [(3500, -1), (2000, 3500), (700, 2000), (0, 700)]):
        with attached(synthetic("llama", n_layer=2, head_dim=64), KvOptions(mode="exact"), n_ctx=8192, n_seq=1, type_k=kind) as (context, run):
            read_4096(context)
            for i, (first, end) in enumerate(parts):
                llama_cpp.llama_memory_seq_add(context.memory, 0, first, end, 8)
                context.decode([270], [4104 + i], [0])
            found.append(run.cells.keys(1)[0, :4096].tobytes())
    assert found[0] == found[1] and any(found[0])


def test_memory_for_rows_is_what_is_free(synthetic, tmp_path, monkeypatch):
    """Three quarters of what is free beside everything else, or what leaves 16 MiB; none where all of K and V fit there, then no second file either."""
    file = open_model(synthetic("llama", n_layer=4, head_dim=128, n_ctx_train=1 << 17))
    kv, n_ctx = KvOptions(mode="sparse", kv_dir=tmp_path), 1 << 16
    beside = ContextRequest(file, kv, n_ctx, Slots(), 0).needed(n_ctx, kv)
    home = file.geometry.kv_bytes_per_token() * n_ctx
    some, all_of_it = (ContextRequest(file, kv, n_ctx, Slots(), beside + n_bytes) for n_bytes in (home // 2, home))
    assert home > 200 * MIB and some.with_hot_rows(n_ctx, kv).placement.kv_budget == home // 2 * 3 // 4
    for n_free, budget in ((20 * MIB, 4 * MIB), (10 * MIB, 0)):
        few = ContextRequest(file, kv, n_ctx, Slots(), beside + n_free)
        assert few.with_hot_rows(n_ctx, kv).placement.kv_budget == budget and few.on_disk(n_ctx, kv) >= home * (1 + (budget > 0))
    assert all_of_it.with_hot_rows(n_ctx, kv).placement.kv_budget == 0
    assert home * 2 <= some.on_disk(n_ctx, kv) < home * 2.1 and all_of_it.on_disk(n_ctx, kv) == home
    for other in (kv.with_(kv_budget=MIB), kv.with_(mode="exact"), kv.with_(kv_dir=None)):
        assert some.with_hot_rows(n_ctx, other) == other
    monkeypatch.setattr(allocations, "free_on_disk", lambda folder: home * 3 // 2)
    with pytest.raises(DoesNotFit, match="are free there; use --ctx"):
        check_context(some, n_ctx)
    check_context(all_of_it, n_ctx)


FAILED = """
    import os, sys
    from edgekv.common.errors import EdgeKVError
    from edgekv.llama import Llama

    def make():
        return Llama(sys.argv[2], kv="sparse", exact_tokens=0, sample_budget=60, kv_dir=sys.argv[3], kv_budget=1 << 20, n_ctx=1024, verbose=False)

    def answers(one):
        try:
            one.eval([261])
            return True
        except EdgeKVError as error:
            print(error)
            return False

    both = make(), make()
    for one in both:
        one.eval([260 + i % 90 for i in range(600)])
    with open("/proc/self/maps") as maps:
        mapped = {line.split()[4] for line in maps if "edgekv-home-" in line}
    second = [int(n) for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}") and "edgekv-home-" in os.readlink(f"/proc/self/fd/{n}")
              and str(os.fstat(int(n)).st_ino) not in mapped]
    os.ftruncate(second[0], 0)
    print(len(second), [answers(one) for one in both])
"""


def test_a_second_file_that_cannot_be_read_ends_its_conversation_alone(synthetic, tmp_path):
    done = in_process(FAILED, synthetic("llama", n_ctx_train=1024), tmp_path)
    assert done.returncode == 0, done.stderr
    *said, which = done.stdout.splitlines()
    assert which == "2 [False, True]" and "the disk of the KV home failed while rows were read or written" in said[0]
