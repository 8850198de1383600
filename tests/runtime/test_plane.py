"""The device plane, end to end on the emulated device: the very kernels, buffers, streams and graph nodes that run on a GPU, under
llama.cpp's CPU backend. The host plane and stock llama.cpp are the yardstick."""

import json

import numpy as np
import pytest
from support.contexts import attached, n_hooked
from support.decoding import kld
from support.double import Reference, as_values, rounding
from support.events import check, follow_events
from support.planes import (
    ALL,
    LONG_STEPS,
    N_PROMPT,
    SAMPLED,
    SINGLE,
    SLACK,
    STEPS,
    cache_bytes,
    link_bytes,
    logits_of,
    open_model,
    plane_of,
)

from edgekv import with_head_errors
from edgekv._native import paging
from edgekv._native.native_pages import NativePages
from edgekv.config import KvOptions
from edgekv.runtime import measured_heads

pytestmark = pytest.mark.usefixtures("emulator", "single_precision")


@pytest.mark.parametrize(("shape", "types", "steps", "mode"), [
    ({"head_dim": 80}, {}, STEPS, "exact"), ({"head_dim": 128, "n_head": 5, "n_head_kv": 1}, {"type_k": "q8_0"}, LONG_STEPS, "sparse"),
    ({"head_dim": 96}, {"type_k": "q8_0", "type_v": "q4_0"}, STEPS, "exact"), ({"head_dim": 256}, {"type_v": "q8_0"}, STEPS, "sparse"),
    ({}, {"type_k": "q4_0", "type_v": "q4_0"}, LONG_STEPS, "exact")])
def test_logits_are_those_of_double_precision(synthetic, shape, types, steps, mode):
    """Logits follow from the stored rows, and stored rows are right but for their rounding. Quantised caches too: the host plane quantises
    their queries and the device does not, so that the planes differ by more than arithmetic."""
    path, options = synthetic("llama", dtype="f32", **shape), types | (ALL if mode == "sparse" else {"mode": "exact"})
    llama = open_model(path, **options)
    plane_of(llama)
    ours = logits_of(llama, steps)
    assert n_hooked(llama.kv) == len(steps)
    tokens, cells = llama.input_ids[: llama.n_tokens].tolist(), llama.kv.cells
    assert np.array_equal(cells.stream(0).positions[: len(tokens)], np.arange(len(tokens)))
    stored = [[rows(layer)[0, : len(tokens)] for layer in (0, 1)] for rows in (cells.keys, cells.values)]
    expected, due = Reference(path).logits(tokens, N_PROMPT, *stored)
    single, due_single = Reference(path, np.float32).logits(tokens, N_PROMPT, *stored)
    assert np.abs(ours - expected).max() <= SLACK * np.abs(single - expected).max()
    for part in (0, 1):  # K, V
        for layer in (0, 1):
            should, single = due[layer][part], due_single[layer][part]
            rows = stored[part][layer][N_PROMPT:]
            assert (np.abs(as_values(rows) - should) <= rounding(rows) + SLACK * np.abs(single - should).max()).all()


@pytest.mark.parametrize(("kind", "shape", "mode", "steps"), [
    ("llama", {"head_dim": 72}, "exact", LONG_STEPS), ("llama", {"head_dim": 128, "n_head": 5, "n_head_kv": 1}, "sparse", LONG_STEPS),
    ("gpt-oss", {}, "sparse", LONG_STEPS), ("gpt-oss", {}, "exact", STEPS), ("gemma2", {}, "exact", STEPS), ("gemma2", {}, "sparse", STEPS),
    ("lfm2", {}, "sparse", STEPS)])
