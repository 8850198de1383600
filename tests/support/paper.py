"""A server made of paper: it lists models, and answers each request with what a test wrote down."""

import json
from collections.abc import Callable, Iterable

from support.loopback import LoopbackServer, QuietHandler

from edgekv.cli.chat.client import AnswerPiece
from edgekv.cli.chat.session import ChatAnswer, Conversation


class PaperServer(LoopbackServer):
    """OpenAI-compatible. `pages` are its GETs by path, (status, body); `script` has a list of events or (status, body) for each POST. The
    server answers requests without the `key` with 401."""

    def __init__(self, models: Iterable[str] = ("paper",), pages: dict[str, tuple[int, bytes]] | None = None, key: str | None = None):
        super().__init__(_Handler)
        listed = json.dumps({"object": "list", "data": [{"id": name, "object": "model"} for name in models]}).encode()
        self.pages = {"/v1/models": (200, listed), **(pages or {})}
        self.key = key
        self.script: list = []
        self.requests: list[dict] = []


class _Handler(QuietHandler):
    server: PaperServer

    def respond(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"]))) if self.command == "POST" else None
        if self.server.key is not None and self.headers["Authorization"] != f"Bearer {self.server.key}":
            self.answer(401, b'{"error": {"message": "Invalid API Key"}}')
            return
        if body is None:
            self.answer(*self.server.pages.get(self.path, (404, b"<html>no such page</html>")))
            return
        self.server.requests.append(body)
        entry = self.server.script.pop(0)
        if isinstance(entry, tuple):
            self.answer(*entry)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in entry:
            self.wfile.write(event.encode() if isinstance(event, str) else f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()


# ---- what it answers ------------------------------------------------------------------------------------------------------------

TIMINGS = {"cache_n": 3, "prompt_n": 10, "prompt_ms": 50.0, "predicted_n": 5, "predicted_ms": 100.0}
DONE = "data: [DONE]\n\n"


def text(content: str, **more: object) -> dict:
    return {"choices": [{"delta": {"content": content}, "finish_reason": more.pop("finish_reason", None)}], **more}


def says(*words: str, usage: dict | None = None) -> list:
    """The events of an answer in these pieces, from a server that knows no more than the standard."""
    ends = [{"choices": [{"delta": {}, "finish_reason": "stop"}]}, *([] if usage is None else [{"choices": [], "usage": usage}])]
    return [*map(text, words), *ends, DONE]


def refuse(type_: str, **more: object) -> tuple[int, bytes]:
    return 400, json.dumps({"error": {"code": 400, "message": "no", "type": type_, **more}}).encode()


# ---- who asks it ----------------------------------------------------------------------------------------------------------------


def say(conversation: Conversation, words: str, show: Callable[[AnswerPiece], None] = lambda piece: None) -> ChatAnswer:
    conversation.draft.text = words
    return conversation.send(show)


def roles(conversation: Conversation) -> str:
    return "".join(message["role"][0] for message in conversation.messages)


def interrupt_at(word: str) -> Callable[[AnswerPiece], None]:
    def show(piece: AnswerPiece) -> None:
        if piece.text == word or (word == "" and piece.progress):
            raise KeyboardInterrupt

    return show
