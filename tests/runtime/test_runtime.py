"""Attaching, detaching, defaults, several contexts, and handshakes that refuse another build."""

import ctypes
import importlib.metadata
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from support.contexts import Context, attached, n_hooked
from support.other_version import other_version

from edgekv import Llama, _native
from edgekv.common.enums import KvMode
from edgekv.common.errors import EdgeKVError
from edgekv.config import KvOptions
from edgekv.runtime import attachments

import llama_cpp

ROOT = Path(__file__).resolve().parents[2]


def test_any_context_can_be_attached_later(synthetic):
    context = Context(synthetic("llama"))
    assert attachments.find(context.address) is None, "no defaults in force: the context hook leaves it alone"
    context.decode(range(260, 300), range(40), [0] * 40)
    run = attachments.attach(context.address, KvOptions())
    assert attachments.find(context.address) is run and run in attachments.live() and run.address == context.address
    assert attachments.attach(context.address, KvOptions(mode="off")) is run and run.mode is KvMode.OFF
    run.mode = "exact"
    context.decode([300], [40], [0])
    assert run.stats.n_ubatches_hooked == 1
    run.detach()
    assert run.closed and attachments.find(context.address) is None
    assert np.isfinite(context.decode([301], [41], [0])).all(), "it goes on stock"
    context.close()


def test_contexts_are_independent(synthetic):
    """Two threads decode two models at once, in different modes."""
    paths = synthetic("llama", n_head=6, n_head_kv=2), synthetic("qwen3")
    expected = [[], []]
    found = [[], []]

    def work(context: Context, out: list) -> None:
        context.decode(range(260, 340), range(80), [0] * 80)
        out.extend(context.decode([270 + i], [80 + i], [0])[0] for i in range(20))

    for i, path in enumerate(paths):
        with attached(path, KvOptions(mode=("exact", "off")[i])) as (context, _):
            work(context, expected[i])
    with attached(paths[0], KvOptions()) as (one, first), attached(paths[1], KvOptions(mode="off")) as (two, second):
        threads = [threading.Thread(target=work, args=(context, found[i])) for i, context in enumerate((one, two))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert first.stats.n_ubatches_hooked == 21 and second.stats.n_ubatches_hooked == 0
    for i in range(2):
        np.testing.assert_array_equal(np.array(expected[i]), np.array(found[i]))


def test_the_mode_belongs_to_the_thread_that_decodes(synthetic):
    """No other thread may change the mode while a step is computed or observed. The thread that decodes may, and between steps any
    thread."""
    refused: list[str] = []
    with ThreadPoolExecutor(1) as pool, attached(synthetic("llama"), KvOptions(mode="exact"), n_seq=1) as (context, run):
        def elsewhere(*_) -> None:
            changes = partial(setattr, run, "mode", "sparse"), lambda: run.configure(run.options.with_(mode="sparse", sample_budget=50))
            refused.extend(str(pool.submit(change).exception()) for change in changes)

        context.decode(range(260, 340), range(80), [0] * 80)
        run.observers.append(elsewhere)
        context.decode([270], [80], [0])
        assert len(refused) == 2 and all("decodes on another thread" in sentence for sentence in refused)
        assert run.mode is KvMode.EXACT and run.options.mode is KvMode.EXACT and run.options.selection == KvOptions().selection

        run.observers.clear()
        run.observers.append(lambda step: setattr(run, "mode", "off"))
        context.decode([271], [81], [0])
        assert run.mode is KvMode.OFF and n_hooked(run) == 3
        run.observers.clear()
        context.decode([272], [82], [0])
        assert n_hooked(run) == 3, "from the next step on"

        elsewhere()
        assert refused[2:] == ["None"] * 2 and run.mode is KvMode.SPARSE, "nothing decodes"


def test_llama_is_a_drop_in(synthetic):
    """The methods and results are those of llama_cpp.Llama with flash attention, bit for bit with kv off."""
    path = str(synthetic("llama"))
    stock = llama_cpp.Llama(path, n_ctx=512, verbose=False, flash_attn=True, logits_all=True)
    ours = Llama(path, n_ctx=512, verbose=False, kv="off", logits_all=True)
    assert ours.kv.mode is KvMode.OFF and isinstance(ours, llama_cpp.Llama)
    text = {"prompt": "abc def", "max_tokens": 12, "temperature": 0.0, "logprobs": 2}
    assert stock(**text)["choices"] == ours(**text)["choices"]
    assert stock.tokenize(b"hello") == ours.tokenize(b"hello")
    ours.close()
    with pytest.raises(EdgeKVError, match="closed"):
        _ = ours.kv


def test_a_prompt_that_goes_back_behind_the_window_is_read_again(synthetic, caplog):
    """With windows as small as llama.cpp's own programs have them; the answer is that of a new context."""
    path = str(synthetic("gemma2"))
    words = [10 + i % 200 for i in range(1400)]
    prompts = [words, words + [9, 8, 7], words[:400] + [3, 2, 1]]

    def answers(llama: Llama, prompt: list[int]) -> list[int]:
        return list(islice(llama.generate(prompt, temp=0.0), 8))

    with caplog.at_level("INFO", logger="edgekv"):
        ours = Llama(path, n_ctx=2048, verbose=False, kv="exact")
        said = []
        for prompt in prompts:
            assert answers(ours, prompt) == answers(Llama(path, n_ctx=2048, verbose=False, kv="exact"), prompt)
            said.append(caplog.text.count("beyond the window"))
    assert said == [0, 0, 1], "only the last one goes back"


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True)


