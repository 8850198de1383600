"""The endpoint shows the Runtime's own figures, in forms that the usual tools read."""

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from support.clients import shown_at
from support.local_server import N_TOKENS, SPARSE, ask, complete, exposed, map_fields, options, settled

from edgekv.runtime.cells import StreamCells
from edgekv.server import metrics, page_map
from edgekv.server.figures import collect
from edgekv.server.history import History
from edgekv.server.server import Server

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", params=["--kv-unified", "--no-kv-unified"], ids=["one cache", "a cache each"])
def served(request, synthetic):
    """Two slots in mode sparse, each of which has read a prompt and answered it."""
    with Server(options(synthetic("llama"), kv=SPARSE, n_slots=2, extra=(request.param,))) as server:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda seed: complete(server, seed), range(2)))
        settled(server)
        yield server


def test_figures_are_those_of_the_runtime(served):
    run, state = served.runtime, settled(served)
    memory, selection = run.memory(), run.selection()
    by_tier = {tier["tier"]: (tier["bytes"], tier["used_bytes"]) for tier in state["tiers"]}
    assert by_tier == {
        "home": (memory.home_bytes, memory.used_bytes), "sketches": (memory.sketch_bytes, None),
        "tables": (memory.table_bytes + memory.observation_bytes, None), "work": (memory.workspace_bytes, None)}
    assert not any(state["pages"].values()) and state["reasons"] == [] and state["selection"]["hit_rate"] is None, "a processor's pages have no slots"
    assert run.residency() is None
    assert state["selection"]["error"] == selection.error
    assert state["selection"]["read"] == selection.attended < 1
    assert selection.attended < state["selection"]["coverage"] == selection.coverage < 1
    assert (state["mode"], state["n_layers_served"], state["n_layers"]) == ("sparse", sum(layer.hooked for layer in run.layers), len(run.layers))