def test_steps_of_up_to_64_tokens_are_those_of_the_host_plane(synthetic, kind, shape, mode, steps):
    path, options = synthetic(kind, dtype="f32", **shape), ALL if mode == "sparse" else {"mode": "exact"}
    of_host = steps if steps is STEPS else (1,) * sum(steps)  # more than 16 at once are a prompt on the host plane, for another kernel
    exact = logits_of(open_model(path, "cpu"), of_host)
    over, bound = np.max, SINGLE
    if kind == "gpt-oss" and of_host != steps:  # stock's nodes read its layers with a window: the bound is stock's own distance over all positions
        stock = open_model(path, "cpu", mode="off")
        over, bound = np.mean, 2 * kld(logits_of(stock, of_host), logits_of(stock, steps)).mean()
    llama = open_model(path, **options)
    before = n_hooked(llama.kv)
    ours = logits_of(llama, steps)
    assert n_hooked(llama.kv) - before == len(steps)
    assert over(kld(exact, ours)) <= bound
    check(llama.kv)


@pytest.mark.parametrize("options", [{"mode": "exact"}, ALL], ids=["exact", "sparse"])
def test_a_long_step_brings_no_resident_page_over_the_link(synthetic, options):
    llama = open_model(synthetic("llama"), n_ctx=512, **options)
    logits_of(llama, (1,) * 60, n_prompt=300)
    tiers = llama.kv.tiers()
    assert tiers.n_resident > 0.9 * (tiers.n_resident + tiers.n_home)
    before = link_bytes()
    llama.eval(list(range(260, 300)))
    assert link_bytes() - before < cache_bytes(llama) / 4


@pytest.mark.parametrize("options", [{"mode": "exact"}, ALL], ids=["exact", "sparse"])
def test_a_prompt_brings_no_resident_page_over_the_link(synthetic, options):
    path = synthetic("llama", dtype="f32")
    llama = open_model(path, n_ctx=1024, **options)
    logits_of(llama, (1,) * 60, n_prompt=300)
    tiers = llama.kv.tiers()
    in_slots = tiers.n_resident * tiers.slot_bytes
    assert in_slots > 0.75 * cache_bytes(llama)
    before = link_bytes()
    llama.eval(list(range(260, 350)))
    in_view = 512 / 360 * cache_bytes(llama) * 360 / 450  # the cells count too that the prompt is about to write
    assert link_bytes() - before < in_view - in_slots + 10_000, "besides a few kilobytes of tables"
    exact = logits_of(open_model(path, "cpu", n_ctx=1024), (150, 100, 1), n_prompt=300)
    assert kld(exact, logits_of(llama, (150, 100, 1), n_prompt=300)).max() <= SINGLE
    check(llama.kv)


@pytest.mark.parametrize("options", [{"mode": "exact"}, ALL], ids=["exact", "sparse"])
def test_a_prompt_fills_the_arena_on_its_way(synthetic, options, monkeypatch):
    """A prompt's pages come to the device to be attended and stay there: no page is fetched for its slot alone before the prompt ends."""
    fetched = []
    gather = NativePages.gather
    monkeypatch.setattr(NativePages, "gather", lambda self, ids, *rest: (fetched.append(len(ids)), gather(self, ids, *rest)))
    llama = open_model(synthetic("llama"), n_ctx=1024, **options)
    before = link_bytes()
    logits_of(llama, (), n_prompt=900)  # six parts, which see 256, 512, 512, 768, 768 and 1,024 cells
    tiers = llama.kv.tiers()
    assert tiers.n_resident * tiers.slot_bytes > 0.6 * cache_bytes(llama) and sum(fetched) == 0
    seen = 3840 / 900 * cache_bytes(llama)
    assert link_bytes() - before < 0.65 * seen, "a page comes once to be attended, and is in its slot from then on"
    check(llama.kv)
    for token in range(40):
        llama.eval([260 + token])
    assert sum(fetched) > 0, "what the last part left"
    check(llama.kv)


@pytest.mark.parametrize(("kind", "shape", "n_each"), [
    ("llama", {}, 1), ("gemma2", {}, 3), ("gpt-oss", {}, 16), ("llama", {"head_dim": 128, "n_head": 5, "n_head_kv": 1}, 1)])
