"""A context that nobody asked for is halved where the system refuses to pin its K and V, until it pins them."""

import json
import re

import pytest
from support.backend_process import beside_the_backend

CODE = """
import ctypes, json
from edgekv._native import core, device_calls
from edgekv.config import KvOptions
from edgekv.server.server import Server, ServerOptions
server = Server(ServerOptions(Path(sys.argv[2]), kv=KvOptions(mode="exact", attention_device="emulated"), n_ctx=json.loads(sys.argv[4]), n_threads=1))
emulator = ctypes.CDLL(sys.argv[1])
has = emulator.edgekv_emulator_has
has.argtypes = [ctypes.c_size_t] * 2 + [ctypes.c_bool, ctypes.c_size_t]
asked = server.context.n_ctx
has(8 << 30, 0, False, int(server.context.device.home * float(sys.argv[3])))
emulator.edgekv_emulator_pins_later(ctypes.c_bool(sys.argv[5] == "later"))
with server:
    print(json.dumps([asked, server.context.n_ctx, server.context.note, server.runtime is not None, server.answering]))
"""


@pytest.mark.parametrize(("when", "pinned", "asked", "share"), [
    ("at once", 0.8, None, 2), ("at once", 0.4, None, 4), ("at once", 0.8, 8192, None), ("at once", 0.0, None, None),
    ("later", 0.4, None, 1), ("later", 0.0, None, None)])
def test_a_context_is_halved_until_its_rows_are_pinned(emulator, emulated_backend, synthetic, when: str, pinned: float, asked: int | None, share: int | None):
    """Of what the context takes the system pins a share. What was asked for, and where nothing is pinned, stays, and stock attention answers. Where rows are
    pinned as tokens come, a start needs the first of them."""
    done = beside_the_backend(emulated_backend, CODE, emulator, synthetic("llama", n_ctx_train=8192), pinned, json.dumps(asked), when)
    assert done.returncode == 0, done.stderr[-3000:]
    before, n_ctx, note, served, answers = json.loads(done.stdout.splitlines()[-1])
    assert before == 8192 and answers
    assert (n_ctx, served) == ((before, False) if share is None else (before // share, True)), done.stderr[-3000:]
    said = re.search(r"the context is [\d,]+ tokens: the system refused to pin K and V of 8,192 in host memory", done.stderr)
    assert (said is None) == (share in (None, 1)) and (note or "").startswith(said[0] if said else "")