def test_llama_cpp_on_other_libraries_is_refused(tmp_path):
    """llama_cpp was imported first and brought libraries of its own: one sentence, not two llama.cpps in one process."""
    done = python("import sys, types; m = types.ModuleType('llama_cpp.llama_cpp'); "
                  "m._lib = types.SimpleNamespace(_name='/elsewhere/libllama.so'); "
                  "sys.modules['llama_cpp.llama_cpp'] = m; import edgekv.runtime.runtime")
    assert done.returncode != 0 and "AbiMismatch: llama_cpp was imported before edgekv and runs on /elsewhere" in done.stderr


@pytest.mark.parametrize("used", ["import edgekv.runtime.runtime", "import edgekv; edgekv.Llama"])
def test_another_llama_cpp_version_is_refused(used, tmp_path):
    done = python(f"import sys; sys.path.insert(0, {str(other_version(tmp_path))!r}); {used}")
    assert done.returncode != 0 and "AbiMismatch: llama-cpp-python 0.3.35 is installed, EdgeKV is built for 0.3.36" in done.stderr


def test_llama_cpp_runs_on_our_libraries():
    info = _native.info()
    assert Path(llama_cpp.llama_cpp._lib._name).resolve().parent == _native.lib_dir().resolve()
    pin = dict(line.split(" = ") for line in (ROOT / "patches" / "UPSTREAM").read_text().splitlines() if " = " in line)
    assert info["upstream"] == f"{pin['package']} {pin['version']} (llama.cpp {pin['commit']})"
    assert pin["version"] == _native.LLAMA_CPP_PYTHON == info["llama_cpp_python"]
    assert f"llama-cpp-python=={pin['version']}" in importlib.metadata.requires("edgekv")
    assert {"libllama", "libedgekv", "libllama-server-impl"} <= {name.split(".")[0] for name in info["libraries"]}


def test_llama_cpp_may_follow_the_import_of_edgekv():
    """The README's order of imports works in wheels and editable installs, before anything of edgekv is used and without the native
    module."""
    done = subprocess.run(
        [sys.executable, "-c", "import edgekv, llama_cpp, sys; print(llama_cpp.llama_cpp._lib._name, 'edgekv._native' in sys.modules)"],
        env={name: value for name, value in os.environ.items() if name != "LLAMA_CPP_LIB_PATH"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    name, used = done.stdout.split()
    assert Path(name).resolve().parent == _native.lib_dir().resolve() and used == "False"


def test_the_patch_series_is_sound():
    """Patches apply, reverse and apply again to the pinned sdist, where it is at hand."""
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgekv" / "llama_cpp_python-0.3.36.tar.gz"
    if not kept.is_file():
        pytest.skip("the pinned sdist is not in the cache folder")
    done = subprocess.run([sys.executable, str(ROOT / "patches" / "apply.py"), "--check"], capture_output=True, text=True)
    n_patches = len((ROOT / "patches" / "series").read_text().split())
    assert done.returncode == 0 and f"{n_patches} patches apply, reverse and apply again" in done.stdout, done.stderr

def test_threads_that_open_models_at_once_get_what_they_asked_for(synthetic, monkeypatch):
    """All four have named their options before one of them creates its context."""
    asked = {"off": {}, "exact": {}, "sparse": {}, "evict": {"evict_to": 256}}
    everyone, found, stock = threading.Barrier(len(asked)), {}, llama_cpp.Llama.__init__

    def create(self, *arguments, **options):
        everyone.wait()
        stock(self, *arguments, **options)

    def open_one(mode: str, more: dict) -> None:
        llama = Llama(synthetic("llama"), kv=mode, n_ctx=1024, verbose=False, **more)
        found[mode] = llama.kv.mode.value, llama.kv.options.mode.value, llama.kv.cells.n_cells
        llama.close()

    monkeypatch.setattr(llama_cpp.Llama, "__init__", create)
    threads = [threading.Thread(target=open_one, args=one) for one in asked.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {mode: one[:2] for mode, one in found.items()} == {mode: (mode, mode) for mode in asked}
    assert [found[mode][2] for mode in ("off", "exact", "sparse")] == [1024] * 3


def test_a_llama_leaves_the_defaults_of_the_process(synthetic):
    attachments.set_defaults(KvOptions(mode="exact"))
    try:
        Llama(synthetic("llama"), kv="off", n_ctx=512, verbose=False).close()
        context = Context(synthetic("llama"))
        assert attachments.find(context.address).mode is KvMode.EXACT
        context.close()
    finally:
        attachments.set_defaults(None)
    context = Context(synthetic("llama"))
    assert attachments.find(context.address) is None
    context.close()


def test_a_stock_llama_is_served_and_a_context_that_cannot_be_is_named(synthetic, caplog):
    """Flash attention is on where a stock Llama says nothing of it, as long as the defaults attach; what is off stays off."""
    def opened(**options) -> tuple[int, int]:
        """(layers, ubatches of one that nodes of ours attended) of a stock Llama."""
        llama = llama_cpp.Llama(str(synthetic("llama")), n_ctx=512, verbose=False, **options)
        found = attachments.find(ctypes.cast(llama.ctx, ctypes.c_void_p).value)
        llama.eval([260] * 64)
        counted = len(found.layers), n_hooked(found)
        llama.close()
        return counted

    attachments.set_defaults(KvOptions(mode="sparse"))
    try:
        assert opened() == (2, 1) and "serves none" not in caplog.text
        assert opened(flash_attn=False) == (2, 0)
        context = Context(synthetic("llama"), flash_attn_type=llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED)
        context.close()
    finally:
        attachments.set_defaults(None)
    assert caplog.text.count("serves none of the 2 layers") == 2 and caplog.text.count("flash_attn=True") == 2
    llama = llama_cpp.Llama(str(synthetic("llama")), n_ctx=512, verbose=False)
    assert llama.context_params.flash_attn_type == llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    llama.close()
