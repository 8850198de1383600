"""A Redis-compatible server of the tests' own, plain or encrypted."""

import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class RedisServer:
    """redis-server or valkey-server on a free port, without persistence; skips the test where there is none, or no client. `certificate`: a folder with
    the files `certificate` and `key`, which it encrypts with."""

    def __init__(self, folder: Path, certificate: Path | None = None):
        binary = shutil.which("valkey-server") or shutil.which("redis-server")
        if binary is None:
            pytest.skip("neither valkey-server nor redis-server is installed (Debian: apt-get install redis-server)")
        redis = pytest.importorskip("redis", reason="redis-py is not installed (edgekv[redis])")
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self.port, self._folder = free_port(), folder
        more: dict = {}
        ports = ["--port", str(self.port)]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        if certificate is not None:
            authority = certificate / "certificate"
            ports = ["--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no", "--tls-cert-file", str(authority),
                     "--tls-key-file", str(certificate / "key"), "--tls-ca-cert-file", str(authority)]
            self.url = f"rediss://127.0.0.1:{self.port}/0?ssl_ca_certs={authority}"
            more = {"ssl": True, "ssl_ca_certs": str(authority)}
        self._command = [binary, *ports, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.client = redis.Redis("127.0.0.1", self.port, retry=Retry(NoBackoff(), 0), **more)  # the name that a certificate vouches for
        self.start()

    def start(self) -> None:
        import redis

        self.process = subprocess.Popen(self._command, cwd=self._folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(200):
            try:
                self.client.ping()
                return
            except redis.ConnectionError:
                time.sleep(0.05)
        self.kill()
        raise AssertionError("the server does not start")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
