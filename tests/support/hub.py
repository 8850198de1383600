"""A hub on this machine, as much of Hugging Face's as huggingface_hub asks for."""

import hashlib
import json
from collections.abc import Mapping

from support.loopback import LoopbackServer, QuietHandler


class Hub(LoopbackServer):
    """One repository, `repo`, with these files; `asked` has each request's method and path. `refusal`: (status, X-Error-Code) for every request."""

    def __init__(self, files: Mapping[str, bytes], repo: str = "user/repo"):
        super().__init__(_Handler)
        self.files, self.repo = files, repo
        self.asked: list[tuple[str, str]] = []
        self.refusal: tuple[int, str] | None = None

    def fetched(self) -> list[str]:
        return [path.rpartition("/main/")[2] for method, path in self.asked if method == "GET" and "/resolve/main/" in path]


class _Handler(QuietHandler):
    server: Hub

    def respond(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append((self.command, path))
        if self.server.refusal is not None:
            status, code = self.server.refusal
            self.answer(status, b"{}", **({"X-Error-Code": code} if code else {}))
        elif path == f"/api/models/{self.server.repo}":
            listed = [{"rfilename": name, "size": len(data)} for name, data in self.server.files.items()]
            self.answer(200, json.dumps({"id": self.server.repo, "siblings": listed}).encode(), **{"Content-Type": "application/json"})
        elif (name := path.removeprefix(f"/{self.server.repo}/resolve/main/")) in self.server.files:
            data = self.server.files[name]
            self.answer(200, data, **{"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": "0" * 40,
                                       "Content-Disposition": f'inline; filename="{name.rpartition("/")[2]}";'})
        else:
            self.answer(404, b"{}", **{"X-Error-Code": "RepoNotFound"})
