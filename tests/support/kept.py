"""A server of a tiny model that keeps prefixes, and what it says of where the tokens of a prompt came from."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import numpy as np

from edgekv.config import KvOptions
from edgekv.serving.server import Server, ServerOptions
from edgekv.store.settings import StoreSettings

EXACT = {"mode": "exact", "policy": "none", "kv_budget": 0}
SPARSE = {"mode": "sparse", "policy": "none", "kv_budget": 0, "exact_tokens": 256, "resolution": 16.0}


def serve(model: Path, kv: dict = EXACT, store: StoreSettings | None = StoreSettings(), **more) -> Server:
    return Server(ServerOptions(model, kv=KvOptions(**kv), n_ctx=more.pop("n_ctx", 2048), n_threads=1, store=store, **more))


def ask(server: Server, tokens: list[int], n: int = 8, **more) -> dict:
    """The answer, its tokens and where those of the prompt came from."""
    body = json.dumps({"prompt": [int(token) for token in tokens], "n_predict": n, "temperature": 0, "return_tokens": True,
                       "ignore_eos": True, **more}).encode()
    request = urllib.request.Request(f"{server.url}/completion", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def n_read(answer: dict) -> int:
    return answer["timings"]["prompt_n"]


def conversation(seed: int, n: int) -> list[int]:
    return [1, *np.random.default_rng(seed).integers(260, 320, n - 1).tolist()]


def sources(server: Server, tokens: list[int], n: int = 4) -> dict:
    body = json.dumps({"prompt": tokens, "max_tokens": n, "temperature": 0}).encode()
    request = urllib.request.Request(f"{server.url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        usage = json.load(response)["usage"]
    found = usage["edgekv"]["cached_tokens"]
    assert sum(found.values()) - usage["prompt_tokens_details"]["cached_tokens"] in (0, 1)  # the last token is computed in any case
    return found
