"""A hub on this machine, as much of Hugging Face's as huggingface_hub asks for."""

import hashlib
import http.server
import json
import threading
from collections.abc import Mapping


class Hub(http.server.ThreadingHTTPServer):
    """One repository, `repo`, with these files; `asked` has each request's method and path. `refusal`: (status, X-Error-Code) for every request."""

    def __init__(self, files: Mapping[str, bytes], repo: str = "user/repo"):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.repo = files, repo
        self.asked: list[tuple[str, str]] = []
        self.refusal: tuple[int, str] | None = None
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def fetched(self) -> list[str]:
        return [path.rpartition("/main/")[2] for method, path in self.asked if method == "GET" and "/resolve/main/" in path]

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append((self.command, path))
        if self.server.refusal is not None:
            status, code = self.server.refusal
            self._answer(status, b"{}", **({"X-Error-Code": code} if code else {}))
        elif path == f"/api/models/{self.server.repo}":
            listed = [{"rfilename": name, "size": len(data)} for name, data in self.server.files.items()]
            self._answer(200, json.dumps({"id": self.server.repo, "siblings": listed}).encode(), **{"Content-Type": "application/json"})
        elif (name := path.removeprefix(f"/{self.server.repo}/resolve/main/")) in self.server.files:
            data = self.server.files[name]
            self._answer(200, data, **{"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": "0" * 40,
                                       "Content-Disposition": f'inline; filename="{name.rpartition("/")[2]}";'})
        else:
            self._answer(404, b"{}", **{"X-Error-Code": "RepoNotFound"})

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
