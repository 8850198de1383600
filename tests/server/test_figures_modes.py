"""Figures of servers of their own: behind a key, in other modes, without a Runtime, one after the other."""

import re

import pytest
from support.local_server import N_TOKENS, ask, complete, exposed, options, settled

from edgekv._native import core
from edgekv._native import http_server as native
from edgekv.common.enums import KvMode
from edgekv.config import KvOptions
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
        assert server.get("/edgekv/map/0")["n_pages_used"] >= N_TOKENS // 16
        assert ("edgekv_hit_ratio", (("by", "access"),)) not in exposed(server), "no arena, no hits"
        whole = None if mode is KvMode.EVICT else 1.0
        assert state["selection"]["coverage"] == server.get("/props")["edgekv"]["coverage"] == state["slots"][0]["coverage"] == whole
        assert exposed(server).get(("edgekv_coverage_ratio", ())) == whole


def test_an_error_in_place_of_a_resolution(synthetic, tmp_path, monkeypatch):
    """It is measured before the model is served, and shown where a resolution is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with Server(options(synthetic("llama"), kv=KvOptions(mode=KvMode.SPARSE, target_error="5%", exact_tokens=64))) as server:
        complete(server, n_answer=4)
        state, about, chosen = settled(server), server.get("/props")["edgekv"], server.runtime.options.selection
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
        assert "edgekv" not in server.get("/slots")[0] and server.get("/props")["edgekv"]["mode"] == "off"
        assert {re.sub("_(bucket|sum|count)$", "", name) for name, _ in exposed(server)} == {
            "edgekv_info", "edgekv_tier_bytes", "edgekv_slot_context_tokens", "edgekv_worst_gap_seconds", "edgekv_requests_running",
            "edgekv_requests_waiting", "edgekv_requests_refused_total", "edgekv_queue_time_seconds", "edgekv_time_to_first_token_seconds",
            "edgekv_inter_token_latency_seconds", "edgekv_token_gap_seconds", "edgekv_prefix_cache_queries_total", "edgekv_prefix_cache_hits_total",
            "edgekv_prefix_cache_misses_total"}
    assert core.enabled()


def test_nothing_is_left_when_the_server_has_ended(synthetic):
    with Server(options(synthetic("llama"))) as server:
        server.get("/edgekv/state")
        assert native.asked_ms("/edgekv/state") >= 0
    assert native.asked_ms("/edgekv/state") == -1
    with server:  # the same object, once more
        assert settled(server)["slots"][0]["n_tokens"] == 0
