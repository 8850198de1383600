"""What a command imports before its model begins to load; the rest it imports meanwhile."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.other_version import other_version

from edgekv.common.errors import AbiMismatch

MEANWHILE = {"httpx2", "rich", "prompt_toolkit", "llama_cpp", "http.client", "edgekv.server.publisher", "edgekv.server.shown", "numpy", "gguf",
             "importlib.metadata", "edgekv.policies", "edgekv.runtime.runtime", "edgekv.server.prefixes"}
"""Each takes a noticeable part of the time in which a small model loads."""

UNTIL_THE_LOAD = """
import json, os, sys, threading
start = threading.Thread.start
def begins(thread):
    if thread.name == "llama-server":
        print(json.dumps(list(sys.modules)), flush=True)
        os._exit(0)
    start(thread)
threading.Thread.start = begins
from edgekv.cli.main import main
main()
"""

UNTIL_READY = """
import json, os, sys
from edgekv.server.server import Server
start = Server.start
def ready(server):
    start(server)
    print(json.dumps(list(sys.modules)), flush=True)
    os._exit(0)
Server.start = ready
from edgekv.cli.main import main
main()
"""


def run(program: str, folder: Path, *command: str) -> Any:
    """The JSON that a program prints."""
    # from an empty folder: with -c, the current one comes first on the path
    done = subprocess.run([sys.executable, "-c", program, *command], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                          check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


OTHER_VERSION = """
import os, sys
from edgekv.server.server import Server
abandon = Server.abandon
def left(server):
    abandon(server)
    os.write(2, b"the model's thread goes on")
Server.abandon = left
sys.path.insert(0, "other")
from edgekv.cli.main import main
main()
"""

IMPORTED_LATE = """
import json, sys, threading
from pathlib import Path
from edgekv.config import KvOptions
from edgekv.runtime import attachments
from edgekv.server.server import Server, ServerOptions
asked, set_defaults, found = threading.Event(), attachments.set_defaults, []

def defaults(options, began=None, ready=None):
    set_defaults(options, began, ready and (lambda: (asked.set(), ready())))

class Searched:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread().name == "llama-server":
            found.append(name)
        elif name == "edgekv.server.keepers":
            asked.wait()

attachments.set_defaults = defaults
sys.meta_path.insert(0, Searched())
with Server(ServerOptions(Path(sys.argv[1]), kv=KvOptions(mode=sys.argv[2], evict_to=256), n_ctx=512)) as server:
    print(json.dumps([found, server.runtime is not None]))
"""


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["chat", "-p", "Hello"]], ids=["serve", "chat"])
def test_what_a_load_does_not_need_is_imported_beside_it(command, default_model, tmp_path):
    assert not MEANWHILE & set(run(UNTIL_THE_LOAD, tmp_path, *command))


NOT_FOR_THIS = {"gguf", "edgekv.policies", "edgekv.runtime.wiring", "edgekv.server.recalling"}
"""Of exchanges that are recalled, and of modes with tiers."""


def test_what_a_chat_asks_its_server_with_is_imported_before_the_server_is_ready(default_model, tmp_path):
    """And what other options need is not."""
    imported = set(run(UNTIL_READY, tmp_path, "chat", "-p", "Hello"))
    assert {"rich", "httpcore2"} <= imported and not NOT_FOR_THIS & imported


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["chat", "-p", "Hello"]], ids=["serve", "chat"])
def test_a_load_ends_where_the_versions_do_not_fit(command, default_model, tmp_path):
    """What it says after its end reaches nobody."""
    other_version(tmp_path / "other")
    done = subprocess.run([sys.executable, "-c", OTHER_VERSION, *command], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                          check=False)
    assert done.returncode == AbiMismatch.exit_code and not done.stdout and "goes on" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("edgekv: llama-cpp-python 0.3.35 is installed")


@pytest.mark.parametrize("mode", ["exact", "evict"])
def test_a_context_waits_for_what_is_imported_beside_its_load(mode, synthetic, tmp_path):
    """The import begins when the model is there, and the server's thread imports nothing meanwhile: two that do wait for each other's modules."""
    assert run(IMPORTED_LATE, tmp_path, str(synthetic()), mode) == [[], True]
