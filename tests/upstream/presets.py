"""A plugin for pytest beside upstream's tests: their servers are ours, on models of ours; nothing is fetched, and a test that hangs fails."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import requests
from support.vision import picture

# what theirs import to fetch models
sys.modules["wget"] = types.ModuleType("wget")
sys.modules["filelock"] = types.SimpleNamespace(FileLock=lambda path: contextlib.nullcontext())

import utils  # noqa: E402 - theirs

import edgekv.runtime.runtime  # noqa: E402, F401 - as the next three: imported once, not by each server
from edgekv.cli.main import main  # noqa: E402
from edgekv.server import keepers, publisher, server, server_options  # noqa: E402, F401
from upstream.models import options  # noqa: E402

MODE, MODELS = os.environ["UPSTREAM_MODE"], Path(os.environ["UPSTREAM_MODELS"])
MOST_S = 90


class Forked:
    """What theirs need of a Popen, for `edgekv serve` in a child of this process: imports take longer than the tests."""

    def __init__(self, words, stdout, env):
        self.returncode = None
        stdout.flush()
        self.pid = os.fork()
        if self.pid:
            return
        code = 70
        try:
            os.dup2(stdout.fileno(), 1)
            os.dup2(stdout.fileno(), 2)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            os.environ.clear()
            os.environ.update(env)
            # no second process that tries the options: wrong ones end the server
            server_options.try_extra = lambda *_: subprocess.CompletedProcess([], 0, server_options._LIVES, "")
            sys.argv = ["edgekv", "serve", *words]
            main()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self):
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout):
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("edgekv", timeout)
            time.sleep(0.02)

    def terminate(self, number=signal.SIGTERM):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.terminate(signal.SIGKILL)


def started(arguments, stdout, env, **more):
    """In the place of subprocess.Popen."""
    ours = not MODE.startswith("plain=")
    words = options(arguments[1:], MODELS, ours)
    print("tests: options", *words)
    if ours:
        return Forked(["--kv", MODE, *words], stdout, env)
    return subprocess.Popen([MODE.removeprefix("plain="), *words], stdout=stdout, stderr=stdout, env=env)


def picture_at(url):
    """In the place of a picture that they fetch, the same for an address at each start."""
    return types.SimpleNamespace(content=picture(len(url)), raise_for_status=lambda: None)


utils.ServerPreset.load_all = staticmethod(lambda: None)
utils.download_file = lambda url, output_file_path=None: str(MODELS / url.rpartition("/")[2])
got = requests.get
requests.get = lambda url, **more: picture_at(url) if url.startswith("https://huggingface.co/") else got(url, **more)
utils.match_regex = lambda regex, text: isinstance(text, str)  # they know what their models say
utils.subprocess = types.SimpleNamespace(**vars(subprocess) | {"Popen": started})
utils.time = types.SimpleNamespace(**vars(time) | {"sleep": lambda seconds: time.sleep(max(seconds, 0.05))})  # they ask a hundred times a second


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    def late(number, frame):
        raise TimeoutError(f"no end after {MOST_S} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(MOST_S)
    try:
        return (yield)
    finally:
        signal.alarm(0)
