"""What a command imports before its model begins to load; the rest it imports meanwhile."""

import json
import subprocess
import sys

import pytest

MEANWHILE = {"httpx2", "rich", "prompt_toolkit", "llama_cpp", "http.client", "edgekv.serving.publisher", "edgekv.serving.shown"}
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


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["chat", "-p", "Hello"]], ids=["serve", "chat"])
def test_what_a_load_does_not_need_is_imported_beside_it(command, default_model, tmp_path):
    # from an empty folder: with -c, the current one comes first on the path
    done = subprocess.run([sys.executable, "-c", UNTIL_THE_LOAD, *command], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert not MEANWHILE & set(json.loads(done.stdout))
