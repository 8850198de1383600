"""A server made of paper for the chat's client: it answers with what a test wrote down."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable

from edgekv.cli.chat.client import AnswerPiece
from edgekv.cli.chat.session import ChatAnswer, Conversation


class PaperServer(http.server.ThreadingHTTPServer):
    """Answers each request with the next entry of `script`: (status, body) or a list of events."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _PaperHandler)
        self.script: list = []
        self.requests: list[dict] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _PaperHandler(http.server.BaseHTTPRequestHandler):
    server: PaperServer

    def do_POST(self) -> None:
        self.server.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        entry = self.server.script.pop(0)
        if isinstance(entry, tuple):
            status, body = entry
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in entry:
            self.wfile.write(event.encode() if isinstance(event, str) else f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


TIMINGS = {"cache_n": 3, "prompt_n": 10, "prompt_ms": 50.0, "predicted_n": 5, "predicted_ms": 100.0}


def text(content: str, **more: object) -> dict:
    return {"choices": [{"delta": {"content": content}, "finish_reason": more.pop("finish_reason", None)}], **more}


def say(conversation: Conversation, words: str, show: Callable[[AnswerPiece], None] = lambda piece: None) -> ChatAnswer:
    conversation.draft.text = words
    return conversation.send(show)


def roles(conversation: Conversation) -> str:
    return "".join(message["role"][0] for message in conversation.messages)


def refuse(type_: str, **more: object) -> tuple[int, bytes]:
    return 400, json.dumps({"error": {"code": 400, "message": "no", "type": type_, **more}}).encode()


def interrupt_at(word: str) -> Callable[[AnswerPiece], None]:
    def show(piece: AnswerPiece) -> None:
        if piece.text == word or (word == "" and piece.progress):
            raise KeyboardInterrupt

    return show
