"""Our nodes on a ggml backend that records graphs, as ggml's CUDA backend does: the emulated device's (native/tests/backend). The scheduler
splits a step's graph; the backend names each split to the plane, calls its nodes once or twice, and from then on replays what they enqueued.
Decoding on the CPU backend, which calls every node in every step, is the yardstick."""

from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from support.backend_process import ARENA, Decoded, Scenario, decode, on_the_backend
from support.contexts import attached
from support.decoding import kld
from support.planes import ALL, SAMPLED, SINGLE

from edgekv._native import device_calls
from edgekv.config import KvOptions

pytestmark = pytest.mark.usefixtures("emulator", "single_precision")

EXACT = {"mode": "exact"}
N_NODES = 4
"""Of our nodes for a token: two layers store and attend. A prompt's are 2."""
Compare = Callable[..., Decoded]


@pytest.fixture
def compare(synthetic, emulated_backend: Path, tmp_path: Path) -> Compare:
    """`compare(kind, environment, **scenario)`: what the backend did, with logits that are those of the CPU backend."""

    def run(kind: str = "llama", environment: dict[str, str] | None = None, **scenario) -> Decoded:
        given = Scenario(str(synthetic(kind, dtype="f32")), **scenario)
        there, here = on_the_backend(emulated_backend, given, tmp_path, **environment or {}), decode(given)
        for ours, expected in zip(there.logits, here.logits, strict=True):
            assert kld(*(found.reshape(-1, found.shape[-1]) for found in (expected, ours))).max() <= SINGLE
        assert there.n_hooked == here.n_hooked
        return there

    return run


def check_counts(counts: dict[str, np.ndarray], kinds: list, n_splits: int = 1) -> None:
    """Steps of one of `kinds` behind each other have the same graphs, of `n_splits` on the backend: the first computes its nodes, the second
    records them, and the others call none."""
    nth = np.array([i for _, group in groupby(kinds) for i, _ in enumerate(group)])
    n_nodes = counts["custom"][nth == 0]
    assert (counts["graphs"] == n_splits).all()
    assert (counts["direct"] == n_splits * (nth == 0)).all()
    assert (counts["recorded"] == n_splits * (nth == 1)).all()
    assert (counts["replayed"] == n_splits * (nth >= 1)).all()
    assert (n_nodes > 0).all() and (counts["custom"][nth == 1] == n_nodes[[len(list(group)) > 1 for _, group in groupby(kinds)]]).all()
    assert not counts["custom"][nth > 1].any() and not counts["refused"].any()
    assert (counts["known"] == n_splits * (nth >= 1)).all(), "llama.cpp kept the graph, and so its number"


@pytest.mark.parametrize(("kind", "options"), [("llama", EXACT), ("llama", ALL), ("gpt-oss", ALL), ("gemma2", EXACT)])
def test_a_step_is_recorded_once_and_replayed(compare: Compare, kind: str, options: dict):
    steps = [150, *[1] * 5, *[2] * 4, *[4] * 3, *[1] * 3]
    counts = compare(kind, options=options, steps=steps).counts
    check_counts(counts, steps)
    assert (counts["served"] == 1).all()
    if kind == "llama":
        assert counts["custom"][:3].tolist() == [2, N_NODES, N_NODES]


def test_a_view_that_grows_is_recorded_anew(compare: Compare):
    """Views are multiples of 256 cells."""
    counts = compare(options=SAMPLED, steps=[250, *[1] * 12]).counts
    check_counts(counts, [0, *[256] * 6, *[512] * 6])


def test_pages_move_and_sketches_grow_under_a_recording(compare: Compare):
    """A group of 64 cells fills up, and the policy moves pages after each step."""
    steps = [180, *[1] * 24]
    check_counts(compare(options=SAMPLED | {"plan_every": 1}, steps=steps).counts, steps)


@pytest.mark.parametrize("options", [EXACT | {"kv_vram": 3_000_000}, ALL], ids=["ring", "sparse"])
def test_each_split_is_recorded_by_itself(compare: Compare, options: dict):
    """The processor computes one operation of each layer: work that a node announces for the next layer must not begin. Prompts too are
    recorded where they have the same length."""
    steps = [70, 70, 70, *[1] * 4]
    counts = compare(options=options, steps=steps, leave_out="GLU").counts
    check_counts(counts, steps, n_splits=3)
    assert (counts["served"] == 2).all() and counts["custom"][[0, 3]].tolist() == [2, N_NODES]


