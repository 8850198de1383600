"""A server in this process: completions of token lists, and the figures it shows."""

import base64
from pathlib import Path

import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from support.clients import Reply, post, send, shown_at, until

from edgekv.common.enums import KvMode
from edgekv.config import KvOptions
from edgekv.server.server import Server, ServerOptions

N_TOKENS = 300
SPARSE = KvOptions(mode=KvMode.SPARSE, sample_budget=200, exact_tokens=64)


def options(model: Path, **more) -> ServerOptions:
    return ServerOptions(model, **{"n_ctx": 1024, "n_threads": 1} | more)


def ask(server: Server, path: str, key: str | None = None, body: dict | None = None) -> Reply:
    return send(server.url, path, body, **({"Authorization": f"Bearer {key}"} if key else {}))


def complete(server: Server, seed: int = 0, n_tokens: int = N_TOKENS, n_answer: int = 40) -> None:
    prompt = np.random.default_rng(seed).integers(260, 350, n_tokens).tolist()
    post(server.url, "/completion", {"prompt": prompt, "n_predict": n_answer, "ignore_eos": True, "temperature": 0})


def settled(server: Server) -> dict:
    """/edgekv/state once the server has nothing to do: it takes its last figures right after it has answered."""
    until(lambda: ask(server, "/edgekv/state").headers["x-edgekv-busy"] == "0" and not shown_at(server, "/edgekv/state")["busy"])
    return shown_at(server, "/edgekv/state")


def exposed(server: Server) -> dict[tuple[str, tuple], float]:
    """(name, labels) of every edgekv sample of /metrics."""
    reply = ask(server, "/metrics")
    assert reply.status == 200, reply.text
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(reply.text) for sample in family.samples if sample.name.startswith("edgekv_")}


def map_fields(server: Server, stream: int) -> tuple[np.ndarray, dict]:
    """The map of a stream: its fields [line, column], and the document."""
    settled(server)
    until(lambda: shown_at(server, f"/edgekv/map/{stream}") is not None)
    shown = shown_at(server, f"/edgekv/map/{stream}")
    fields = np.frombuffer(base64.b64decode(shown["fields"]), np.uint8).reshape(len(shown["layers"]), shown["n_columns"])
    return fields, shown
