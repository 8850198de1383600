"""The cache takes memory where tokens are: resident memory follows them, goes back when they go, and a context that cannot grow says so."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from support.contexts import attached
from support.held_rows import BLOCK, all_rows, filled, hold_blocks, leave
from support.held_rows import read as read_tokens
from support.homes import LITTLE

from edgekv._native import core
from edgekv.common.errors import DoesNotFit
from edgekv.config import KvOptions

import llama_cpp  # after edgekv.runtime.runtime, which puts the libraries in place

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere llama.cpp allocates the cache")

MIB = 1 << 20
HUGE = 2 * MIB
N_CTX = 1 << 17
SHAPE = {"n_layer": 8, "n_head": 8, "n_head_kv": 8, "head_dim": 128, "n_ctx_train": N_CTX}
ROW = 8 * 128 * 2
"""Bytes of K of a token in a layer, in f16."""
CELLS = HUGE // ROW
"""Tokens of a huge page."""
BESIDES = 24 * MIB
"""Sketches, tables, buffers of a graph, logits."""

RESIDENT = """
    import json, sys
    sys.path.insert(0, sys.argv[2])
    from support.contexts import attached
    from edgekv.config import KvOptions
    import llama_cpp

    def anonymous(kind="Anonymous:"):
        with open("/proc/self/smaps_rollup") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(kind)) << 10

    def read(context, n, sequence=0, first=0):
        for at in range(first, first + n, 64):
            k = min(64, first + n - at)
            context.decode([260 + i % 90 for i in range(at, at + k)], range(at, at + k), [sequence] * k)

    found = {}
"""


def resident(path: Path, code: str) -> dict[str, int]:
    """What `code` put into `found`, in a process of its own: bytes of anonymous memory."""
    support = Path(__file__).resolve().parent.parent
    script = textwrap.dedent(RESIDENT) + textwrap.dedent(code) + "\nprint(json.dumps(found))\n"
    done = subprocess.run([sys.executable, "-c", script, str(path), str(support)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("mode", ["exact", "sparse"])
def test_memory_follows_the_tokens(synthetic, mode):
    found = resident(synthetic("llama", **SHAPE), f"""
        from pathlib import Path
        for n_ctx in (16384, {N_CTX}):
            with attached(Path(sys.argv[1]), KvOptions(mode="{mode}"), n_ctx=n_ctx, n_seq=1) as (context, run):
                read(context, 1)
                found[f"first {{n_ctx}}"] = anonymous()
                read(context, {CELLS}, first=1)
                found[f"more {{n_ctx}}"] = anonymous()
                found[f"cells {{n_ctx}}"] = run.memory().n_cells
        """)
    assert found[f"cells {N_CTX}"] == N_CTX
    home = 2 * 8 * N_CTX * ROW
    assert home == 4096 * MIB
    assert found[f"first {N_CTX}"] - found["first 16384"] < BESIDES, "a start costs what it costs with few cells"
    grown = found[f"more {N_CTX}"] - found[f"first {N_CTX}"]
    assert grown < 2 * 8 * HUGE + BESIDES, "a page more of each layer's K and V"


def test_few_rows_take_small_pages(synthetic):
    """Where a stream's rows are few huge pages, tokens would take most of them in part."""
    found = resident(synthetic("llama", **SHAPE | {"n_layer": 16, "n_head": 2, "n_head_kv": 2}), f"""
        from pathlib import Path
        with attached(Path(sys.argv[1]), KvOptions(mode="exact"), n_ctx=8192, n_seq=1) as (context, run):
            found["opened"] = anonymous()
            read(context, 64)
            read(context, {CELLS}, first=64)
            found["more"] = anonymous()
            llama_cpp.llama_memory_seq_rm(context.memory, 0, 64, -1)
            found["removed"] = anonymous()
        """)
    rows, unit = 2 * 16 * CELLS * ROW // 4, 2 * 16 * (64 << 10)
    assert rows == 16 * MIB
    assert found["more"] - found["opened"] < rows + unit + BESIDES < 2 * 16 * HUGE, "a huge page of K and of V of each layer would be 64 MiB"
    assert found["more"] - found["removed"] >= rows - 2 * unit, "but for a part at each end"


def test_rows_that_come_get_the_memory_of_those_that_go(synthetic):
    """Its first touch would cost more than the rows. What is given back reads as zeros."""
    n = 3 * CELLS
    with attached(synthetic("llama", **SHAPE | {"n_layer": 1}), KvOptions(mode="exact"), n_ctx=2 * n, n_seq=1) as (_, run):
        run.tokens.put(0, 0, np.ones(n * sum(map(sum, run.tokens.row_bytes())), np.uint8), range(n), n, 0)
        before, after = run.tokens.cells_of(0, n), run.tokens.place(0, 0, np.zeros(CELLS, np.uint8))
        keys = run.cells.keys(0)[0].any(axis=(1, 2))
    assert set(after) <= set(before) and keys[after].all() and not keys[np.setdiff1d(before, after)].any()


