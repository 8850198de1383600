"""Two servers behind a load balancer, with a prefix server that both share: the configuration that the store's README shows."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import prefix_server
from support.clients import is_up, post, until
from support.redis_server import RedisServer, free_port
from support.serve_process import Served, serving

README = Path(__file__).resolve().parents[2] / "edgekv/prefix_cache/README.md"
N_TOKENS = 600


def configuration(port: int, servers: list[Served]) -> str:
    """The README's configuration, with addresses of this machine."""
    (text,) = re.findall(r"```\n(defaults\n.*?)```", README.read_text(encoding="utf-8"), re.S)
    text, n = re.subn(r"bind :8000", f"bind 127.0.0.1:{port}", text)
    places = iter(served.url.removeprefix("http://") for served in servers)
    text, n_servers = re.subn(r"10\.0\.0\.1\d:8080", lambda _: next(places), text)
    assert (n, n_servers) == (1, 2), "the README shows another configuration"
    return text


@pytest.fixture(scope="module")
def balanced(synthetic, tmp_path_factory) -> Iterator[SimpleNamespace]:
    haproxy = shutil.which("haproxy") or shutil.which("/usr/sbin/haproxy")
    if haproxy is None:
        pytest.skip("haproxy is not installed (Debian: apt-get install haproxy)")
    home = tmp_path_factory.mktemp("balanced")
    with ExitStack() as stack:
        shared = RedisServer(home)
        stack.callback(shared.kill)
        model = str(synthetic("llama"))
        servers = [stack.enter_context(serving(home, model, "--ctx", "2048", "--alias", name, "--log-file", str(home / f"{name}.log"),
                                               EDGEKV_CACHE_URL=shared.url)) for name in ("one", "two")]
        port = free_port()
        (home / "haproxy.cfg").write_text(configuration(port, servers))
        process = subprocess.Popen([haproxy, "-db", "-f", home / "haproxy.cfg"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        stack.callback(process.wait)
        stack.callback(process.kill)
        front = f"http://127.0.0.1:{port}"
        until(lambda: process.poll() is None and is_up(front))
        yield SimpleNamespace(front=front, servers=servers, shared=shared)


def talk(front: str, name: str, tokens: list[int]) -> tuple[str, dict[str, int], bool]:
    """A turn of the conversation of that name: the server that answers, the prompt's tokens by where they came from, and whether the shared server's are
    among them, or would have been: it may be so busy that computing takes less time, and the reply says so."""
    reply = post(front, "/v1/completions", {"prompt": tokens, "max_tokens": 4, "temperature": 0}, **{"X-Conversation": name})
    found, missed = reply["usage"]["edgekv"]["cached_tokens"], reply["usage"]["edgekv"]["prefix_cache"].get("reason")
    return reply["model"], found, missed == "cheaper_to_compute" or (found["remote"] > 0 and found["remote"] + found["ram"] >= 512)


def conversation(seed: int) -> list[int]:
    return prefix_server.conversation(seed, N_TOKENS)


def test_a_conversation_stays_where_it_is_and_survives_what_fails(balanced):
    front, servers, shared = balanced.front, balanced.servers, balanced.shared

    # each name has its server, and both servers have some names
    homes = {}
    for seed in range(8):
        homes[seed], found, _ = talk(front, f"conversation {seed}", conversation(seed))
        assert sum(found.values()) < 20, "they begin with the same token"
    assert set(homes.values()) == {"one", "two"}
    for seed, home in homes.items():
        again, found, _ = talk(front, f"conversation {seed}", conversation(seed))
        assert again == home and found["ram"] + found["slot"] >= N_TOKENS - 1 and not found["remote"], "it came back to the server that has read it"

    # another name may lead to the other server, which takes the rows from the shared one
    until(lambda: sum(b":children" not in name for name in shared.client.keys("*")) >= 3 * len(homes))
    moved = next(name for name in (f"other {i}" for i in range(99)) if talk(front, name, [1, 261, 262])[0] != homes[0])
    _, found, came = talk(front, moved, conversation(0))
    assert came, found

    # a server is killed: its conversations move, and begin with rows that it gave to the shared server
    dies = servers[["one", "two"].index(homes[2])]
    dies.process.kill()
    dies.process.wait()  # a dying server may take a connection that it never answers
    other, found, came = talk(front, "conversation 2", conversation(2))
    assert other != homes[2] and came, found
