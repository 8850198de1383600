"""Threads that wait, for each other or for the next graph, leave the processor to others, however a program came to load the libraries. ggml's own
counter says whether they slept, and their own clocks what they took: no variable, and no clock on the wall."""

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

SPUN = """
import os, sys, threading, time

def state(thread):
    try:
        with open(f"/proc/self/task/{thread}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"

def seconds(thread):
    try:
        return time.clock_gettime(~thread << 3 | 6)  # of the processor, by the thread's own clock
    except OSError:
        return 0.0

def spun():  # seconds of the processor that one of the other threads takes until all sleep, at most
    others = {int(thread) for thread in os.listdir("/proc/self/task")} - {threading.get_native_id()}
    before = {thread: seconds(thread) for thread in others}
    while any(state(thread) in "RD" for thread in others):
        os.sched_yield()
    return max(seconds(thread) - before[thread] for thread in others)
"""

PROGRAM = SPUN + """
%s
llama = Llama(sys.argv[1], n_ctx=256, n_threads=2, n_threads_batch=2, verbose=False)
found = []
for token in range(260, 268):
    llama.eval([token])
    found.append(spun())
print(min(found))
"""

SERVER = SPUN + """
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from edgekv.server.server import Server, ServerOptions
from support.clients import post
with Server(ServerOptions(Path(sys.argv[1]), n_ctx=2048, %s)) as server:
    found = []
    server.runtime.observers.append(lambda *_: found.append(spun()))  # called behind a graph
    post(server.url, "/completion", {"prompt": [260] * %d, "n_predict": %d, "ignore_eos": True})
assert len(found) > 2
print(min(found))
"""

BETWEEN_GRAPHS = {
    "edgekv.Llama": PROGRAM % IMPORTS["edgekv.Llama"],
    "llama_cpp": PROGRAM % IMPORTS["llama_cpp"],
    "a server's tokens": SERVER % ("n_threads=2", 4, 8),
    "a server's prompts": SERVER % ("n_threads=1, extra=('--threads-batch', '2')", 1500, 1),
}

POLLING_S = 1024 * 128 * 50 / 6e9
"""A thread that polls as ggml's do by default takes longer: a cycle for each turn of its loop, on a processor faster than any."""

FORK = """
import signal
llama.eval([5])
child = os.fork()
if child == 0:
    signal.alarm(120)  # a child that hangs ends, and says so
    llama.eval([6])
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""

FORK_BESIDE_A_SLEEPER = """
import ctypes, os, signal, sys, threading
lib = ctypes.CDLL(os.path.join(sys.argv[2], "libggml-base.so"))
lib.edgekv_times_asleep.restype = ctypes.c_long
word = ctypes.c_int(0)

def sleeper():
    before = lib.edgekv_times_asleep()
    thread = threading.Thread(target=lib.edgekv_wait_while, args=(ctypes.byref(word), word.value))
    thread.start()
    while lib.edgekv_times_asleep() == before:
        os.sched_yield()
    return thread

def wake(thread):
    word.value += 1
    lib.edgekv_wake(ctypes.byref(word))
    thread.join()

parents = sleeper()
child = os.fork()
if child == 0:
    signal.alarm(120)
    for _ in range(3):
        wake(sleeper())
    os._exit(0)
print(os.waitpid(child, 0)[1])
wake(parents)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a process is kept on one processor")


def run(program: str, model: Path) -> list[str]:
    tests = str(Path(__file__).resolve().parent.parent)
    done = subprocess.run([sys.executable, "-c", program, str(model), str(edgekv.lib_folder), tests], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("imports", IMPORTS.values(), ids=IMPORTS.keys())
def test_threads_that_share_a_processor_sleep_for_each_other(synthetic, imports):
    """Two threads on one processor: whoever comes first to a barrier sleeps, or the other never comes. In each token once at the least."""
    assert int(run(DECODE % imports, synthetic())[0]) >= 8


@pytest.mark.parametrize("program", BETWEEN_GRAPHS.values(), ids=BETWEEN_GRAPHS.keys())
def test_threads_sleep_between_two_graphs(synthetic, program):
    """llama.cpp's server makes threads of its own, which poll unless it is told not to. The least of several graphs: other work may delay a thread's
    way to sleep, and never shortens its polling."""
    assert float(run(program, synthetic("llama"))[0]) < POLLING_S


def test_a_fork_has_threads_of_its_own(synthetic):
    """A fork has none of its parent's threads, and must not wait for them."""
    assert run(DECODE % IMPORTS["edgekv.Llama"] + FORK, synthetic())[1] == "0"


def test_a_fork_does_not_wait_for_a_sleeper_of_its_parent(synthetic):
    """One that slept for the same word as its own: it is not there to be woken, and to leave."""
    assert run(FORK_BESIDE_A_SLEEPER, synthetic()) == ["0"]


def test_no_library_of_ours_needs_openmp():
    """So that no variable decides how threads wait, which would have to be set before some library of the program's is loaded."""
    libraries = list(Path(str(edgekv.lib_folder)).glob("*.so"))
    assert len(libraries) > 5
    assert not [path.name for path in libraries if any(name in path.read_bytes() for name in (b"libgomp", b"libomp", b"libiomp"))]