def test_a_sparse_step_reads_what_the_host_reads(synthetic, kind, shape, n_each):
    """A rounding may move a mark to a neighbour; soft caps and sinks are covered too. The last layer's rows are those of its own draws."""
    path, steps = synthetic(kind, dtype="f32", **shape), (n_each,) * (48 // n_each)
    seen, logits, rows = {}, {}, {}
    for where in ("cpu", "emulated"):
        llama = open_model(path, where, **SAMPLED | {"error_every": 1, "keep_rows": True})
        logits[where] = logits_of(llama, steps)
        seen[where] = llama.kv.layer_selection()
        n_layers, n_heads = seen[where]["n_read"].shape
        rows[where] = {(head, cell) for head in range(n_heads) for cell in llama.kv.last_rows(n_layers - 1, head)[0].tolist()}
        check(llama.kv)
    assert rows["cpu"] and len(rows["cpu"] ^ rows["emulated"]) <= 0.1 * len(rows["cpu"])
    ours, host = seen["emulated"], seen["cpu"]
    assert (ours["n_tokens"] == host["n_tokens"]).all() and (ours["n_visible"] == host["n_visible"]).all()
    assert (ours["n_errors"] == host["n_errors"]).all()
    assert host["n_certain"].sum() < host["n_read"].sum() < 0.9 * host["n_visible"].sum()
    assert ours["n_read"] == pytest.approx(host["n_read"], rel=0.01)
    assert ours["n_certain"] == pytest.approx(host["n_certain"], rel=0.01)
    assert ours["mass"] == pytest.approx(host["mass"], rel=0.01)
    assert ours["error"].sum() == pytest.approx(host["error"].sum(), rel=0.1)
    exact = logits_of(open_model(path, "cpu"), steps)
    assert kld(exact, logits["emulated"]).mean() < 2 * kld(exact, logits["cpu"]).mean()


def test_heads_sample_at_resolutions_of_their_own(synthetic):
    """From the next step on, in steps that were recorded before, and back."""
    llama = open_model(synthetic("llama", dtype="f32", n_layer=2, n_head=8, n_head_kv=4), **SAMPLED)
    logits_of(llama, (1,) * 4)
    own = np.array([[0, 30, 1e9, 0], [1e9, 0, 0, 30]], np.float32)
    for table in (None, own, None, own[::-1]):
        paging.set_resolutions(llama.kv._native_handle(), table)
        before = llama.kv.layer_selection()
        for token in range(4):
            llama.eval([260 + token])
        now = llama.kv.layer_selection()
        reads_all = now["n_read"] - before["n_read"] == now["n_visible"] - before["n_visible"]
        assert (reads_all == (False if table is None else table == 1e9)).all()


def test_the_errors_of_heads_are_measured_where_attention_runs(synthetic, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(measured_heads, "READ_TOKENS", 300)
    monkeypatch.setattr(measured_heads, "N_TOKENS", 300 + 3 * measured_heads.STEPS)
    path = synthetic("llama", dtype="f32")
    asked = KvOptions(mode="sparse", target_error="5%")
    ours, host = (np.array(with_head_errors(path, asked.with_(attention_device=device), n_threads=1).selection.head_errors.errors)
                  for device in ("emulated", "cpu"))
    assert ours.shape == host.shape and (ours > 0).all() and (host > 0).all()
    assert len(json.loads((tmp_path / "edgekv" / "head-errors.json").read_text())) == 2, "each was measured for itself"


def test_rows_by_chance_are_read_in_place(synthetic):
    """Nothing is resident but the page being filled. Each row that is read comes over the link once; V of a sampled row comes again where
    its error is estimated."""
    llama = open_model(synthetic("llama"), n_ctx=512, **SAMPLED | {"error_every": 0}, policy="none", prefetch="none", kv_vram=2_000_000)
    logits_of(llama, (1,) * 4, n_prompt=300)
    if llama.kv.tiers().n_slots:
        llama.kv._tiering.close()
    before, selected = link_bytes(), llama.kv.layer_selection()
    for token in range(16):
        llama.eval([260 + token])
    now = llama.kv.layer_selection()
    n_rows = (now["n_read"] - now["n_hits"]).sum() - (selected["n_read"] - selected["n_hits"]).sum()
    row_bytes = llama.kv.tiers().slot_bytes / llama.kv.options.cache.page_size
    assert n_rows > 0
    assert link_bytes() - before == pytest.approx(n_rows * row_bytes, rel=0.25), "besides tables, and the keys of the open group"


@pytest.mark.parametrize(("unified", "mode", "n_each"), [(True, "sparse", 1), (False, "sparse", 20), (True, "exact", 20), (False, "exact", 1)])
def test_several_sequences(synthetic, unified: bool, mode: str, n_each: int):
    logits = {}
    for where in ("cpu", "emulated"):
        rng = np.random.default_rng(1)
        with attached(synthetic("llama", n_head=6, dtype="f32"), KvOptions(**ALL | {"mode": mode}, attention_device=where),
                      n_ctx=3 * 256, n_seq=3, unified=unified, n_threads=1) as (context, run):
            ends = [70, 90, 120]  # prompts, on both planes
            for seq, n in enumerate(ends):
                context.decode(rng.integers(260, 350, n), range(n), [seq] * n)
            of_steps = []
            before = n_hooked(run)
            for _ in range(4):
                tokens = rng.integers(260, 350, (3, n_each))
                n_at_once = min(n_each, 5) if where == "cpu" else n_each  # of 3 sequences: the host plane serves 16 tokens
                logits_of_step = []
                for first in range(0, n_each, n_at_once):
                    part = range(first, first + n_at_once)
                    found = context.decode(tokens[:, first : first + n_at_once].ravel(), [end + i for end in ends for i in part],
                                           [seq for seq in range(3) for _ in part])
                    logits_of_step.append(found.reshape(3, n_at_once, -1))
                of_steps.append(np.concatenate(logits_of_step, axis=1).reshape(3 * n_each, -1))
                ends = [end + n_each for end in ends]
            logits[where] = np.concatenate(of_steps)
            if where == "emulated":
                assert n_hooked(run) - before == 4
            check(run)
    assert kld(logits["cpu"], logits["emulated"]).max() <= SINGLE


@pytest.mark.parametrize(("unified", "page_tokens"), [(False, 16), (True, 48)])
def test_sketches_and_arena_follow_every_event(synthetic, unified: bool, page_tokens: int):
    """Cells are removed, copied, shifted, saved and restored: sketches and slots are always as if built anew."""
    compared, resident = follow_events(synthetic("llama"), 40 if unified else 20, unified, page_tokens, n_threads=1, attention_device="emulated")
    assert compared > 40 and resident > 20

N_CTX = 65536
PIECE = 64 << 20


@pytest.mark.parametrize(("kind", "shape", "types", "mode"), [
    ("llama", {"n_head": 8, "n_head_kv": 4}, {}, "exact"), ("llama", {"n_head": 3, "n_head_kv": 3}, {}, "sparse"),
    ("llama", {"n_head": 8, "n_head_kv": 8}, {"type_k": "q8_0", "type_v": "q8_0"}, "exact"),
    ("gemma2", {"n_head": 4, "n_head_kv": 4}, {}, "exact"), ("gpt-oss", {"n_head": 8, "n_head_kv": 4}, {}, "sparse")],
    ids=["two heads each", "three heads", "q8_0", "softcap", "sinks"])
def test_the_logits_are_those_of_whole_layers(synthetic, kind, shape, types, mode):
    """A prompt of two ubatches, then single tokens, and steps of several. Where the context is short, a layer is one piece."""
    path = synthetic(kind, dtype="f32", head_dim=128, n_ctx_train=N_CTX, **shape)
    options = {"mode": mode, **types} | ({"sample_budget": 1e9, "exact_tokens": 0} if mode == "sparse" else {})
    short = open_model(path, n_ctx=1024, **options)
    whole = logits_of(short, (1, 20, 1), n_prompt=300)
    llama = open_model(path, n_ctx=N_CTX, **options)
    served = next(layer.il for layer in llama.kv.layers if layer.index >= 0)
    layer = N_CTX * sum(rows.strides[1] for rows in (llama.kv.cells.keys(served), llama.kv.cells.values(served)))
    assert plane_of(llama).staging_bytes <= 2 * max(PIECE, layer // shape["n_head_kv"]) < 2 * layer
    assert kld(whole, logits_of(llama, (1, 20, 1), n_prompt=300)).max() <= SINGLE
