"""K and V at home that a device reads are pinned part by part, as tokens come. On the emulated device a kernel that touches anything else ends the process,
and a copy that leaves a part is refused, as on a card."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.backend_process import Scenario, on_the_backend
from support.pinned_process import Pinned, decode
from support.planes import ALL, SAMPLED

from edgekv.config import KvOptions
from edgekv.models import geometry
from edgekv.planning.device_fit import tokens_at_start

pytestmark = pytest.mark.usefixtures("single_precision")

EXACT = {"mode": "exact"}
ASKED = {"kv_vram": 64 << 20}
"""Without it a start reads a ubatch that means nothing, to see what memory is left."""
AT_ONCE = {"EDGEKV_PIN_AT_ONCE": "1"}
PART = 256
"""Cells: the least that are pinned at a time, and an eighth of these contexts."""


@pytest.fixture
def decoded(emulator: Path, emulated_backend: Path, synthetic, tmp_path: Path) -> Callable[..., Pinned]:
    """`decoded(environment, steps=..., options=..., ...)`: what tests/support/pinned_process.py says of a scenario."""

    def run(environment: dict[str, str] | None = None, **scenario) -> Pinned:
        given = {"model": str(synthetic("llama", dtype="f32", n_ctx_train=4096)), "n_ctx": 2048, "n_seq": 1, "unified": False} | scenario
        return decode(emulated_backend, emulator, tmp_path, given, **environment or {})

    return run


def part_bytes(synthetic) -> int:
    """K and V of PART tokens."""
    return PART * geometry(synthetic("llama", dtype="f32", n_ctx_train=4096)).kv_bytes_per_token()


@pytest.mark.parametrize("scenario", [
    dict(options=EXACT, steps=[150, 1, 1, 1, 300, 1, 1, 1]),
    dict(options=EXACT | {"kv_vram": 5_000_000}, steps=[250, *[1] * 9, 260, 1, 1]),
    dict(options=SAMPLED | {"plan_every": 1}, steps=[250, *[1] * 12, 300, *[1] * 4]),
    dict(options=ALL, steps=[120, 1, 1, 150, 2, 2, 2], n_seq=3, unified=False, n_ctx=3072),
    dict(options=SAMPLED, steps=[120, 1, 1, 150, 2, 2, 2], n_seq=3, n_ctx=2048),
    dict(options=EXACT | {"type_k": "q8_0", "type_v": "q4_0"}, steps=[300, 1, 1, 1, 1], rolls={"3": 40}),
    dict(options=SAMPLED, steps=[300, *[1] * 9, 300, 1, 1], changes={"3": {"mode": "off"}, "7": {"mode": "exact"}}),
], ids=["exact", "ring", "sampled", "streams", "one cache", "keys turn", "off"])
def test_logits_are_those_of_rows_that_are_pinned_at_once(emulated_backend, synthetic, tmp_path, scenario: dict):
    """Bit for bit, where views grow over parts, recordings are replayed, pages move, keys turn on the device, and stock nodes attend."""
    given = Scenario(str(synthetic("llama", dtype="f32", n_ctx_train=4096)), **({"n_ctx": 2048} | scenario))
    parts, at_once = on_the_backend(emulated_backend, given, tmp_path), on_the_backend(emulated_backend, given, tmp_path, **AT_ONCE)
    for ours, expected in zip(parts.logits, at_once.logits, strict=True):
        np.testing.assert_array_equal(ours, expected)
    assert parts.n_hooked == at_once.n_hooked


def test_parts_are_pinned_as_tokens_come(decoded, synthetic):
    """One at the start, the next when its first cell comes. What is emptied stays pinned, and holds zeros; all goes with the context."""
    part = part_bytes(synthetic)
    seen = decoded(steps=[["read", [[0, 0, 200]]], ["read", [[0, 200, 56]]], ["read", [[0, 256, 1]]], ["read", [[0, 257, 300]]], ["clear"],
                          ["read", [[0, 0, 200]]]], options=EXACT | ASKED)
    start, *others, gone = seen.bytes
    assert [n - start for n in others] == [0, 0, part, 2 * part, 2 * part, 2 * part] and (start, gone) == (part, 0)
    np.testing.assert_array_equal(seen.logits[0], seen.logits[-1])


@pytest.mark.parametrize("options", [EXACT | ASKED, SAMPLED | ASKED], ids=["exact", "sampled"])
def test_streams_that_a_graph_views_are_pinned_alike(decoded, synthetic, options: dict):
    """A short stream beside a long one is read up to the same cell; others only as far as they have tokens, however these came. What a batch reads of one
    stream alone is pinned of that one."""
    steps = [["read", [[0, 0, 300]]], ["read", [[1, 0, 10]]], ["copy", 0, 2], ["read", [[0, 300, 1], [1, 10, 1]]], ["again", 0], ["read", [[1, 11, 1]]],
             ["read", [[2, 300, 1]]], ["read", [[0, 301, 70], [1, 12, 70]]], ["read", [[1, 82, 70], [2, 301, 300]]]]
    seen = decoded(steps=steps, options=options, n_seq=3, n_ctx=3 * 2048)
    at_once = decoded(AT_ONCE, steps=steps, options=options, n_seq=3, n_ctx=3 * 2048)
    for ours, expected in zip(seen.logits, at_once.logits, strict=True):
        np.testing.assert_array_equal(ours, expected)
    part = part_bytes(synthetic)
    assert [(n - seen.bytes[0]) / part for n in seen.bytes[1:-1]] == [1, 2, 4, 5, 5, 5, 5, 5, 6]


def test_cells_behind_those_that_a_batch_was_thought_to_take_are_pinned(decoded, synthetic):
    """Tokens of three sets of sequences each begin a group of 64 cells, though all belong to sequences 0 and 3: the last of them is in cell 256."""
    steps = [["read", [[0, 0, 129]]], *(["copy", 0, other] for other in (1, 2, 3)), ["fork", 129, [[0, 1, 2, 3], [0, 1, 3], [0, 3]]]]
    seen = decoded(steps=steps, options=EXACT | ASKED, n_seq=4, unified=True)
    part = part_bytes(synthetic)
    assert [n / part for n in seen.bytes[:-1]] == [1, 1, 1, 1, 1, 2]


def test_a_batch_that_the_system_does_not_pin_is_refused(decoded, synthetic):
    """It is read where there is room in what is pinned, or as soon as the system pins more; the logits are those of a context that never lacked any."""
    part = part_bytes(synthetic)
    reads = [["read", [[0, 0, 200]]], ["read", [[0, 200, 40]]], ["read", [[0, 240, 100]]]]
    seen = decoded(steps=[reads[0], ["limit", 0], ["read", [[0, 200, 100]]], reads[1], reads[2], ["limit", part - 1], reads[2], ["limit", None], reads[2]],
                   options=EXACT | ASKED)
    whole = decoded(steps=reads, options=EXACT | ASKED)
    n_read = [len(found) for found in seen.logits]
    assert n_read == [200, 0, 40, 0, 0, 100]
    for ours, expected in zip([found for found in seen.logits if len(found)], whole.logits, strict=True):
        np.testing.assert_array_equal(ours, expected)
    assert seen.log.count("the system refused to pin K and V of 100 more tokens in host memory") == 3


@pytest.mark.parametrize("page", [48, 80, 96, 512])
def test_a_page_that_leaves_what_a_graph_views_is_pinned_whole(decoded, synthetic, page: int):
    """Kernels copy whole pages: those of cells [0, 256) end at a multiple of the page, in a part of 256 cells."""
    steps = [["read", [[0, 0, 250]]], ["remove", 0, 10, 13], ["read", [[0, 250, 1]]], ["read", [[0, 251, 1]]]]
    for options in (EXACT | ASKED, EXACT | {"kv_vram": 5_000_000}, SAMPLED | ASKED | {"plan_every": 1}):
        seen = decoded(steps=steps, options=options | {"page_size": page})
        at_once = decoded(AT_ONCE, steps=steps, options=options | {"page_size": page})
        assert {n // part_bytes(synthetic) for n in seen.bytes[:-1]} == {2}
        for ours, expected in zip(seen.logits, at_once.logits, strict=True):
            np.testing.assert_array_equal(ours, expected)


def test_memory_is_asked_for_all_that_is_pinned(decoded, synthetic):
    """One token takes a part of its own stream and of each that is viewed with it. What tokens left is pinned, and takes no more."""
    part = part_bytes(synthetic)
    reads = [["read", [[0, 0, 256], [1, 0, 9]]], ["read", [[0, 256, 1], [1, 9, 1]]]]
    seen = decoded(steps=[reads[0], ["free", 2 * part - 1], reads[1], ["free", 2 * part], reads[1], ["clear"], ["free", 0], *reads],
                   options=EXACT | ASKED, n_seq=2, n_ctx=2 * 2048)
    assert [n // part for n in seen.bytes[:-1]] == [1, 2, 2, 2, 2, 4, 4, 4, 4, 4]
    first, refused, second, *again = seen.logits
    assert len(refused) == 0 and f"K and V of 2 more tokens take {2 * part / 2**20:.1f} MiB, and there is not so much memory" in seen.log
    for ours, expected in zip(again, (first, second), strict=True):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("way", ["copy", "whole"])
def test_a_stream_whose_rows_are_not_pinned_loses_its_tokens_and_others_go_on(decoded, tmp_path, way: str):
    """Tokens of a copy and of a whole state come without a batch. A sequence that lost them is refused until it begins anew."""
    given = dict(options=EXACT | ASKED, n_seq=2, n_ctx=2 * 2048)
    begun, kept, limit = ["read", [[0, 0, 40], [1, 0, 300]]], str(tmp_path / "kept"), ["limit", 0]
    others = [["read", [[0, 40, 1]]], ["read", [[0, 41, 1]]], ["read", [[1, 0, 5]]]]
    expected = decoded(steps=[begun, ["keep", kept], ["remove", 1, 0, -1], *others], **given)
    if way == "copy":
        expected = decoded(steps=[["read", [[0, 0, 300]]], ["read", [[0, 300, 1]]], ["read", [[0, 301, 1]]], ["read", [[1, 0, 5]]]], **given)
        others = [["read", [[0, 300, 1]]], ["read", [[0, 301, 1]]], ["read", [[1, 0, 5]]]]
        steps = [["read", [[1, 0, 5]]], ["remove", 1, 0, -1], ["read", [[0, 0, 300]]], limit, ["copy", 0, 1]]
    else:
        steps = [["read", [[1, 0, 5]]], ["remove", 1, 0, -1], limit, ["whole", kept]]
    goes_on = ["read", [[1, 300, 1]]]
    seen = decoded(steps=[*steps, others[0], goes_on, goes_on, *others[1:]], **given)
    assert [len(found) for found in seen.logits[-5:]] == [1, 0, 0, 1, 5]
    for ours, other in zip([found for found in seen.logits if len(found)][-3:], expected.logits[-3:], strict=True):
        np.testing.assert_array_equal(ours, other)
    assert seen.log.count("stream 1 loses its 300 tokens") == 1 and seen.log.count("begin it anew") == 2


def test_a_state_whose_rows_are_not_pinned_does_not_load(decoded):
    """Its sequence is empty then, as llama.cpp leaves it. It loads as soon as the system pins more."""
    seen = decoded(steps=[["read", [[1, 0, 300]]], ["limit", 0], ["load", 1, 0], ["read", [[1, 300, 1]]], ["read", [[0, 0, 5]]], ["limit", None],
                          ["load", 1, 0], ["read", [[0, 301, 1]]]], options=EXACT | ASKED, n_seq=2, n_ctx=2 * 2048)
    assert [len(found) for found in seen.logits] == [300, 0, 1, 5, 1, 1]


def test_kept_tokens_whose_rows_are_not_pinned_are_not_placed(decoded, synthetic):
    """Neither where the system refuses nor where memory is missing, beside twice what is kept back."""
    steps = [["read", [[1, 0, 5]]], ["limit", 0], ["add", 0, 300], ["read", [[1, 5, 1]]], ["limit", None], ["free", 0], ["add", 0, 300], ["free", None],
             ["add", 0, 300], ["read", [[0, 300, 1]]]]
    seen = decoded(steps=steps, options=EXACT | ASKED, n_seq=2, n_ctx=2 * 2048)
    assert [len(found) for found in seen.logits] == [5, 0, 1, 0, 300, 1]
    assert [n // part_bytes(synthetic) for n in seen.bytes[:-1]] == [1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3]


def test_cells_that_a_batch_was_not_thought_to_take_are_refused_too(decoded):
    """As `test_cells_behind_those_that_a_batch_was_thought_to_take_are_pinned`, where the system pins no more: the batch is refused, and nothing is lost."""
    steps = [["read", [[0, 0, 129]]], *(["copy", 0, other] for other in (1, 2, 3))]
    fork = ["fork", 129, [[0, 1, 2, 3], [0, 1, 3], [0, 3]]]
    seen = decoded(steps=[*steps, ["limit", 0], fork, ["read", [[0, 129, 1]]]], options=EXACT | ASKED, n_seq=4, unified=True)
    whole = decoded(steps=[*steps, ["read", [[0, 129, 1]]]], options=EXACT | ASKED, n_seq=4, unified=True)
    assert [len(found) for found in seen.logits] == [129, 0, 1]
    np.testing.assert_array_equal(seen.logits[2], whole.logits[1])


@pytest.mark.parametrize("options", [EXACT | ASKED, EXACT, SAMPLED | {"page_size": 96}, EXACT | ASKED | {"page_size": 512}], ids=["asked", "auto", "96", "512"])
def test_a_start_pins_what_a_plan_says(decoded, synthetic, options: dict):
    """With an automatic budget a ubatch of 512 tokens, and one more."""
    token_bytes = part_bytes(synthetic) // PART
    said = tokens_at_start(2048, token_bytes, KvOptions(**options), 512)
    assert decoded(steps=[], options=options).bytes == [said * token_bytes, 0]
