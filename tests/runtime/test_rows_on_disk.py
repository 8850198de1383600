"""K and V in a file of a folder: the same logits as in memory, a file without a name, rows in memory, K-shifts, and sentences where it cannot be."""

import os
import re
import resource
import signal
import sys

import numpy as np
import pytest
from support.contexts import Context, attached
from support.conversations import conversation
from support.homes import at_random, files_of_homes, homes, in_process, n_resident, page_out

from edgekv.common.errors import ConfigError, DoesNotFit
from edgekv.config import KvOptions
from edgekv.llama import Llama
from edgekv.models.geometry import open_model
from edgekv.planning import allocations
from edgekv.planning.allocations import ContextRequest, Slots
from edgekv.planning.context import check_context, choose_context

import llama_cpp

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a home on disk needs Linux")

MIB = 1 << 20
SPARSE = {"mode": "sparse", "exact_tokens": 0, "sample_budget": 60, "recent_tokens": 32, "policy": "none"}


def read_4096(context: Context) -> None:
    context.read(260 + np.arange(4096) % 90, 0, 4096)


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


@pytest.mark.parametrize(("mode", "kind", "unified"), [
    ({"mode": "exact"}, 1, False), ({"mode": "exact"}, 2, True), (SPARSE, 1, True), (SPARSE, 2, False),
    ({"mode": "off"}, 1, True)])
def test_the_logits_are_those_of_a_home_in_memory(synthetic, tmp_path, mode, kind, unified):
    path = synthetic("llama", n_layer=3, head_dim=64)
    arguments = {"n_ctx": 2048, "n_seq": 4, "unified": unified, "type_k": kind, "type_v": kind}
    found = []
    for home, budget, between in ((None, 0, lambda: None), (tmp_path, 0, lambda: None), (tmp_path, 0, page_out), (tmp_path, 20_000, lambda: None),
                                  (tmp_path, MIB, lambda: None)):
        with attached(path, KvOptions(kv_dir=home, kv_budget=budget, **mode), **arguments) as (context, run):
            assert len({file.st_ino for file in files_of_homes()}) == (home is not None) + (budget > 0 and mode["mode"] == "sparse")
            found.append(conversation(context, between))
            if mode is SPARSE:
                assert run.selection().attended < 0.9, "rows were drawn"
                assert (0.02 < run.selection().hit_rate) == (budget > 0)
    assert files_of_homes() == []
    for other in found[1:]:
        assert all((a == b).all() for a, b in zip(found[0], other, strict=True))


def test_the_file_has_no_name_and_all_its_space(synthetic, tmp_path):
    with attached(synthetic("llama", head_dim=128), KvOptions(mode="exact", kv_dir=tmp_path), n_ctx=16384, n_seq=1) as (_, run):
        assert os.listdir(tmp_path) == []
        (file,) = files_of_homes()
        assert file.st_mode & 0o777 == 0o600
        assert file.st_size >= run.memory().home_bytes and file.st_blocks * 512 >= file.st_size
        for rows in (of(il) for il in (0, 1) for of in (run.cells.keys, run.cells.values)):
            assert any(first <= rows.__array_interface__["data"][0] < end for first, end in homes()), "no anonymous memory holds them"
    assert files_of_homes() == [] and homes() == []


def test_what_is_removed_is_zeros_and_keeps_its_space(synthetic, tmp_path):
    path = synthetic("llama", n_layer=2, n_head=8, n_head_kv=8, head_dim=128, n_ctx_train=8192)
    with attached(path, KvOptions(mode="exact", kv_dir=tmp_path), n_ctx=8192, n_seq=1) as (context, run):
        read_4096(context)
        assert run.cells.keys(1)[0, 3000].any()
        llama_cpp.llama_memory_seq_rm(context.memory, 0, 10, -1)
        zeros = not run.cells.keys(1)[0, 3000].any()
        (file,) = files_of_homes()
        assert file.st_blocks * 512 >= file.st_size
        if not zeros:
            pytest.skip("this file system cannot make zeros")
        assert run.cells.keys(1)[0, :10].any()


# ---- what cannot be -----------------------------------------------------------------------------------------------------------------


