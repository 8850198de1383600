"""A server whose K and V are pinned as tokens come: a conversation whose rows the system does not pin ends with an error, and others go on."""

import json
import subprocess
import sys

from support import backend_process

CODE = """
import ctypes, json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from support.backend_process import _load
_load(Path(sys.argv[2]))
from support.clients import send
from edgekv.config import KvOptions
from edgekv.server.server import Server, ServerOptions
emulator = ctypes.CDLL(sys.argv[3])
emulator.edgekv_emulator_has.argtypes = [ctypes.c_size_t] * 2 + [ctypes.c_bool, ctypes.c_size_t]
emulator.edgekv_emulator_pinned.restype, emulator.edgekv_emulator_pinned.argtypes = ctypes.c_size_t, [ctypes.c_bool]
options = ServerOptions(Path(sys.argv[4]), kv=KvOptions(mode="exact", attention_device="emulated", kv_vram=1 << 28), n_ctx=4096, n_slots=2, n_threads=1)

def ask(n):
    reply = send(server.url, "/completion", {"prompt": [260 + i % 90 for i in range(n)], "n_predict": 4, "temperature": 0, "cache_prompt": False})
    return reply.status, reply.body.get("tokens_predicted"), reply.body.get("error", {}).get("message", "")

with Server(options) as server:
    seen = [ask(60)]
    emulator.edgekv_emulator_has(8 << 30, 0, False, emulator.edgekv_emulator_pinned(False))
    seen += [ask(1500), ask(60)]
    emulator.edgekv_emulator_has(8 << 30, 0, False, 1 << 62)
    seen.append(ask(1500))
print(json.dumps(seen))
"""


def test_a_conversation_that_the_system_does_not_pin_ends(emulator, emulated_backend, synthetic):
    done = subprocess.run([sys.executable, "-c", CODE, str(backend_process.SCRIPT.parents[1]), str(emulated_backend), str(emulator),
                           str(synthetic("llama", n_ctx_train=8192))], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    short, refused, again, whole = json.loads(done.stdout.splitlines()[-1])
    assert short[:2] == again[:2] == whole[:2] == [200, 4], (short, again, whole)
    assert refused[0] == 503 and refused[2].startswith("there is no memory for K and V of more tokens: this conversation ends here, others go on")
