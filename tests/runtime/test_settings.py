"""Settings that others read, told by their readers: the context, libedgekv, llama.cpp's log, the processor. native/README.md lists them all."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support.clients import shown_at
from support.serve_process import serving

from edgekv.config import KvOptions
from edgekv.llama import Llama
from edgekv.measure.contexts import decoder_of
from edgekv.server.server import Server, ServerOptions

import llama_cpp

ASKED = ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_threads", "n_threads_batch")
Said = dict[str, int]


def said_by(ctx: object) -> Said:
    return {name: getattr(llama_cpp, f"llama_{name}")(ctx) for name in ASKED}


@contextmanager
def of_llama(model: Path) -> Iterator[Said]:
    llama = Llama(str(model), n_ctx=512, n_batch=128, n_ubatch=64, n_threads=3, n_threads_batch=2, verbose=False)
    yield said_by(llama.ctx)
    llama.close()


@contextmanager
def of_decoder(model: Path) -> Iterator[Said]:
    """As `bench -t 3` computes."""
    with decoder_of(model, n_ctx=512, n_batch=128, n_ubatch=64, n_threads=1) as decoder:
        decoder.set_threads(3)
        yield said_by(decoder.llama.ctx)


def of_server(**options: object) -> Callable[[Path], object]:
    @contextmanager
    def run(model: Path) -> Iterator[Said]:
        with Server(ServerOptions(model, **{"n_ctx": 512, "n_threads": 3} | options)) as server:
            assert [slot["n_ctx"] for slot in shown_at(server, "/slots")] == [512] * server.options.n_slots
            assert {(layer.type_k, layer.type_v) for layer in server.runtime.layers} == {server.options.kv.cache.names}
            assert all(layer.hooked for layer in server.runtime.layers), "with flash attention"
            yield said_by(ctypes.c_void_p(server.runtime.address))

    return run


@pytest.mark.parametrize(("run", "said"), {
    "edgekv.Llama": (of_llama, (512, 128, 64, 1, 3, 2)),
    "a decoder": (of_decoder, (512, 128, 64, 1, 3, 3)),
    "a server": (of_server(), (512, 512, 512, 1, 3, 3)),
    "its slots": (of_server(n_slots=2, kv=KvOptions(mode="exact", type_k="q8_0", type_v="q4_0")), (1024, 512, 512, 2, 3, 3)),
    "in mode evict": (of_server(kv=KvOptions(mode="evict", evict_to=256)), (512, 64, 64, 1, 3, 3)),
    "llama.cpp's options": (of_server(extra=("--threads-batch", "2", "--batch-size", "128", "--ubatch-size", "64")), (512, 128, 64, 1, 3, 2)),
}.values())
def test_a_context_says_what_it_was_asked_for(synthetic, run, said):
    with run(synthetic("llama")) as found:
        assert tuple(found[name] for name in ASKED) == said


def test_the_command_line_reaches_the_servers_threads(synthetic, tmp_path):
    log = tmp_path / "log"
    with serving(tmp_path, str(synthetic("llama")), "--threads", "3", "--ctx", "512", "--log-file", str(log)):
        assert "threadpool init, n_threads = 3\n" in log.read_text()


# ---- variables of libedgekv -------------------------------------------------------------------------------------------------------

FIRST_USE = {
    "edgekv.Llama": "edgekv.Llama(sys.argv[1], n_ctx=256, verbose=False)",
    "llama_cpp": "import llama_cpp; from edgekv.runtime import attachments; llama_cpp.Llama(sys.argv[1], n_ctx=256, verbose=False)",
    "a server": """
from pathlib import Path
from edgekv.server.server import Server, ServerOptions
with Server(ServerOptions(Path(sys.argv[1]), n_ctx=256, n_threads=1)): pass
""",
}

LATE = """
import os, sys
import edgekv
os.environ |= {"EDGEKV": "0", "EDGEKV_ISA": "portable"}
%s
from edgekv import _native
os.environ |= {"EDGEKV": "1", "EDGEKV_ISA": "no such set"}  # too late
print(_native.info()["enabled"], _native.info()["isa"])
"""


@pytest.mark.parametrize("use", FIRST_USE.values(), ids=FIRST_USE.keys())
def test_libedgekv_reads_its_variables_at_the_first_use(synthetic, use):
    """Not at `import edgekv`, and once."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EDGEKV")}
    done = subprocess.run([sys.executable, "-c", LATE % use, str(synthetic("llama"))], env=clean, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "portable"]


# ---- llama.cpp's log --------------------------------------------------------------------------------------------------------------

QUIET = "Llama(sys.argv[1], n_ctx=256, verbose=False).eval([260, 261])"
SERVED = """
from pathlib import Path
from edgekv.server.server import Server, ServerOptions
with Server(ServerOptions(Path(sys.argv[1]), n_ctx=256, n_threads=1)): pass
"""


@pytest.mark.parametrize("imports", ["import edgekv; Llama = edgekv.Llama", "import edgekv; from llama_cpp import Llama"])
@pytest.mark.parametrize("before", ["", SERVED], ids=["alone", "after a server"])
def test_a_quiet_model_says_nothing_and_a_loud_one_does(synthetic, imports, before):
    """A server in the same process takes the log and gives it back."""
    def says(code: str) -> str:
        program = f"import sys; {imports}\n{before}\n{code}"
        done = subprocess.run([sys.executable, "-c", program, str(synthetic("llama"))], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 and not done.stdout, done.stderr
        return done.stderr

    assert says(QUIET) == ""
    assert "llama_model_loader: " in says(QUIET.replace("False", "True"))


# ---- the processor ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["exact", "sparse", "evict"])
def test_a_callers_small_numbers_stay_numbers(synthetic, mode):
    """Kernels count values below a float's normal range as zero (`SubnormalsAreZero`), on threads of which one is the caller's."""
    kv = KvOptions(mode=mode, **({"evict_to": 256} if mode == "evict" else {"exact_tokens": 0}))
    llama = Llama(str(synthetic("llama")), kv_options=kv, n_ctx=512, n_threads=2, verbose=False)
    small, inside = np.float32([1e-39]), []
    llama.kv.observers.append(lambda *_: inside.append(small * np.float32(0.5)))
    llama.eval([260 + i % 50 for i in range(200)])
    llama.eval([300])
    assert len(inside) > 1 and all(inside) and (small * np.float32(0.5)).all()
    llama.close()
