"""Threads that wait for each other leave the processor to others, however a program came to load the libraries. ggml's own counter says whether
they slept: no variable, and no clock."""

import subprocess
import sys
from pathlib import Path

import pytest

import edgekv

IMPORTS = {
    "edgekv.Llama": "import edgekv; Llama = edgekv.Llama",
    "numpy first": "import numpy; import edgekv; Llama = edgekv.Llama",
    "llama_cpp": "import edgekv; from llama_cpp import Llama",
    "llama_cpp, told to spin": "import os; os.environ['OMP_WAIT_POLICY'] = 'active'; import edgekv; from llama_cpp import Llama",
}

DECODE = """
import ctypes, os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
%s
llama = Llama(sys.argv[1], n_ctx=256, n_threads=2, n_threads_batch=2, verbose=False)
times_asleep = ctypes.CDLL(os.path.join(sys.argv[2], "libggml-base.so")).edgekv_times_asleep
times_asleep.restype = ctypes.c_long
llama.eval([1, 2, 3])
before = times_asleep()
for token in range(8):
    llama.eval([token])
print(times_asleep() - before)
"""

FORK = """
llama.eval([5])
child = os.fork()
if child == 0:
    llama.eval([6])
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a process is kept on one processor")


def run(program: str, model: Path) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program, str(model), str(edgekv.lib_folder)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("imports", IMPORTS.values(), ids=IMPORTS.keys())
def test_threads_that_share_a_processor_sleep_for_each_other(synthetic, imports):
    """Two threads on one processor: whoever comes first to a barrier sleeps, or the other never comes. In each token once at the least."""
    assert int(run(DECODE % imports, synthetic())[0]) >= 8


def test_a_fork_has_threads_of_its_own(synthetic):
    """A fork has none of its parent's threads, and must not wait for them."""
    assert run(DECODE % IMPORTS["edgekv.Llama"] + FORK, synthetic())[1] == "0"


def test_no_library_of_ours_needs_openmp():
    """So that no variable decides how threads wait, which would have to be set before some library of the program's is loaded."""
    libraries = list(Path(str(edgekv.lib_folder)).glob("*.so"))
    assert len(libraries) > 5
    assert not [path.name for path in libraries if any(name in path.read_bytes() for name in (b"libgomp", b"libomp", b"libiomp"))]
