"""Random events on the cells of a context, a model of their effect, and the invariants after each of them."""

from typing import Any

import numpy as np
from support.contexts import Context, attached

from edgekv._native import device_calls, paging, testing
from edgekv.config import KvOptions
from edgekv.runtime.runtime import Runtime

import llama_cpp  # after edgekv.runtime.runtime, which puts the libraries in place

SAMPLED = dict(mode="sparse", sample_budget=200, exact_tokens=0)


class Model:
    """The positions that each sequence should hold."""

    def __init__(self, n_seq: int):
        self.sequences: list[set[int]] = [set() for _ in range(n_seq)]

    def next(self, seq: int) -> int:
        return max(self.sequences[seq], default=-1) + 1


def act(rng: np.random.Generator, context: Context, model: Model, saved: list) -> None:
    """One random event, on the cache and on the model of it."""
    n_seq = len(model.sequences)
    seq, other = (int(s) for s in rng.choice(n_seq, 2, replace=False))
    here = model.sequences[seq]
    event = rng.choice(["decode", "decode", "decode", "rm", "cp", "shift", "keep", "save", "load"])
    if event == "decode" or not here:
        n = int(rng.integers(1, 25))
        start = model.next(seq)
        held = sum(map(len, model.sequences)) if context.unified else len(here)
        if held + n > 200:
            event = "rm"
        else:
            context.decode(rng.integers(260, 350, n), range(start, start + n), [seq] * n)
            here.update(range(start, start + n))
            return
    if event == "rm":
        low = int(rng.integers(0, model.next(seq) + 1))
        high = int(rng.choice([-1, low + int(rng.integers(1, 30))]))
        assert llama_cpp.llama_memory_seq_rm(context.memory, seq, low, high), f"sequence {seq}: [{low}, {high}) is not removed"
        here -= {p for p in here if p >= low and (high < 0 or p < high)}
    elif event == "cp":
        llama_cpp.llama_memory_seq_rm(context.memory, other, -1, -1)
        llama_cpp.llama_memory_seq_cp(context.memory, seq, other, -1, -1)
        model.sequences[other] = set(here)
    elif event == "shift":
        # as a context shift: drop some tokens at the front, move the rest down
        n = int(rng.integers(1, 20))
        shared = any(here & model.sequences[s] for s in range(n_seq) if s != seq)
        if shared and context.unified:
            return  # a cell in several sequences would move for all of them
        llama_cpp.llama_memory_seq_rm(context.memory, seq, 0, n)
        llama_cpp.llama_memory_seq_add(context.memory, seq, n, -1, -n)
        model.sequences[seq] = {p - n for p in here if p >= n}
    elif event == "keep" and rng.random() < 0.2 and context.unified:
        llama_cpp.llama_memory_seq_keep(context.memory, seq)
        for s in range(n_seq):
            if s != seq:
                model.sequences[s] = set()
    elif event == "save":
        saved[:] = [context.save(), [set(s) for s in model.sequences]]
    elif event == "load" and saved:
        context.load(saved[0])
        model.sequences = [set(s) for s in saved[1]]


def check(run: Runtime) -> Any:
    """Sketches equal a rebuild, slots hold what home holds, and the tables agree with each other."""
    found = testing.check(run._native_handle())
    assert found.n_groups_wrong == 0, f"{found.n_groups_wrong} of {found.n_groups} sketches differ from a rebuild"
    assert found.n_slots_wrong == 0, f"{found.n_slots_wrong} of {found.n_slots} slots differ from home"
    if run._tiering is not None:
        run._tiering.hierarchy.check()
        slots = paging.page_arrays(run._native_handle()).slots
        used = slots[slots >= 0]
        assert len(np.unique(used)) == len(used), "a slot belongs to one page"
        plane = device_calls.plane(run._native_handle())
        if plane is not None:  # the pages being filled have slots of their own
            used = used[used < plane.n_slots_max]
        assert len(used) <= run.tiers().n_slots, "more slots are used than there are"
    return found


def follow_events(path, n_events: int, unified: bool, page_tokens: int, n_threads: int = 2, **options) -> tuple[int, int]:
    """Random events on a context that holds four conversations, with plans after each step, `check`ed after each decode. Returns the
    numbers of groups and slots compared; groups without tokens have nothing to compare."""
    rng = np.random.default_rng(5)
    kv = KvOptions(**SAMPLED, recent_tokens=0, page_size=page_tokens, plan_every=1, **options)
    with attached(path, kv, n_ctx=256 if unified else 4 * 256, unified=unified, n_threads=n_threads) as (context, run):
        model, saved, compared, resident = Model(4), [], 0, 0
        for seq in range(4):
            n = 40 if unified else 150
            context.decode(rng.integers(260, 350, n), range(n), [seq] * n)
            model.sequences[seq] = set(range(n))
        for _ in range(n_events):
            act(rng, context, model, saved)
            start = model.next(0)
            if start < (120 if unified else 240):  # sketches are rebuilt behind the next ubatch
                context.decode([270], [start], [0])
                model.sequences[0].add(start)
                found = check(run)
                compared, resident = compared + found.n_groups, resident + found.n_slots
        return compared, resident
