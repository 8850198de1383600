"""Every architecture of the pinned llama.cpp, on tiny models that its own test makes: what `python tests/architectures` measures, and the
table of models/README.md that it writes."""

import numpy as np
import pytest
from architectures import allocating, running, table
from architectures.making import NotMadeError, compile_maker
from support.contexts import attached
from support.headers import MIB, allocated
from support.held_rows import BLOCK, all_rows, hold_blocks, leave, rows

from edgekv._native.token_rows import HeldTokens
from edgekv.config import KvOptions
from edgekv.models import geometry

FACTOR = 3
"""Mode exact may be so many times as far from stock as stock is from itself. Largest seen: 1.6."""
ROUNDING = 1e-14
"""KLD of logits that differ by float32's rounding alone."""

SINKS = {"gpt-oss", "mimo2", "granite_swa"}
"""Attention sinks take a part of the attention."""


@pytest.fixture(scope="module")
def maker(upstream, tmp_path_factory):
    try:
        return compile_maker(tmp_path_factory.mktemp("maker"), upstream)
    except NotMadeError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def everything(maker) -> list[dict]:
    return list(running.run_all(maker))


@pytest.fixture(scope="module")
def opened(everything) -> list[dict]:
    """Without those that EdgeKV refuses."""
    return [found for found in everything if not (found.get("crashed") or found.get("unmade") or found["refused"])]


@pytest.fixture(scope="module")
def served(opened) -> list[dict]:
    return [found for found in opened if any(found["hooked"])]


@pytest.fixture(scope="module")
def attended(opened) -> list[dict]:
    """Those of which EdgeKV attends some layer, if only whole."""
    return [found for found in opened if any(found["hooked"] + found["whole_layers"])]


@pytest.fixture(scope="module")
def sampled(served) -> list[dict]:
    """Those of which mode sparse reads a part: where an index lists the cells in every layer that is served, it reads what the index says."""
    return [found for found in served if not found["listed"]]


def bound(found: dict) -> float:
    return FACTOR * max(found["spread"], ROUNDING)


def names(all_found, wrong) -> list[str]:
    return [table.line(found) for found in all_found if wrong(found)]


def test_none_ends_the_process(everything):
    assert not names(everything, lambda found: found.get("crashed"))
    assert sum(not found.get("unmade") for found in everything) > 125


def test_exact_is_stock(opened, attended):
    """Within the spread of stock's own kernels, and bit for bit where stock attends every layer."""
    assert not names(attended, lambda found: not found["exact"] <= bound(found))
    assert not names(opened, lambda found: found not in attended and not found["same_bits"])
    assert not names(opened, lambda found: not found["finite"])


def test_a_fault_would_be_seen(attended):
    """Another text in most of the prompt changes logits by far more than mode exact does. (Stock's own spread says nothing of that: with
    sliding windows, its two kernels are farther apart in some models.)"""
    assert not names(attended, lambda found: not 5 * found["exact"] < found["control"])


def test_sparse_is_exact_where_it_reads_everything(opened):
    assert not names(opened, lambda found: not found["whole"])
    assert not names(opened, lambda found: not found["certain"] <= bound(found))


def test_sparse_samples(sampled):
    """Most tokens are left out, and the answers stay near: where attention is even, another text changes little, a sample at most 1.7 times as much."""
    assert not names(sampled, lambda found: not 0.05 < found["share_read"] < 0.8)
    assert not names(sampled, lambda found: not found["sampled"] < max(3 * found["control_mean"], bound(found)))


def test_what_an_index_lists_is_read(served):
    """In modes exact and sparse alike, and nothing else: every cell in place of the listed ones would give other logits."""
    listed = [found for found in served if found["listed"]]
    assert {"deepseek32", "dots3note", "glm-dsa", "hy_v4", "qwen4exp"} <= {found["architecture"] for found in listed}
    assert not names(listed, lambda found: not 0 < found["listed"] < found["n_prompt"] / 3)
    assert not names(listed, lambda found: found["certain"] or found["sampled"])
    assert not names(listed, lambda found: not 5 * found["exact"] < found["unlisted"])


def test_what_is_served_is_served_in_every_ubatch(served):
    """Our nodes see all of the attention in each layer that they are said to attend, in prompts and in decode steps."""
    assert not names(served, lambda found: found["n_ubatches_hooked"] != found["n_ubatches"])
    assert not names(served, lambda found: len(found["mass"]) != sum(found["hooked"]))
    assert not names(served, lambda found: found["architecture"] not in SINKS and not all(abs(mass - 1) < 1e-3 for mass in found["mass"]))
    assert not names(served, lambda found: not all(0.01 < mass < 1.001 for mass in found["mass"]))