def test_what_is_removed_is_given_back(synthetic):
    found = resident(synthetic("llama", **SHAPE), f"""
        from pathlib import Path
        with attached(Path(sys.argv[1]), KvOptions(mode="sparse"), n_ctx={2 * N_CTX}, n_seq=2, unified=False) as (context, run):
            read(context, 64)
            found["one"] = anonymous()
            read(context, {2 * CELLS}, first=64)
            read(context, {CELLS}, sequence=1)
            found["both"] = anonymous()
            found["huge"] = anonymous("AnonHugePages:")
            llama_cpp.llama_memory_seq_rm(context.memory, 0, 10, -1)
            found["cut"] = anonymous()
            assert run.cells.keys(0)[1, {CELLS - 1}].any(), "the other conversation stays"
            llama_cpp.llama_memory_seq_rm(context.memory, 1, -1, -1)
            found["ended"] = anonymous()
            assert not run.cells.keys(0)[1].any() and run.cells.keys(0)[0, :10].any()
            read(context, 64, first=10)
            llama_cpp.llama_memory_clear(context.memory, True)
            found["cleared"] = anonymous()
            read(context, 64)
            found["again"] = anonymous()
        """)
    page = 2 * 8 * HUGE  # of all layers
    if found["huge"] < 4 * page:
        pytest.skip("the kernel gave no huge pages, and only whole ones are given back")
    assert found["both"] - found["one"] > 3 * page - MIB
    assert found["both"] - found["cut"] > 2 * page - MIB, "the tokens behind the first page"
    assert found["cut"] - found["ended"] > page - MIB
    assert found["ended"] - found["cleared"] > page - 4 * MIB
    assert found["again"] - found["one"] < BESIDES


def test_shifts_copies_and_saves_touch_what_exists(synthetic):
    found = resident(synthetic("llama", **SHAPE), f"""
        from pathlib import Path
        with attached(Path(sys.argv[1]), KvOptions(mode="exact"), n_ctx={2 * N_CTX}, n_seq=2, unified=False) as (context, run):
            read(context, 200)
            found["before"] = anonymous()
            llama_cpp.llama_memory_seq_rm(context.memory, 0, 10, 60)
            llama_cpp.llama_memory_seq_add(context.memory, 0, 60, -1, -50)
            read(context, 1, first=150)
            found["shifted"] = anonymous()
            state = context.save(0)
            found["saved"] = anonymous() - len(state)
            found["state"] = len(state)
            llama_cpp.llama_memory_seq_cp(context.memory, 0, 1, -1, -1)
            llama_cpp.llama_memory_seq_rm(context.memory, 0, -1, -1)
            read(context, 1, sequence=1, first=151)
            found["copied"] = anonymous()
            keys = run.cells.keys(0)
            assert keys[1, 9].any() and keys[1, 199].any() and not keys[0].any()
        """)
    page = 2 * 8 * HUGE
    assert found["shifted"] - found["before"] < BESIDES
    assert found["state"] < 2 * 8 * 200 * ROW and found["saved"] - found["shifted"] < BESIDES
    assert found["copied"] - found["shifted"] < page + BESIDES


def test_sketches_take_memory_where_tokens_are(synthetic):
    found = resident(synthetic("llama", head_dim=128, n_ctx_train=N_CTX), f"""
        from pathlib import Path
        sparse = KvOptions(mode="sparse", exact_tokens=0, policy="none")
        with attached(Path(sys.argv[1]), KvOptions(mode="exact"), n_ctx={N_CTX}, n_seq=2, unified=False) as (context, run):
            read(context, 200)
            read(context, 1, first=200)  # all other memory is resident by now
            before = anonymous()
            run.configure(sparse)
            found["sketches"] = run.memory().sketch_bytes
            read(context, 1, first=201)
            found["first"] = anonymous() - before
            llama_cpp.llama_memory_clear(context.memory, True)
            before = anonymous()
            read(context, 200)
            read(context, 1, first=200)
            found["cleared"] = anonymous() - before
            llama_cpp.llama_memory_seq_cp(context.memory, 0, 1, -1, -1)
            before = anonymous()
            read(context, 1, sequence=1, first=201)
            found["copied"] = anonymous() - before
            assert run.selection(1).n_selections > 0
        """)
    sketches, home = found["sketches"], 2 * 2 * HUGE  # a huge page for K and for V of each layer
    assert sketches > 16 * MIB
    assert found["first"] < 0.2 * sketches, "the first ubatch in mode sparse"
    assert found["cleared"] < 0.2 * sketches + home and found["copied"] < 0.2 * sketches + home


# ---- where there is no memory ---------------------------------------------------------------------------------------------------


