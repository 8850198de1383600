"""LoRA adapters: which a request may name, and those that nobody has applied yet."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.adapters import control_vector, lora
from support.clients import post, send, shown_at
from support.prefix_server import ask, conversation, serve

from edgekv.common.errors import ModelError
from edgekv.models.synth_file import SyntheticShape

SHAPE = SyntheticShape(n_layer=4, n_head=6)
PROMPT = conversation(1, 100)

OTHER = SyntheticShape(n_layer=SHAPE.n_layer, n_head=SHAPE.n_head, n_embd=64)


@pytest.fixture
def model(synthetic) -> Path:
    return synthetic("llama", n_layer=SHAPE.n_layer, n_head=SHAPE.n_head, dtype="f32")


def test_an_adapter_that_is_not_applied_at_the_start(model: Path, tmp_path: Path):
    with serve(model, store=None) as server:
        plain = ask(server, PROMPT, cache_prompt=False)["tokens"]
    with serve(model, store=None, extra=("--lora", str(lora(tmp_path / "a.gguf", SHAPE)), "--lora-init-without-apply")) as server:
        assert [one["scale"] for one in shown_at(server, "/lora-adapters")] == [0]
        assert ask(server, PROMPT, cache_prompt=False)["tokens"] == plain
        assert ask(server, PROMPT, cache_prompt=False, lora=[{"id": 0, "scale": 1}])["tokens"] != plain
        post(server.url, "/lora-adapters", [{"id": 0, "scale": 1}])
        assert ask(server, PROMPT, cache_prompt=False)["tokens"] != plain
        for path, body in (("/v1/completions", {"prompt": "x", "lora": [{"id": 1, "scale": 1}]}), ("/completion", {"prompt": "x", "lora": [{}]}),
                           ("/lora-adapters", [{"id": 7, "scale": 1}])):
            reply = send(server.url, path, body)
            assert reply.status == 400 and "/lora-adapters lists the 1 that there are" in reply.body["error"]["message"], reply.text


@pytest.mark.parametrize(("option", "write", "said"), [
    ("--lora", lambda path: lora(path, OTHER), r"the LoRA adapter .*one.gguf does not go with this model: .*incorrect shape"),
    ("--lora", lambda path: control_vector(path, SHAPE), r"does not go with this model: .*general.type"),
    ("--lora", lambda path: path, r"does not go with this model: .*No such file"),
    ("--control-vector", lambda path: control_vector(path, OTHER), r"a control vector does not go with this model: .*does not match model"),
    ("--control-vector", lambda path: lora(path, SHAPE), r"a control vector does not go with this model: .*direction tensor"),
    ("--control-vector", lambda path: path, r"a control vector does not go with this model: .*No such file"),
])
def test_what_does_not_go_with_the_model_ends_the_start(model: Path, tmp_path: Path, option: str, write: Callable[[Path], Path], said: str):
    """llama.cpp passes over control vectors that it cannot use, and answers without."""
    path = tmp_path / "one.gguf"
    write(path)
    with pytest.raises(ModelError, match=said):
        serve(model, store=None, n_ctx=256, extra=(option, str(path))).start()


def test_a_control_vector_that_fits_changes_the_answer(model: Path, tmp_path: Path):
    with serve(model, store=None) as server:
        plain = ask(server, PROMPT, cache_prompt=False)["tokens"]
    with serve(model, store=None, extra=("--control-vector", str(control_vector(tmp_path / "a.gguf", SHAPE)))) as server:
        assert ask(server, PROMPT, cache_prompt=False)["tokens"] != plain
