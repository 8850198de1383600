"""/metrics and /slots while the server works: which thread takes the figures, and how old they are."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from support.clients import shown_at, until
from support.local_server import SPARSE, ask, complete, exposed, options, settled

from edgekv.server import publisher
from edgekv.server.server import Server
from edgekv.server.server_options import ServerOptions

N_PROMPT = 6000


@pytest.fixture
def looks(monkeypatch) -> tuple[set[int], set[int]]:
    """(threads that look at cells and page tables for figures, threads that decode)."""
    takers: set[int] = set()
    decoders: set[int] = set()

    def telling(into: set[int], function: Callable) -> Callable:
        def told(*arguments, **more):
            into.add(threading.get_native_id())
            return function(*arguments, **more)

        return told

    monkeypatch.setattr(publisher, "collect", telling(takers, publisher.collect))
    monkeypatch.setattr(publisher.Publisher, "_draw", telling(takers, publisher.Publisher._draw))
    monkeypatch.setattr(publisher.Publisher, "after_step", telling(decoders, publisher.Publisher.after_step))
    return takers, decoders


def long_options(synthetic, **more) -> ServerOptions:
    return ServerOptions(synthetic("llama", n_ctx_train=2 * N_PROMPT, n_layer=4), kv=SPARSE, n_ctx=2 * N_PROMPT, n_threads=1, **more)


def test_no_scrape_looks_at_cells_while_another_thread_decodes(synthetic, looks):
    """llama.cpp answers both paths from a thread of its queue while another thread decodes."""
    takers, decoders = looks
    with Server(long_options(synthetic, n_slots=2)) as server:
        stop = threading.Event()

        def scrape(path: str) -> int:
            n = 0
            while not stop.is_set():
                assert ask(server, path).status == 200, path
                n += 1
            return n

        with ThreadPoolExecutor(5) as pool:
            scrapes = [pool.submit(scrape, path) for path in ("/metrics", "/slots", "/metrics")]
            answers = [pool.submit(complete, server, seed, N_PROMPT, 200) for seed in range(2)]
            for answer in answers:
                answer.result()
            stop.set()
            n_scrapes = [one.result() for one in scrapes]
        settled(server)
    assert min(n_scrapes) > 5, "somebody asked meanwhile"
    assert len(decoders) == 1 and takers == decoders


def test_the_first_token_waits_for_no_figures(monkeypatch):
    """A page is watched. Work that begins after a pause has its first figures a while later, and then as often as always."""
    now, taken = [100.0], []

    def take(self, busy: bool) -> None:
        taken.append((now[0], busy))
        self._taken = now[0]

    monkeypatch.setattr(publisher, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(publisher.native, "asked_ms", lambda path: 0)
    monkeypatch.setattr(publisher.Publisher, "_take", take)
    figures = publisher.Publisher(None, lambda: None, lambda: None, lambda: None)
    for n_times in range(2):
        for now[0] in (200.0 + 100 * n_times + 0.125 * step for step in range(5)):
            figures.after_step()
        figures.refresh(idle=True)
    began = [(200.25, True), (200.5, True), (200.5, False)]
    assert taken == [*began, *((when + 100, busy) for when, busy in began)]


def test_figures_come_while_an_answer_runs(synthetic):
    """The last published figures are recent, although nobody looks at the page."""
    with Server(long_options(synthetic)) as server, ThreadPoolExecutor(1) as pool:
        seen: set[float] = set()
        answer = pool.submit(complete, server, 0, N_PROMPT, 5000)
        while not answer.done() and len(seen) < 4:
            in_metrics = exposed(server)["edgekv_slot_tokens", (("slot", "0"),)]
            in_slots = shown_at(server, "/slots")[0]["edgekv"]["n_tokens"]
            assert in_metrics <= in_slots, "the later question has the later answer"
            seen.add(in_slots)
            time.sleep(0.05)
        assert len(seen) >= 4 and not answer.done(), seen


def test_figures_come_back_after_sleep(synthetic):
    """--sleep-idle-seconds frees the model and its context, and the next request loads them again."""
    with Server(options(synthetic("llama"), kv=SPARSE, extra=("--sleep-idle-seconds", "1"))) as server:
        complete(server)
        before, first = settled(server), server.runtime
        assert before["served"] and before["slots"][0]["n_tokens"] > 0 and first is not None
        until(lambda: shown_at(server, "/props")["is_sleeping"], 30)
        assert ask(server, "/metrics").status == 200, "a scrape does not wake it"
        assert shown_at(server, "/props")["is_sleeping"] and server.runtime is None
        complete(server, seed=1, n_tokens=200)
        until(lambda: settled(server).get("taken", 0) > before["taken"])
        after = settled(server)
        assert after["served"] and after["mode"] == "sparse" and 200 < after["slots"][0]["n_tokens"] < 300
        assert server.runtime is not None and server.runtime is not first
        assert exposed(server)["edgekv_tokens_total", ()] >= 200 and shown_at(server, "/slots")[0]["edgekv"]["n_tokens"] > 0