def test_folders_that_cannot_have_a_home(synthetic, tmp_path):
    path, file = str(synthetic("llama")), tmp_path / "file"
    file.write_text("")
    for folder in (tmp_path / "none", file):
        with pytest.raises(ConfigError, match="there is no folder"):
            Llama(path, kv="sparse", kv_dir=folder, n_ctx=256, verbose=False)
    with pytest.raises(ConfigError, match="has no name"):
        KvOptions(kv_dir=" ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_not_writable(synthetic, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="not writable"):
        Llama(str(synthetic("llama")), kv="sparse", kv_dir=tmp_path, n_ctx=256, verbose=False)
    tmp_path.chmod(0o700)


def test_options_that_exclude_a_home(synthetic, tmp_path):
    with pytest.raises(ConfigError, match="mode evict bounds K and V in memory"):
        KvOptions(mode="evict", kv_dir=tmp_path)
    with pytest.raises(ConfigError, match="kv_dir works in modes sparse and exact only"):
        KvOptions(mode="off", kv_dir=tmp_path).check_effect({"kv_dir"})
    with pytest.raises(ConfigError, match="needs flash_attn"):
        Llama(str(synthetic("llama")), kv="exact", kv_dir=tmp_path, flash_attn=False, n_ctx=256, verbose=False)


def test_a_disk_that_is_too_small_is_told_before_anything_is_loaded(synthetic, tmp_path, monkeypatch):
    file = open_model(synthetic("llama", n_ctx_train=1 << 17))
    kv = KvOptions(mode="exact", kv_dir=tmp_path)
    request = ContextRequest(file, kv, None, Slots(), 8 << 30)
    per_token = file.geometry.kv_bytes_per_token()
    monkeypatch.setattr(allocations, "free_on_disk", lambda folder: 20000 * per_token)
    with pytest.raises(DoesNotFit, match=re.escape(f"in {tmp_path}") + r", and .* are free there; use --ctx 19968 or less"):
        check_context(request, 30000)
    choice = choose_context(request)
    assert choice.n_ctx == 9984 and choice.note is not None and str(tmp_path) in choice.note, "half of what is free"
    (home,) = [part for part in request.parts(1024, kv) if part.name == "KV home"]
    assert home.place == str(tmp_path) and home.bytes == 1024 * per_token
    assert request.needed(1 << 16, kv) < request.needed(1 << 16, kv.with_(kv_dir=None)) - home.bytes


FULL = """
    import resource, sys
    from edgekv.common.errors import DoesNotFit
    from edgekv.llama import Llama
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    try:
        Llama(sys.argv[2], kv="exact", kv_dir=sys.argv[3], n_ctx=8192, verbose=False)
    except DoesNotFit as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    llama = Llama(sys.argv[2], kv="exact", kv_dir=sys.argv[3], n_ctx=8192, verbose=False)
    llama.eval([260, 261])
    print(llama.n_tokens)
    llama.close()
"""


def test_a_disk_that_is_full_when_the_space_is_taken(synthetic, tmp_path):
    """The disk had room when it was asked, and has none a moment later; here a limit on the size of files stands for that."""
    done = in_process(FULL, synthetic("llama", n_ctx_train=8192), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"there is no room for the KV cache in {tmp_path}; use fewer tokens of context, or another folder", "2"]
    assert os.listdir(tmp_path) == []


LOST = """
    import os, sys
    sys.path.insert(0, sys.argv[1])
    import edgekv
    edgekv.owns_process = True
    from edgekv import _native
    _native.prepare()
    from edgekv.llama import Llama
    llama = Llama(sys.argv[2], kv="exact", kv_dir=sys.argv[3], n_ctx=1024, verbose=False)
    llama.eval([260] * 600)
    for number in os.listdir("/proc/self/fd"):
        if "edgekv-home-" in os.readlink(f"/proc/self/fd/{number}"):
            os.ftruncate(int(number), 0)
            break
    llama.eval([261])
    print("read")
"""


def test_a_disk_that_fails_ends_the_process_with_a_sentence(synthetic, tmp_path):
    """A page that cannot be read is a SIGBUS in whichever thread touches it: nothing can go on. Here the file lost its bytes."""
    done = in_process(LOST, synthetic("llama", n_ctx_train=1024), tmp_path)
    assert done.returncode == -signal.SIGBUS and "read" not in done.stdout
    assert "a KV home on a disk that failed (SIGBUS)" in done.stderr


def test_with_edgekv_0_there_is_no_home_on_disk(synthetic, tmp_path):
    code = "import sys; from edgekv.llama import Llama; Llama(sys.argv[2], kv_dir=sys.argv[3], kv='exact', n_ctx=256, verbose=False)"
    done = in_process(code, synthetic("llama"), tmp_path, EDGEKV="0")
    assert done.returncode == 1 and "ConfigError: EDGEKV=0 is set" in done.stderr