def test_a_context_that_cannot_grow_refuses_the_batch_and_nothing_else(synthetic, free):
    with attached(synthetic("llama", **SHAPE), n_ctx=N_CTX, n_seq=2, unified=False) as (context, run):
        context.decode(range(260, 300), range(40), [0] * 40)
        assert free.n_asked == 1
        context.decode([270], [40], [0])
        assert free.n_asked == 1, "what has memory is not asked about"
        free.bytes = LITTLE
        now, before = run.cells.stream().now, np.array(run.cells.keys(0)[0, :41])
        assert context.status([270] * 4, range(4), [[1]] * 4) == 1 and core.refused() and run.cells.stream().now == now
        context.decode([271], [41], [0])  # the page has room
        assert not core.refused() and (run.cells.keys(0)[0, :41] == before).all()
        free.bytes = 1 << 40
        context.decode([270] * 4, range(4), [1] * 4)


def test_llama_says_what_is_missing(synthetic, free):
    from edgekv.llama import Llama

    llama = Llama(str(synthetic("llama", **SHAPE)), n_ctx=N_CTX, n_threads=2, kv="exact", verbose=False)
    free.bytes = LITTLE
    with pytest.raises(DoesNotFit, match="no memory for K and V"):
        llama.eval([260, 261])
    free.bytes = 1 << 40
    llama.eval([260, 261])
    assert llama.n_tokens == 2
    llama.close()


def test_a_copy_of_a_copy_has_its_rows(synthetic):
    """Copies wait for the next ubatch, and the sequence between is gone by then."""
    with attached(synthetic("llama"), n_ctx=4 * 512, unified=False) as (context, run):
        context.decode([260 + i % 90 for i in range(200)], range(200), [0] * 200)
        llama_cpp.llama_memory_seq_cp(context.memory, 0, 2, -1, -1)
        llama_cpp.llama_memory_seq_cp(context.memory, 2, 3, -1, -1)
        llama_cpp.llama_memory_seq_rm(context.memory, 2, -1, -1)
        context.decode([270], [200], [3])
        for rows_of in (run.cells.keys, run.cells.values):
            for layer in range(2):
                np.testing.assert_array_equal(rows_of(layer)[3, :200], rows_of(layer)[0, :200])


# ---- parked rows: memory is asked for before others take their cells, and before they come back --------------------------------------

PARKED = 4 * BLOCK


@pytest.mark.parametrize("parks", [True, False])
def test_cells_whose_rows_are_parked_have_no_memory(synthetic, free, parks):
    """Tokens that are put in their place need it anew; in place of tokens that nobody holds they need none."""
    with filled(synthetic, n=PARKED) as (_, run):
        held, n_asked = hold_blocks(run, PARKED), free.n_asked
        for one in held if not parks else []:
            one.release()
        run.tokens.place(0, 0, np.zeros(PARKED, np.uint8))
        assert all(one.parked == parks for one in held) and free.n_asked == n_asked + parks


def test_holes_between_others_tokens_have_no_memory(synthetic, free):
    """The cache is full to its last cell when a conversation leaves its beginning: there is nothing behind the tokens that could be asked for."""
    with filled(synthetic, n=PARKED, n_ctx=2 * PARKED, unified=True) as (context, run):
        read_tokens(context, 0, PARKED, seq=1)
        held = hold_blocks(run, PARKED)
        leave(context)
        assert all(one.parked for one in held)
        free.bytes = LITTLE
        with pytest.raises(DoesNotFit):
            run.tokens.place(0, 0, np.zeros(PARKED, np.uint8))


def placed(run, held: list, first: int = 0) -> list[np.ndarray]:
    """Cells for all blocks, of which these are parked."""
    cells = run.tokens.place(0, first, np.zeros(PARKED, np.uint8), None, None, [(i * BLOCK, one) for i, one in enumerate(held)])
    return np.split(cells, PARKED // BLOCK)


def test_parked_rows_bring_their_memory(synthetic, free):
    """A conversation comes back where no memory is free, unless some of its rows do not."""
    with filled(synthetic, n=PARKED) as (context, run):
        held = hold_blocks(run, PARKED)
        before = all_rows(run, held, n=PARKED)
        leave(context)
        free.bytes = LITTLE
        for those in ([], held[:3]):
            with pytest.raises(DoesNotFit):
                placed(run, those)
        assert run.tokens.unpark(0, held, placed(run, held)) == [True] * 4
        assert all_rows(run, held, n=PARKED) == before


def test_rows_that_do_not_fit_there_do_not(synthetic, free):
    """A page is not made of whole rows, and another's tokens lie in the cells of every place where pages would fit: they will be copied."""
    types = {"type_k": llama_cpp.GGML_TYPE_Q8_0, "type_v": llama_cpp.GGML_TYPE_Q8_0}
    with filled(synthetic, n=PARKED, n_ctx=2048, unified=True, **types) as (context, run):
        held = hold_blocks(run, PARKED)
        leave(context)
        read_tokens(context, 0, 1)
        read_tokens(context, 0, PARKED + 64, seq=1)
        leave(context, seq=1, end=PARKED - 24)
        free.bytes = LITTLE
        with pytest.raises(DoesNotFit):
            placed(run, held, first=1)
        free.bytes = 1 << 40
        assert not any(run.tokens.unpark(0, held, placed(run, held, first=1)))
