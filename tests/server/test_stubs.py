"""The stub of the tests says what it is told, through HTTP."""

from pathlib import Path

from support.serve_process import serving
from support.stub import cut, write_stub

TEXT = "A plain answer: größer als 水, with a mark."


def test_a_stub_says_its_text_piece_by_piece(tmp_path: Path) -> None:
    pieces = [*cut(TEXT), b"<tag>"]
    model = write_stub(tmp_path / "stub.gguf", pieces, specials=("<|im_start|>", "<|im_end|>", "<tag>"), control=False)
    with serving(tmp_path, str(model)) as served:
        body = {"messages": [{"role": "user", "content": "Say it."}]}
        reply = served.ask("/v1/chat/completions", body).body
        assert reply["choices"][0]["message"]["content"] == TEXT + "<tag>"
        assert reply["usage"]["completion_tokens"] == len(pieces) + 1  # and the end
        raw = served.ask("/completion", {"prompt": "any", "return_tokens": True}).body
        assert raw["content"] == TEXT + "<tag>"
