"""Sixteen streams on four slots in mode sparse, with scrapes of the figures: no error, no growth, nobody starves. EDGEKV_SOAK_MINUTES has it run for longer,
and on the default model."""

import json
import os
import random
import statistics
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from support.clients import Endpoint, shown_at
from support.local_server import SPARSE, exposed, options

from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server.server import Server

N_SLOTS, N_STREAMS = 4, 16
SOAK_MINUTES = float(os.environ.get("EDGEKV_SOAK_MINUTES", "0"))
SHORT_S = 20.0
STORE_BYTES = (64 if SOAK_MINUTES else 4) << 20  # full at once

GROWTH_SHARE, GROWTH_BYTES = 0.02, 12 << 20
"""The bound for resident memory, from the middle third to the last. A leak of a small buffer for each token or request is more in ten
minutes; the allocator's arenas for threads that come and go are less."""

WORDS = ("river", "stone", "why", "the", "cache", "42", "holds", "a", "page", "and", "then", "Ärger", "\n")


@dataclass
class Seen:
    """The stream of each answer, and errors."""

    answered: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def talk(endpoint: Endpoint, seed: int, until: float, most_words: int, seen: Seen) -> None:
    rng = random.Random(seed)
    while time.monotonic() < until:
        prompt = " ".join(rng.choices(WORDS, k=rng.randint(2, most_words)))
        n_tokens, ended = 0, False
        try:
            with endpoint.stream({"prompt": prompt, "n_predict": rng.randint(8, 48), "ignore_eos": True}) as response:
                assert response.status == 200, response.read()
                for line in response:
                    if line.startswith(b"data: "):
                        event = json.loads(line[6:])
                        assert "error" not in event, event
                        n_tokens += len(event.get("tokens", ()))
                        ended |= event.get("stop", False)
            assert ended and n_tokens >= 8, "the stream broke off"
        except Exception as error:  # the report names every error
            seen.errors.append(f"{type(error).__name__}: {error}")
            return
        seen.answered.append(seed)


def scrape(server: Server, until: float, seen: Seen) -> None:
    """A dashboard scrapes both documents twice a second; counters never fall."""
    n_asked = 0.0
    while time.monotonic() < until:
        try:
            figures, slots = exposed(server), shown_at(server, "/slots")
            now = figures["edgekv_prefix_cache_queries_total", ()]
            assert now >= n_asked, "a counter fell"
            n_asked = now
            assert [slot["id"] for slot in slots] == list(range(N_SLOTS)), "/slots lists other slots"
            assert all("n_tokens" in slot["edgekv"] for slot in slots), "a slot is shown without its figures"
        except Exception as error:
            seen.errors.append(f"scrape: {type(error).__name__}: {error}")
            return
        time.sleep(0.5)


def test_sixteen_streams(synthetic, request):
    model: Path = request.getfixturevalue("default_model") if SOAK_MINUTES else synthetic("llama")
    seconds = SOAK_MINUTES * 60 or SHORT_S
    process, resident, seen = psutil.Process(), [], Seen()
    with Server(options(model, kv=SPARSE, n_slots=N_SLOTS, n_ctx=2048, n_threads=None if SOAK_MINUTES else 1, store=StoreSettings(STORE_BYTES))) as server:
        endpoint = Endpoint(server)
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=talk, args=(endpoint, seed, until, 400, seen)) for seed in range(N_STREAMS)]
        threads.append(threading.Thread(target=scrape, args=(server, until, seen)))
        for thread in threads:
            thread.start()
        while time.monotonic() < until:
            time.sleep(0.25)
            resident.append(process.memory_info().rss)
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads), "a stream starves"
        endpoint.seconds_until_idle(10)
    assert not seen.errors and {*seen.answered} == {*range(N_STREAMS)}, seen
    third = len(resident) // 3
    middle, last = (statistics.median(part) for part in (resident[third:2 * third], resident[2 * third:]))
    print(f"\n{seconds / 60:.1f} min: {len(seen.answered)} answers; resident {middle / 2**20:.1f} MiB, then {last / 2**20:.1f} MiB")
    assert last - middle < max(GROWTH_BYTES, GROWTH_SHARE * middle)
