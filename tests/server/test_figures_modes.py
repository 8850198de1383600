"""Figures of servers of their own: behind a key, in other modes, without a Runtime, one after the other."""

import re

import numpy as np
import pytest
from support.clients import shown_at
from support.local_server import N_TOKENS, SPARSE, ask, complete, exposed, map_fields, options, settled

from edgekv._native import core
from edgekv._native import http_server as native
from edgekv.common.enums import KvMode
from edgekv.config import KvOptions
from edgekv.pages.residency import State
from edgekv.server import page_map
from edgekv.server.server import Server


def test_nobody_sees_figures_without_the_key(synthetic):
    with Server(options(synthetic("llama"), api_key="secret")) as server:
        for path in ("/edgekv/state", "/edgekv/history", "/edgekv/map/0", "/metrics", "/slots", "/props"):
            assert ask(server, path).status == ask(server, path, "wrong").status == 401
            assert ask(server, path, "secret").status == 200
        page = ask(server, "/edgekv")
        assert page.status == 200 and page.headers["content-type"].startswith("text/html")
        assert "secret" not in page.text and server.alias not in page.text, "the page itself says nothing of the server"
        assert ask(server, "/edgekv/map/1", "secret").status == ask(server, "/edgekv/map/x", "secret").status == 404


@pytest.mark.parametrize("mode", [KvMode.OFF, KvMode.EXACT, KvMode.EVICT])
def test_modes_without_an_arena(synthetic, mode):
    with Server(options(synthetic("llama"), kv=KvOptions(mode=mode, evict_to=512))) as server:
        complete(server, n_answer=4)
        state = settled(server)
        assert state["mode"] == mode.value and state["served"] and state["pages"]["arena_slots"] == 0
        assert state["slots"][0]["n_tokens"] == server.runtime.memory().n_cells_used and state["slots"][0]["pages_arena"] == 0
        assert shown_at(server, "/edgekv/map/0")["n_pages_used"] >= N_TOKENS // 16
        assert ("edgekv_hit_ratio", (("by", "access"),)) not in exposed(server), "no arena, no hits"
        whole = None if mode is KvMode.EVICT else 1.0
        assert state["selection"]["coverage"] == shown_at(server, "/props")["edgekv"]["coverage"] == state["slots"][0]["coverage"] == whole
        assert exposed(server).get(("edgekv_coverage_ratio", ())) == whole


def test_an_error_in_place_of_a_resolution(synthetic, tmp_path, monkeypatch):
    """It is measured before the model is served, and shown where a resolution is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with Server(options(synthetic("llama"), kv=KvOptions(mode=KvMode.SPARSE, target_error="5%", exact_tokens=64))) as server:
        complete(server, n_answer=4)
        state, about, chosen = settled(server), shown_at(server, "/props")["edgekv"], server.runtime.options.selection
        assert state["settings"]["target error"] == "5 %" and "sample budget" not in state["settings"]
        assert about["target_error"] == 0.05 and about["sample_budget"] is None
        assert chosen.resolutions is not None and all(chosen.resolutions[layer.il] for layer in server.runtime.layers)
        assert server.runtime.selection().n_read > 0


def test_a_server_that_nothing_hangs_on(synthetic, monkeypatch):
    """As with EDGEKV=0, the page has something to say, and upstream's answers are unchanged."""
    with Server(options(synthetic("llama"))) as server:
        monkeypatch.setattr(server, "_runtime", None)
        complete(server, n_answer=2)
        state = settled(server)
        assert not state["served"] and state["mode"] == "off" and state["slots"] == []
        assert "edgekv" not in shown_at(server, "/slots")[0] and shown_at(server, "/props")["edgekv"]["mode"] == "off"
        assert {re.sub("_(bucket|sum|count)$", "", name) for name, _ in exposed(server)} == {
            "edgekv_info", "edgekv_tier_bytes", "edgekv_slot_context_tokens", "edgekv_worst_gap_seconds", "edgekv_requests_running",
            "edgekv_requests_waiting", "edgekv_requests_refused_total", "edgekv_queue_time_seconds", "edgekv_time_to_first_token_seconds",
            "edgekv_inter_token_latency_seconds", "edgekv_token_gap_seconds", "edgekv_prefix_cache_queries_total", "edgekv_prefix_cache_hits_total",
            "edgekv_prefix_cache_misses_total"}
    assert core.enabled()


def test_nothing_is_left_when_the_server_has_ended(synthetic):
    with Server(options(synthetic("llama"))) as server:
        shown_at(server, "/edgekv/state")
        assert native.asked_ms("/edgekv/state") >= 0
    assert native.asked_ms("/edgekv/state") == -1
    with server:  # the same object, once more
        assert settled(server)["slots"][0]["n_tokens"] == 0


# ---- pages of a context on a device ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_a_device(synthetic, emulator):
    """One slot, whose pages have slots in a device's arena."""
    with Server(options(synthetic("llama"), kv=SPARSE.with_(attention_device="emulated", plan_every=1))) as server:
        complete(server)
        settled(server)
        yield server


def test_pages_of_a_device_are_those_of_the_runtime(on_a_device):
    run, state = on_a_device.runtime, settled(on_a_device)
    memory, pages, selection, shown = run.memory(), run.tiers(), run.selection(), state["pages"]
    assert state["tiers"][0] == {"tier": "arena", "bytes": memory.arena_bytes, "used_bytes": (pages.n_resident + pages.n_moving) * pages.slot_bytes}
    assert (shown["arena"], shown["home"], shown["filling"], shown["moving"], shown["arena_slots"], shown["promoted"], shown["moved_bytes"]) == (
        pages.n_resident, pages.n_home, pages.n_filling, pages.n_moving, pages.n_slots, pages.n_promotions, pages.moved_bytes)
    assert pages.n_resident > 0 and state["selection"]["hit_rate"] == selection.hit_rate > 0, "the fixture exercises the hierarchy"
    (slot,) = state["slots"]
    assert slot["pages_arena"] == pages.n_resident + pages.n_moving
    found = exposed(on_a_device)
    assert found["edgekv_pages_promoted_total", ()] == pages.n_promotions and found["edgekv_pages", (("state", "arena"),)] == pages.n_resident
    assert found["edgekv_rows_hit_total", ()] == selection.n_hits and found["edgekv_hit_ratio", (("by", "mass"),)] == pytest.approx(selection.hit_rate_mass)


def test_the_map_shows_where_pages_live(on_a_device):
    run = on_a_device.runtime
    fields, shown = map_fields(on_a_device, 0)
    state = run.residency().state[:, :, : shown["n_columns"]]
    cells = run.cells.stream(0).positions[: 16 * shown["n_columns"]] >= 0
    state = np.where(cells.reshape(-1, 16).any(axis=1) & (state == State.FREE), State.FILLING, state)
    lines = np.concatenate([state[row, : layer.n_head_kv] for row, layer in enumerate(run.layers)])
    assert fields.shape == lines.shape and shown["pages_per_column"] == shown["heads_per_line"] == 1
    places = {State.FREE: page_map.EMPTY, State.HOME: page_map.HOME, State.FILLING: page_map.FILLING, State.MOVING: page_map.MOVING,
              State.RESIDENT: page_map.ALL}
    assert all((fields[lines == was] >> 4 == place).all() for was, place in places.items())
    assert (fields & 15).max() > 5 and not (fields & 15)[lines == State.FREE].any(), "attention goes somewhere, and to no empty page"
