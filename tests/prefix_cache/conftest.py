"""A store ends with its test: its threads would go on writing, and log into the next test. No test waits for the disk, and all share one server."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.redis_server import RedisServer

from edgekv.prefix_cache.store import PrefixStore


@pytest.fixture(autouse=True)
def _stores_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    opened: list[PrefixStore] = []
    initialise = PrefixStore.__init__

    def remember(store: PrefixStore, *arguments: Any, **settings: Any) -> None:
        initialise(store, *arguments, **settings)
        opened.append(store)

    monkeypatch.setattr(PrefixStore, "__init__", remember)
    yield
    for store in opened:
        store.close(0)


@pytest.fixture(autouse=True)
def _no_test_loses_power(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test could tell what `os.fsync` did. A descriptor that is not open is refused all the same."""
    monkeypatch.setattr(os, "fsync", os.fstat)


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer | None]:
    """A shared server; None where there is none to start, or no client."""
    server = None
    with suppress(pytest.skip.Exception):
        server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    if server is not None:
        server.kill()


@pytest.fixture
def server(running: RedisServer | None) -> RedisServer:
    """The shared server, with nothing in it."""
    if running is None:
        pytest.skip("there is no redis-server or valkey-server (Debian: apt-get install redis-server), or no redis-py (edgekv[redis])")
    running.client.flushall()
    running.client.config_set("maxmemory", 0)
    return running


@pytest.fixture(params=["disk", "remote"])
def below(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Settings of each place below RAM."""
    if request.param == "disk":
        return {"folder": tmp_path / "prefixes"}
    return {"url": request.getfixturevalue("server").url, "url_timeout_s": 20.0}