def test_slots_add_up_to_the_context(served):
    state = settled(served)
    slots = [slot["edgekv"] for slot in shown_at(served, "/slots")]
    assert slots[0]["coverage"] != slots[1]["coverage"], "each slot has its own"
    assert slots == state["slots"] and len(slots) == 2
    for number, slot in enumerate(slots):
        cells = served.runtime.cells.stream(served.runtime.cells.stream_of(number))
        assert slot["coverage"] == served.runtime.selection(number).coverage < 1
        of_pages = np.unique(np.flatnonzero(cells.in_sequence(number)) // served.runtime.page_tokens)
        assert slot["pages_arena"] == 0 and slot["pages_home"] == len(of_pages) * state["n_heads"]
        assert slot["n_tokens"] == cells.in_sequence(number).sum() >= N_TOKENS and slot["n_ctx"] == 1024


def test_props_say_how_the_cache_is_set(served):
    about = shown_at(served, "/props")["edgekv"]
    assert about["mode"] == "sparse" and about["sample_budget"] == 200 and about["page"] == "/edgekv"
    assert about["store"] is None and about["tiers"] == settled(served)["tiers"] and about["coverage"] == served.runtime.selection().coverage


def test_metrics_are_read_by_prometheus(served):
    found = exposed(served)
    selection = served.runtime.selection()
    assert found["edgekv_tokens_attended_total", ()] == selection.n_read
    for old, new in metrics.RENAMED.items():
        assert {at[1]: n for at, n in found.items() if at[0].startswith(old)} == {at[1]: n for at, n in found.items() if at[0].startswith(new)}
    assert found["edgekv_coverage_ratio", ()] == pytest.approx(selection.coverage)
    assert not {name for name, _ in found} & {"edgekv_hit_ratio", "edgekv_pages"}, "a processor's pages have no slots"
    assert found["edgekv_slot_tokens", (("slot", "1"),)] >= N_TOKENS
    kinds = {metric.name: metric.kind for metric in metrics.METRICS}
    kinds |= {old: kinds[new] for old, new in metrics.RENAMED.items()}
    families = {*kinds, *(f"{name}_{part}" for name, kind in kinds.items() if kind == "histogram" for part in ("bucket", "sum", "count"))}
    assert not {name for name, _ in found} - families
    assert "llamacpp:requests_processing" in ask(served, "/metrics").text, "upstream's stay"


def test_counters_only_grow(served):
    before = exposed(served)
    complete(served, seed=5)
    after = exposed(served)
    counters = {metric.name for metric in metrics.METRICS if metric.kind == "counter"}
    assert all(after[at] >= value for at, value in before.items() if at[0] in counters)
    assert after["edgekv_tokens_total", ()] >= before["edgekv_tokens_total", ()] + N_TOKENS


def test_the_map_shows_which_pages_are_used(served):
    for stream in range(served.runtime.cells.n_stream):
        fields, shown = map_fields(served, stream)
        end = 16 * shown["n_columns"]
        n_tokens = np.count_nonzero(served.runtime.cells.stream(stream).positions[:end].reshape(-1, 16) >= 0, axis=1)
        expected = np.select([n_tokens == 16, n_tokens > 0], [page_map.HOME, page_map.FILLING], page_map.EMPTY)
        assert (fields >> 4 == expected).all() and (n_tokens == 16).any() and (n_tokens == 0).any()
        assert (fields & 15).max() > 5 and not (fields & 15)[:, n_tokens == 0].any(), "attention goes somewhere, and to no empty page"


def test_the_work_of_a_map_is_that_of_its_spans():
    """Not of its columns: taking figures may use a small share of the time, so that what costs ten times as much comes a tenth as often."""
    def calls(n_columns: int) -> int:
        bits = np.zeros((16 * n_columns, 4), np.uint64)
        bits[: 8 * n_columns, 0], bits[8 * n_columns :, 3] = 1, 3
        cells = StreamCells(np.arange(len(bits), dtype=np.int32), bits, np.zeros(0, np.uint64), 1, len(bits), len(bits), np.zeros(0, np.uint8))
        called = []  # by the module itself: garbage may be collected at any moment, and calls back
        sys.setprofile(lambda frame, event, about: called.append(event) if frame.f_code.co_filename == page_map.__file__ else None)
        found = page_map.conversations(cells, n_columns, 16)
        sys.setprofile(None)
        assert found == ([(0, [0]), (n_columns // 2, [192, 193])], [(0 if column < n_columns // 2 else 192, 16 * column, 16) for column in range(n_columns)])
        return len(called)

    assert calls(64) == calls(512)


def test_history_is_of_decoding(served):
    past = shown_at(served, "/edgekv/history")
    assert len({len(values) for values in past.values()}) == 1 and past["at"] == sorted(past["at"])
    assert all(value > 0 for value in past["tokens_per_second"])
    assert all(read / seen < covered < 1 for read, seen, covered in zip(past["rows_per_head"], past["visible_per_head"], past["coverage"], strict=True)
               if read is not None)


def test_speeds_are_tokens_of_a_stretch_over_its_seconds(served):
    now, past = collect(served.runtime, n_sequences=2), History()
    assert not past.add(now)
    assert past.add(replace(now, taken=now.taken + 2, n_tokens=now.n_tokens + 80))
    assert past.points[0].tokens_per_second == 40


def test_every_metric_is_documented():
    text = (ROOT / "edgekv" / "server" / "README.md").read_text(encoding="utf-8")
    names = [metric.name for metric in metrics.METRICS]
    assert sorted(re.findall(r"^\| `(edgekv_\w+)", text, re.M)) == sorted(names)
    assert set(re.findall(r"\bedgekv_[a-z_]+", text)) <= {*names, *metrics.RENAMED, "edgekv_store_outages_total"}
    assert re.findall(r"^\| `(vllm:\w+)` \| `(edgekv_\w+)`", text, re.M) == [
        (metric.name, metric.help.removeprefix("As ").removesuffix(".")) for metric in metrics.VLLM]
