"""A server of a tiny model that keeps prefixes, and its account of where a prompt's tokens came from."""

from pathlib import Path

import numpy as np
from support.clients import post

from edgekv.config import KvOptions
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server.server import Server, ServerOptions

EXACT = {"mode": "exact", "policy": "none", "kv_budget": 0}
SPARSE = {"mode": "sparse", "policy": "none", "kv_budget": 0, "exact_tokens": 256, "sample_budget": 16.0}


def serve(model: Path, kv: dict = EXACT, store: StoreSettings | None = StoreSettings(), **more) -> Server:
    return Server(ServerOptions(model, kv=KvOptions(**kv), store=store, **{"n_ctx": 2048, "n_threads": 1} | more))


def ask(server: Server, tokens: list[int], n: int = 8, **more) -> dict:
    """The answer with its tokens, and where the tokens of the prompt came from."""
    return post(server.url, "/completion", {"prompt": [int(token) for token in tokens], "n_predict": n, "temperature": 0, "return_tokens": True,
                                            "ignore_eos": True, **more})


def keep(model: Path, kv: dict, where: StoreSettings, *prompts: list[int], n: int = 8, **more) -> list[dict]:
    """The answers of a server that ends when it has written what it keeps."""
    with serve(model, kv, where, **more) as server:
        answers = [ask(server, prompt, n) for prompt in prompts]
        server.prefixes.flush()
    return answers


def n_read(answer: dict) -> int:
    return answer["timings"]["prompt_n"]


def conversation(seed: int, n: int) -> list[int]:
    return [1, *np.random.default_rng(seed).integers(260, 320, n - 1).tolist()]


def apart(seed: int, n: int = 700) -> list[int]:
    """The same, but they differ from their first token on."""
    return [300 + seed, *conversation(seed, n)[1:]]


def from_disk(model: Path, kv: dict, where: StoreSettings, tokens: list[int], **more) -> int:
    """Tokens of a prompt that a new server takes from disk. It keeps what it computes."""
    with serve(model, kv, where, **more) as server:
        n = sources(server, tokens)["disk"]
        server.prefixes.flush()
    return n


def sources(server: Server, tokens: list[int], n: int = 4) -> dict:
    """Tokens of the prompt by where they came from."""
    usage = post(server.url, "/v1/completions", {"prompt": tokens, "max_tokens": n, "temperature": 0})["usage"]
    found = usage["edgekv"]["cached_tokens"]
    # the server computes the last token in any case
    assert sum(found.values()) - usage["prompt_tokens_details"]["cached_tokens"] in (0, 1), f"two counts of cached tokens differ: {usage}"
    return found
