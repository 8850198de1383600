"""One store for the files of a model: no prompt waits for their digest, and a context that is loaded again finds what the one before kept."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.calls import Held
from support.clients import Endpoint, send, shown_at, until
from support.prefix_server import conversation, serve, sources

from edgekv.prefix_cache import digests
from edgekv.server import identities


def test_no_prompt_waits_for_the_digest_of_a_large_model(tiny, monkeypatch: pytest.MonkeyPatch, caplog):
    """Prompts before its end are read and not kept; the start waits for it, and the log says for what."""
    digest = Held(monkeypatch, digests, "digest_of_model")
    monkeypatch.setattr(identities, "LONG_S", 0.01)
    server = serve(tiny, n_slots=1)
    with ThreadPoolExecutor(1) as pool:
        starts = pool.submit(server.start)
        until(lambda: "is read once" in caplog.text)
        usage = send(server.url, "/v1/completions", {"prompt": conversation(1, 300), "max_tokens": 1}).body["usage"]["edgekv"]
        assert usage["prefix_cache"]["reason"] == "model_unknown" and not server.prefixes.stats() and not starts.done()
        Endpoint(server).seconds_until_idle(60)  # it is over, and was not kept
        digest.go_on.set()
        starts.result(60)
    with server:
        assert sources(server, conversation(2, 300))["slot"] == 1 and sources(server, conversation(1, 300))["ram"] == 0
        sources(server, conversation(2, 300))
        assert sources(server, conversation(1, 300))["ram"] == 299


def test_a_context_that_is_loaded_again_has_the_same_store(tiny):
    with serve(tiny, extra=("--sleep-idle-seconds", "1")) as server:
        sources(server, conversation(1, 300))
        until(lambda: shown_at(server, "/props")["is_sleeping"])
        assert sources(server, conversation(1, 300))["ram"] == 300
        assert len(server.prefixes.stats()) == 1
