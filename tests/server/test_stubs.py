"""The stub of the tests says what it is told, through HTTP; and a stub whose chat template does not parse."""

from pathlib import Path

import pytest
from support.stub import cut, write_stub
from support.stub_server import stubbed

from edgekv.common.errors import ModelError
from edgekv.server.server import Server, ServerOptions

TEXT = "A plain answer: größer als 水, with a mark."


def test_a_stub_says_its_text_piece_by_piece(tmp_path: Path) -> None:
    pieces = [*cut(TEXT), b"<tag>"]
    with stubbed(tmp_path, pieces, marks=("<tag>",)) as served:
        body = {"messages": [{"role": "user", "content": "Say it."}]}
        reply = served.ask("/v1/chat/completions", body).body
        assert reply["choices"][0]["message"]["content"] == TEXT + "<tag>"
        assert reply["usage"]["completion_tokens"] == len(pieces) + 1  # and the end
        raw = served.ask("/completion", {"prompt": "any", "return_tokens": True}).body
        assert raw["content"] == TEXT + "<tag>"


def test_a_template_that_does_not_parse_is_the_models_fault(tmp_path: Path) -> None:
    model = write_stub(tmp_path / "stub.gguf", "hello", "{% if x %}hello")
    with pytest.raises(ModelError, match="chat template does not parse: .*; `edgekv serve MODEL -- --chat-template NAME` takes another"):
        Server(ServerOptions(model, n_ctx=512, n_threads=1)).start()
    with Server(ServerOptions(model, n_ctx=512, n_threads=1, extra=("--chat-template", "chatml"))) as server:
        assert server.url
