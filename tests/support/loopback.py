"""A web server on this machine, which says nothing where nobody asked."""

import http.server
import threading


class LoopbackServer(http.server.ThreadingHTTPServer):
    def __init__(self, handler: type[http.server.BaseHTTPRequestHandler]):
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class QuietHandler(http.server.BaseHTTPRequestHandler):
    def respond(self) -> None:
        """To a GET, HEAD or POST."""
        raise NotImplementedError

    def do_GET(self) -> None:
        self.respond()

    do_HEAD = do_POST = do_GET  # noqa: N815 - http.server's names

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
