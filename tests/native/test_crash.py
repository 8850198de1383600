"""How native code ends the process: never without a sentence. Each in a process of its own."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.serve_process import serving

_OWN = """
import ctypes, faulthandler, os, signal, sys
import edgekv
edgekv.owns_process = {owns}
from edgekv import _native
_native.prepare()
from edgekv._native import crash
{then}
"""


def ends(then: str, owns: bool = True) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", _OWN.format(owns=owns, then=then)], capture_output=True, text=True, timeout=60)


def told(done: subprocess.CompletedProcess) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("edgekv: ")]


@pytest.mark.parametrize("number", [signal.SIGILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT])
def test_a_signal_is_told_once_and_still_ends_the_process(number: signal.Signals):
    done = ends(f"os.kill(os.getpid(), {int(number)})")
    assert done.returncode == -number
    assert len(told(done)) == 1 and number.name in told(done)[0]
    assert "Fatal Python error" in done.stderr  # faulthandler: where it was


def test_a_failed_assertion_of_ggml_is_quoted():
    done = ends("""
from edgekv._native import lib_dir
ggml = ctypes.CDLL(next(str(path) for path in lib_dir().iterdir() if path.stem == "libggml-base"))
ggml.ggml_abort(b"here.c", 12, b"the sky is %s", b"green")""")
    assert done.returncode == -signal.SIGABRT
    assert told(done) == ["edgekv: llama.cpp met a state that it cannot handle: here.c:12: the sky is green"]


def test_an_exception_that_nobody_catches():
    done = ends("ctypes.CDLL('libstdc++.so.6')._ZSt9terminatev()")
    assert done.returncode == -signal.SIGABRT
    assert told(done) == ["edgekv: native code ended the process (std::terminate)"]


def test_the_sentence_goes_to_the_screen_and_the_details_to_the_log(tmp_path: Path):
    log = tmp_path / "server.log"
    done = ends(f"""
crash.details_in({str(log)!r})
os.dup2(os.open({str(log)!r}, os.O_WRONLY | os.O_CREAT), 2)
os.kill(os.getpid(), signal.SIGSEGV)""")
    assert told(done) and told(done)[0].endswith(f"; details are in {log}") and "Fatal Python error" not in done.stderr
    assert "Fatal Python error: Segmentation fault" in log.read_text()


def test_a_library_leaves_signals_alone():
    done = ends("assert not faulthandler.is_enabled(); os.kill(os.getpid(), signal.SIGSEGV)", owns=False)
    assert done.returncode == -signal.SIGSEGV and done.stderr == ""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_serve_tells_how_it_ended(default_model: Path, tmp_path: Path):
    log = tmp_path / "serve.log"
    with serving(tmp_path, str(default_model), "--ctx", "512", "--log-file", str(log)) as served:
        served.process.send_signal(signal.SIGILL)
        rest = served.process.stderr.read()
        assert served.process.wait() == -signal.SIGILL
    assert f"SIGILL); `edgekv doctor` says what was built; details are in {log}" in rest
    assert "Fatal Python error: Illegal instruction" in log.read_text()
