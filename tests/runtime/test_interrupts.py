"""Signals and failures in the middle of a decode reach the caller, and the model goes on."""

import signal
import subprocess
import sys
from itertools import islice

import pytest

from edgekv import Llama

import llama_cpp

PROMPT = [260 + i % 40 for i in range(512)]

CHILD = f"""
import signal, sys
import edgekv
path, mode, what = sys.argv[1:]
llama = edgekv.Llama(path, kv=mode, n_ctx=1024, n_batch=512, n_ubatch=32, verbose=False)
prompt, seen = {PROMPT}, []

def late(number, frame):
    raise TimeoutError("late")

def wait(ubatch):
    seen.append(ubatch.n_tokens)
    if len(seen) == 3:
        if what == "int":
            print("reading", flush=True)
            sys.stdin.read()
        else:
            signal.alarm(1)
            signal.pause()

signal.signal(signal.SIGALRM, late)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
fresh = list(zip(range(8), llama.generate(prompt, temp=0)))
llama.reset()
llama.kv.observers.append(wait)
try:
    next(llama.generate(prompt, temp=0))
except (KeyboardInterrupt, TimeoutError) as error:
    print(type(error).__name__, len(seen), llama.n_tokens, flush=True)
assert list(zip(range(8), llama.generate(prompt, temp=0))) == fresh
print("same", llama.kv.n_positions >= 512)
"""


@pytest.mark.parametrize("mode", ["exact", "sparse", "off"])
@pytest.mark.parametrize("what", ["int", "alarm"])
def test_a_signal_ends_the_reading_of_a_prompt(synthetic, mode, what):
    """Its exception comes where the caller called, no further ubatch is computed, and the same prompt then has the same answer."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, synthetic("llama"), mode, what], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
    if what == "int":
        assert child.stdout.readline() == "reading\n", child.stderr.read()
        child.send_signal(signal.SIGINT)
        kind = child.stdout.readline().split()
        rest, trouble = child.communicate()
    else:
        rest, trouble = child.communicate()
        first, _, rest = rest.partition("\n")
        kind = first.split()
    assert kind == ["KeyboardInterrupt" if what == "int" else "TimeoutError", "3", "0"], trouble
    assert rest == "same True\n" and child.returncode == 0, trouble


@pytest.fixture
def llama(synthetic):
    opened = Llama(synthetic("llama"), kv="exact", n_ctx=1024, n_batch=512, n_ubatch=32, verbose=False)
    yield opened
    opened.close()


def answer(llama: Llama) -> list[int]:
    return list(islice(llama.generate(PROMPT, temp=0), 6))


def test_an_interrupted_answer_does_not_lose_its_first_token(llama):
    fresh = answer(llama)
    llama.reset()

    def interrupt(ubatch):
        if ubatch.n_tokens == 1:
            raise KeyboardInterrupt

    llama.kv.observers.append(interrupt)
    with pytest.raises(KeyboardInterrupt):
        answer(llama)
    llama.kv.observers.clear()
    assert answer(llama) == fresh


def test_an_interrupt_comes_also_after_an_observer_asked_another_model(llama, synthetic):
    def interrupt(ubatch):
        other.eval(PROMPT[:2])
        raise KeyboardInterrupt

    llama.kv.observers.append(interrupt)
    with Llama(synthetic("llama"), kv="exact", n_ctx=64) as other, pytest.raises(KeyboardInterrupt):
        llama.eval(PROMPT)


def test_a_users_abort_callback_stays(llama):
    """One that stops the decode does so also after an interrupt."""
    asked = []
    callback = llama_cpp.ggml_abort_callback(lambda _: asked.append(1) or False)
    llama_cpp.llama_set_abort_callback(llama.ctx, callback, None)

    def interrupt(ubatch):
        raise KeyboardInterrupt

    llama.kv.observers.append(interrupt)
    with pytest.raises(KeyboardInterrupt):
        llama.eval(PROMPT)
    llama.kv.observers.clear()
    asked.clear()
    llama.eval(PROMPT)
    assert asked and llama.n_tokens == len(PROMPT)


def test_an_observer_that_raises_is_named_once_and_called_no_more(llama, caplog):
    seen = []

    def broken(ubatch):
        seen.append("broken")
        raise ValueError("broken")

    llama.kv.observers.append(broken)
    llama.kv.observers.append(lambda ubatch: seen.append("whole"))
    llama.eval(PROMPT)
    assert seen.count("broken") == 1 and seen.count("whole") == len(PROMPT) // 32
    assert caplog.text.count("called no more") == 1 and "broken" in caplog.text


def test_mode_off_calls_nothing_of_python(llama, monkeypatch):
    """And counts its tokens all the same."""
    called = []
    monkeypatch.setattr(llama.kv, "step", lambda: called.append(1))
    llama.kv.mode = "off"
    llama.eval(PROMPT)
    assert not called and llama.kv.n_tokens == len(PROMPT)
    llama.kv.mode = "exact"
    assert llama.kv.stats.n_tokens == len(PROMPT)
    llama.eval(PROMPT[:32])
    assert called


LEFT = """
import os, select, sys, threading
import edgekv
llama, began, (gate, key) = edgekv.Llama(sys.argv[1], kv="exact", n_ctx=1024), threading.Event(), os.pipe()

def wait(ubatch):
    began.set()
    os.read(gate, 1)

class Last:
    def __del__(self, open=open, write=os.write, select=select.select):
        write(key, b"x")  # Python has ended, and ends each thread that enters it
        while select([gate], [], [], 0)[0] or open(state).read().rpartition(")")[2].split()[0] != "S":
            pass

llama.kv.observers.append(wait)
thread = threading.Thread(target=llama.eval, args=[[300] * 4], daemon=True)
thread.start()
began.wait()
state, select.last = f"/proc/self/task/{thread.native_id}/stat", Last()  # the thread keeps this module's names
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel whether the thread sleeps")
def test_python_ends_beside_a_thread_that_decodes(synthetic):
    """Its thread then waits for the process's end: ggml's handler of std::terminate would write a trace."""
    done = subprocess.run([sys.executable, "-c", LEFT, synthetic("llama")], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
