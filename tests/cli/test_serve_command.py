"""`edgekv serve` as a program: its first lines and its end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from itertools import islice

import pytest
from support.program import EDGEKV

from edgekv.errors import EXIT_OK, EXIT_USAGE


@pytest.mark.parametrize(("number", "at_birth"), [
    (signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.SIG_DFL), (signal.SIGINT, signal.SIG_IGN)], ids=str)
def test_serve(environment, edgekv, default_model, number, at_birth, tmp_path):
    """`at_birth`: a script that starts the server with & makes it ignore SIGINT."""
    log = tmp_path / "server.log"
    server = subprocess.Popen(
        [*EDGEKV, "serve", "--port", "0", "--ctx", "512", "--alias", "smol", "--log-file", str(log), "--", "--metrics"],
        env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, at_birth),  # noqa: PLW1509 (as a shell does it; no thread runs yet)
    )
    try:
        needed, announced, example = (server.stderr.readline() for _ in range(3))
        assert re.match(r"needs \S+ \S+ \(weights 92.1 MiB, KV home 11.2 MiB.*\), \S+ GiB are free$", needed), needed
        assert re.search(r"^edgekv: takes \S+ \S+ \(weights 92.1 MiB, KV home 11.2 MiB.*\), \S+ GiB are free$", log.read_text(), re.M)
        url = re.search(r"serving smol at (http://127.0.0.1:\d+/v1) \(512 tokens of context, KV (?:exact|sparse: resolution 2,000, .*)\)", announced)[1]
        python = re.match(r"try: \S+ -c '(.*)'$", example)[1]
        assert url in python
        answer = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, timeout=120, check=True)
        assert answer.stdout.strip()
        port = url.split(":")[2].split("/")[0]
        second = edgekv("serve", "--port", port)
        assert second.returncode == EXIT_USAGE and f"port {port} on 127.0.0.1 is in use" in second.stderr
        server.send_signal(number)
        out, err = server.communicate(timeout=60)
        assert (server.returncode, out, err) == (EXIT_OK, "", "stopping\n")
    finally:
        server.kill()
        server.wait()


def test_serve_says_what_mode_sparse_has(environment, default_model):
    server = subprocess.Popen([*EDGEKV, "serve", "--port", "0", "--ctx", "1024", "--kv-budget", "2MiB", "--slots", "2"],
                              env={**environment, "EDGEKV_KV": "sparse", "EDGEKV_RESOLUTION": "16000"}, stderr=subprocess.PIPE,
                              text=True)
    try:
        announced = list(islice(server.stderr, 2))[-1]
        assert "(1,024 tokens of context for each of 2 slots, KV sparse: resolution 16,000, arena 2.0 MiB, cache 1.0 GiB of RAM)" in announced
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == EXIT_OK
    finally:
        server.kill()
        server.wait()


def test_serve_lists_the_options_of_the_server_below(edgekv):
    result = edgekv("serve", "--", "--help")
    assert result.returncode == EXIT_OK and "--slot-save-path" in result.stdout
