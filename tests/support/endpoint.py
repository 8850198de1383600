"""A server asked over HTTP: completions of token lists, and the figures it shows."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from edgekv.serving.server import Server, ServerOptions

N_TOKENS = 300


def options(model: Path, **more) -> ServerOptions:
    return ServerOptions(model, n_ctx=1024, n_threads=1, **more)


def ask(server: Server, path: str, key: str | None = None, body: dict | None = None) -> tuple[int, str, dict[str, str]]:
    """Status, text and headers."""
    request = urllib.request.Request(server.url + path, None if body is None else json.dumps(body).encode(),
                                     {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), dict(error.headers)


def complete(server: Server, seed: int = 0, n_tokens: int = N_TOKENS, n_answer: int = 40) -> None:
    prompt = np.random.default_rng(seed).integers(260, 350, n_tokens).tolist()
    status, text, _ = ask(server, "/completion", body={"prompt": prompt, "n_predict": n_answer, "ignore_eos": True, "temperature": 0})
    assert status == 200, text


def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    """The server takes its last figures right after it has answered."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.02)


def settled(server: Server) -> dict:
    """/edgekv/state once the server has nothing to do."""
    until(lambda: ask(server, "/edgekv/state")[2]["X-EdgeKV-Busy"] == "0" and not server.get("/edgekv/state")["busy"])
    return server.get("/edgekv/state")


def exposed(server: Server) -> dict[tuple[str, tuple], float]:
    """(name, labels) of every edgekv sample of /metrics."""
    status, text, _ = ask(server, "/metrics")
    assert status == 200
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text) for sample in family.samples if sample.name.startswith("edgekv_")}