def test_what_is_not_served_has_its_reason(opened):
    for found in opened:
        for hooked, (_, reason) in zip(found["hooked"], found["layers"]):
            assert hooked == (reason == table.SERVED), f"{found['architecture']}: {reason}"
            assert "kind EdgeKV knows" not in reason and "an input the kernel" not in reason, f"{found['architecture']}: {reason}"


def test_the_header_says_the_same(opened):
    """`plan` and `models show` go by the header of a file, and tell the same layers."""
    assert not names(opened, lambda found: found["by_header"] != found["hooked"] or found["whole_by_header"] != found["whole_layers"])


def test_what_comes_back_is_what_was_computed(opened):
    assert not names(opened, lambda found: not found["back"] <= bound(found))
    assert not names(opened, lambda found: found["n_back"] < 0.95 * found["n_prompt"])


def test_nothing_else_is_reported(opened):
    """No warning in the log of the server."""
    assert not names(opened, lambda found: found["warnings"])


def test_the_readme_has_the_table(everything):
    assert table.in_readme() == table.text(everything), "run: python tests/architectures --write"


WINDOW, PATTERN = running.WINDOW, running.PATTERN


@pytest.mark.parametrize(("architecture", "keys"), [
    ("exaone4", ("block_count=30", f"{WINDOW}=512", f"{PATTERN}=4")), ("exaone4", ("block_count=30", f"{WINDOW}=512", f"{PATTERN}=")),
    ("exaone4", ("block_count=64", f"{WINDOW}=512", f"{PATTERN}=4")), ("exaone4", ("block_count=64", f"{WINDOW}=", f"{PATTERN}=")),
    ("llama4", (f"{WINDOW}=",)), ("llama4", (f"{WINDOW}=1024",)),
    ("gemma2", (f"{WINDOW}=", f"{PATTERN}=")), ("gemma2", (f"{WINDOW}=512", f"{PATTERN}=0")),
    ("muse-glimmer", (f"{WINDOW}=512", f"{PATTERN}=", "block_count=8")), ("lfm2", (f"{WINDOW}=512",)),
    ("qwen3next", (f"{running.RECURRENT}=0,1", "full_attention_interval=4")),
])
def test_odd_keys_mean_what_llama_cpp_makes_of_them(maker, tmp_path, architecture, keys):
    """Headers of which a rule of ours said something else than llama.cpp."""
    maker.write(architecture, path := tmp_path / "model.gguf", keys)
    made, off = allocated(path, 16384)["KV home"]
    assert geometry(path).kv_bytes(16384) / MIB == pytest.approx(made, abs=off + 1e-9)


@pytest.mark.parametrize(("architecture", "keys", "refusals"), [("minimax-01", (), 0), ("lfm2", ("nextn_predict_layers=1",), len(allocating.CONTEXTS))])
def test_the_plan_is_what_llama_cpp_makes_of_it(maker, tmp_path, architecture, keys, refusals):
    """The work buffers of one sequence may be larger than those of several; a cache without a byte is no cache."""
    maker.write(architecture, path := tmp_path / "model.gguf", keys)
    found = allocating.compare(path)
    assert not found["wrong"] and found["refusals"] == refusals


@pytest.mark.parametrize("parks", [True, False], ids=["parked", "asked for"])
@pytest.mark.parametrize("kind", ["qwen4exp", "deepseek32", "dots3note", "minimax-m3"])
def test_keys_of_an_index_stay_with_the_rows(maker, tmp_path, monkeypatch, kind, parks):
    """They lie in a cache of their own, and leave with the rows, whichever loses its tokens first: beside states, of rows alone, with windows, in pools."""
    monkeypatch.setattr(HeldTokens, "parks", parks)
    maker.write(kind, tmp_path / "model.gguf")
    with attached(tmp_path / "model.gguf", KvOptions(mode="exact"), n_ctx=2 * (n := 4096), n_seq=1, unified=False) as (context, run):
        context.read(np.random.default_rng(7).integers(5, 100, n), 0, n)
        held, seen = hold_blocks(run, n), dict[HeldTokens, tuple[bytes, bool]]()
        try:
            before = all_rows(run, held, n=n)

            def needed(one: HeldTokens) -> None:
                seen[one] = rows(run, one, BLOCK), one.parked
                one.release()

            for one in held:
                one.needed = lambda *_, one=one: needed(one)
            leave(context)
            assert [seen[one] for one in held] == [(one, parks) for one in before]
        finally:
            for one in held:
                one.release()
