"""LoRA adapters: which a request may name, and those that nobody has applied yet."""

from pathlib import Path

import pytest
from support.adapters import lora
from support.clients import post, send
from support.prefix_server import ask, conversation, serve

from edgekv.models.synth_file import SyntheticShape

SHAPE = SyntheticShape(n_layer=4, n_head=6)
PROMPT = conversation(1, 100)


@pytest.fixture
def model(synthetic) -> Path:
    return synthetic("llama", n_layer=SHAPE.n_layer, n_head=SHAPE.n_head, dtype="f32")


def test_an_adapter_that_is_not_applied_at_the_start(model: Path, tmp_path: Path):
    with serve(model, store=None) as server:
        plain = ask(server, PROMPT, cache_prompt=False)["tokens"]
    with serve(model, store=None, extra=("--lora", str(lora(tmp_path / "a.gguf", SHAPE)), "--lora-init-without-apply")) as server:
        assert [one["scale"] for one in server.get("/lora-adapters")] == [0]
        assert ask(server, PROMPT, cache_prompt=False)["tokens"] == plain
        assert ask(server, PROMPT, cache_prompt=False, lora=[{"id": 0, "scale": 1}])["tokens"] != plain
        post(server.url, "/lora-adapters", [{"id": 0, "scale": 1}])
        assert ask(server, PROMPT, cache_prompt=False)["tokens"] != plain
        for path, body in (("/v1/completions", {"prompt": "x", "lora": [{"id": 1, "scale": 1}]}), ("/completion", {"prompt": "x", "lora": [{}]}),
                           ("/lora-adapters", [{"id": 7, "scale": 1}])):
            reply = send(server.url, path, body)
            assert reply.status == 400 and "/lora-adapters lists the 1 that there are" in reply.body["error"]["message"], reply.text
