"""The server in mode evict: a conversation longer than what it keeps, and its refusals."""

import pytest
from support.clients import CHAT, post

from edgekv._native import core
from edgekv.cli.chat.kv_status import KvWatch, memory_rows, mode_summary
from edgekv.cli.chat.render import _kv_parts
from edgekv.common.errors import ConfigError
from edgekv.config import KvOptions
from edgekv.runtime import attachments
from edgekv.runtime.runtime import Runtime
from edgekv.server.server import Server
from edgekv.server.server_options import ServerOptions


def ask(server: Server, messages: list[dict], n: int) -> dict:
    return post(server.url, CHAT, {"messages": messages, "max_tokens": n, "temperature": 0})


def test_a_conversation_longer_than_what_is_kept(synthetic):
    """The conversation grows turn by turn, goes back to a position whose neighbour is gone, and begins anew."""
    options = ServerOptions(synthetic("llama"), kv=KvOptions(mode="evict", evict_to=256), n_ctx=2048)
    with Server(options) as server:
        (run,) = attachments.live()
        messages, seen = [], []
        for turn in range(9):
            messages += [{"role": "user", "content": f"{turn}" * 80}]
            messages += [ask(server, messages, 30)["choices"][0]["message"]]
            seen.append(run.n_positions)
            assert run.memory().n_cells_used <= 256
            if turn == 7:
                messages = messages[:6]
        assert max(seen) > 800 and run.stats.n_freed > 500 and llama_n_ctx(run) == 2048
        status = KvWatch(server).status(run.n_positions)
        assert status.kept == (run.memory().n_cells_used, run.n_positions)
        assert _kv_parts(status)[0][0][1] == f"KV evict: {status.kept[0]:,} of {status.kept[1]:,} tokens kept"
        assert mode_summary(server) == "evict: 256 tokens kept"
        rows = dict(memory_rows(server))
        assert rows["kept"].startswith(f"{status.kept[0]:,} of") and rows["dropped"].startswith(f"{run.stats.n_freed:,} tokens")
        assert ask(server, [{"role": "user", "content": "x"}], 5)["usage"]["completion_tokens"] > 0


def llama_n_ctx(run: Runtime) -> int:
    return core.limits(run._native_handle()).n_ctx_seq


def test_what_the_server_cannot_keep_is_refused(synthetic):
    path, kv = synthetic("llama"), KvOptions(mode="evict", evict_to=512)
    for option in ("--context-shift", "--cache_reuse", "-ub"):
        with pytest.raises(ConfigError, match="does not go with mode evict"):
            Server(ServerOptions(path, kv=kv, extra=(option, "256")))
    with pytest.raises(ConfigError, match="always kept \\(5,"):
        Server(ServerOptions(path, kv=kv.with_(recent_tokens=5000), n_ctx=2048)).start()
    assert not attachments.live()