def test_a_prompt_is_recorded_with_the_next_layers_cells_on_their_way(compare: Compare):
    steps = [70, 70, 70]
    check_counts(compare(options=EXACT, steps=steps).counts, steps)


@pytest.mark.parametrize("seed", ["2", "3"])
def test_the_host_reads_no_memory_of_the_device(compare: Compare, seed: str):
    """It is out of reach while the device does nothing; and streams, blocks and threads run in another order, on 132 multiprocessors and on one."""
    steps = [70, 70, *[1] * 3]
    environment = {"EDGEKV_EMULATOR_STRICT": "1", "EDGEKV_EMULATOR_SEED": seed}
    check_counts(compare(options=ALL, steps=steps, leave_out="GLU", tiers=False, environment=environment).counts, steps, n_splits=3)


def test_streams_of_several_sequences(compare: Compare):
    steps = [70, *[1] * 3, *[2] * 3]
    check_counts(compare(options=SAMPLED, steps=steps, n_seq=3, n_ctx=768, unified=False).counts, steps)


def test_two_contexts_share_the_device(compare: Compare):
    steps = [150, *[1] * 4]
    check_counts(compare(options=ALL, beside=[EXACT], steps=steps).counts, steps, n_splits=2)


def test_settings_that_change_are_in_no_recording(compare: Compare):
    counts = compare(options=SAMPLED, steps=[150, *[1] * 16],
                     changes={"5": {"sample_budget": 10}, "9": {"mode": "off"}, "13": {"mode": "exact"}}).counts
    assert (counts["recorded"][[2, 6, 14]] == 1).all() and (counts["custom"][[5, 6, 13, 14]] == N_NODES).all()
    assert (counts["served"] == [1] * 9 + [0] * 4 + [1] * 4).all()


@pytest.mark.parametrize("options", [EXACT, ALL, EXACT | {"type_k": "q8_0", "type_v": "q4_0"}], ids=["exact", "sparse", "q8_0"])
def test_keys_are_turned_on_the_device(compare: Compare, options: dict):
    """Where a conversation rolls on: each layer's rows come from home, and go back there."""
    counts = compare(options=options, steps=[150, 1, 1, 1, 1], rolls={"3": 40}).counts
    assert (counts["graphs"] == [1, 1, 1, 1 + 2, 1]).all(), "one for each layer's keys"
    assert not (counts["graphs"] - counts["served"])[[0, 1, 2, 4]].any() and counts["served"][3] == 1


@pytest.mark.parametrize("change", ARENA)
def test_an_arena_that_changes_is_in_no_recording(compare: Compare, synthetic, change: str):
    """A recording holds the addresses of the arena, and of the rows in it."""
    with attached(synthetic("llama", dtype="f32"), KvOptions(attention_device="emulated", kv_vram=1 << 30, **SAMPLED), n_ctx=1024, n_seq=1) as (_, run):
        plane = device_calls.plane(run._native_handle())
    half = plane.fixed_bytes + plane.n_slots_max // 2 * plane.slot_bytes
    counts = compare(options=SAMPLED | {"kv_vram": half}, steps=[300, *[1] * 9], n_ctx=1024, arena={"5": change}).counts
    check_counts(counts, [0, *[1] * 4, *[2] * 5])


def test_what_must_not_be_recorded_is_computed_node_by_node(compare: Compare):
    """The plane refuses where it waits for each node."""
    counts = compare(options=ALL, steps=[150, *[1] * 4], environment={"EDGEKV_DEVICE_SYNC": "1"}).counts
    assert (counts["refused"] == counts["served"]).all() and (counts["direct"] == 1).all()
    assert not counts["recorded"].any() and not counts["replayed"].any()
    assert counts["custom"].tolist() == [2, *[N_NODES] * 4]


def test_an_answer_that_cupy_leaves_is_no_error_of_ggmls(compare: Compare):
    """ggml asks behind each of its nodes, and would end the process."""
    steps = [150, *[1] * 4]
    check_counts(compare(options=ALL, steps=steps, asks=True).counts, steps)
