"""What a program does with edgekv.Llama beside asking it: copies it, catches its errors, misspells its keywords."""

import copy
import inspect
import json
import os
import pickle
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from edgekv import ConfigError, DoesNotFit, EdgeKVError, KvOptions, Llama, ModelError
from edgekv.common.enums import KvMode
from edgekv.config import option_names
from edgekv.llama_keywords import KvKeywords, LlamaKeywords
from edgekv.planning import devices

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

PROMPT = [260 + i % 40 for i in range(512)]


@pytest.fixture
def opened(synthetic):
    """opened(**options): a Llama of a tiny model, closed in the end."""
    made = []

    def open_one(kind: str = "llama", **options) -> Llama:
        made.append(Llama(synthetic(kind), **{"n_ctx": 1024, "verbose": False, **options}))
        return made[-1]

    yield open_one
    for llama in made:
        llama.close()


def answer(llama: Llama, prompt: list[int]) -> list[int]:
    return list(islice(llama.generate(prompt, temp=0), 6))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda llama: pickle.loads(pickle.dumps(llama))], ids=["deepcopy", "pickle"])
def test_a_copy_keeps_all_options(opened, copied):
    llama = opened(kv="sparse", sample_budget=300, type_k="q8_0", sink_tokens=32)
    llama.kv.mode = "exact"
    with copied(llama) as other:
        assert other.kv.options == llama.kv.options and other.kv.mode is KvMode.EXACT
        assert other.kv.options.selection.sample_budget == 300 and other.n_ctx() == 1024


def test_what_stock_raises_is_caught_as_there(synthetic, tmp_path):
    (tmp_path / "cut.gguf").write_bytes(Path(synthetic("llama")).read_bytes()[:-5000])
    for path, kind, said in ((tmp_path / "none.gguf", ModelError, "there is no file"), (tmp_path / "cut.gguf", ModelError, "the last 4.9 KiB of its weights"),
                             (tmp_path, ModelError, "is a directory, not a GGUF file; it contains cut.gguf"), (synthetic("llama"), ConfigError, "page_size")):
        with pytest.raises(ValueError, match=said) as caught:
            Llama(path, kv="exact", n_ctx=512, page_size=17 if kind is ConfigError else 16, verbose=False)
        assert isinstance(caught.value, kind) and isinstance(caught.value, EdgeKVError)
    with pytest.raises(MemoryError, match=r"use n_ctx=\d+ or less") as caught:
        Llama(synthetic("llama"), kv="exact", n_ctx=1 << 30, verbose=False)
    assert isinstance(caught.value, DoesNotFit) and "--" not in str(caught.value)


@pytest.mark.parametrize("options, sentence", [
    ({"sample_bugdet": 5}, "did you mean 'sample_budget'"),
    ({"kv": "off", "sample_budget": 5}, "sample_budget works in modes sparse and evict only, and the mode is off"),
    ({"kv_options": {"mode": "exact"}}, r"give KvOptions\(...\)"),
    ({"kv": "sparse", "kv_budget": "64 potatoes"}, "kv_budget is '64 potatoes'"),
    ({"kv": "evict", "embedding": True}, "leave embedding out"),
    ({"kv": "off", "mode": "exact"}, "kv and mode are one option"),
    ({"kv": "fast"}, "there is no KV mode 'fast'; use one of: exact, sparse, evict, off"),
    ({"type_k": "q3"}, "there is no K cache type 'q3'; use one of: f16, q8_0, q4_0"),
    ({"n_ctx": -5}, "n_ctx is -5; it must be a number of tokens from 0 to 1,073,741,824"),
    ({"n_ctx": "512"}, "n_ctx is '512'; it must be a number of tokens"),
    ({"n_batch": 0}, "n_batch is 0; it must be a number of tokens from 1 to 1,073,741,824"),
    ({"n_ctx": 2**31 - 1}, "n_ctx is 2147483647; it must be a number of tokens from 0"),
    ({"n_threads": 10**11}, "n_threads is 100000000000; it must be a number of threads from 0 to 512"),
    ({"kv": "sparse", "recent_tokens": 2**40}, "it must be a whole number from 0 to 1,073,741,824"),
])
def test_what_would_have_no_effect_is_refused(opened, options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        opened(**options)


def test_a_batch_is_no_longer_than_its_context(opened):
    llama = opened(n_batch=1 << 30)
    assert llama.n_batch == 1024 == len(llama.scores)


def test_gpu_memory_is_refused_where_no_gpu_is_used(opened, monkeypatch):
    monkeypatch.setattr(devices, "devices", lambda kind: [])
    with pytest.raises(ConfigError, match="kv_vram is GPU memory, and attention runs on the processor"):
        opened(kv="exact", kv_vram="64M")


def test_texts_are_read_as_on_the_command_line():
    options = KvOptions(mode="sparse", kv_vram="64M", observe="off", target_error="2%")
    assert options.placement.kv_vram == 64 << 20 and options.placement.observe is False and options.selection.target_error == 0.02


def test_mode_evict_reads_again_where_it_goes_back(opened):
    """The cache then holds what was chosen by the earlier question."""
    llama = opened(kv="evict", evict_to=128)
    answer(llama, [*PROMPT, 270, 271])
    again, fresh = answer(llama, [*PROMPT, 280, 281]), opened(kv="evict", evict_to=128)
    assert llama.kv.last.n_prefilled == len(PROMPT) + 2 and llama.kv.last.n_reused == 0
    assert again == answer(fresh, [*PROMPT, 280, 281])


def test_mode_evict_takes_a_draft_model(opened):
    llama = opened(kv="evict", evict_to=128, draft_model=LlamaPromptLookupDecoding(num_pred_tokens=2))
    assert len(answer(llama, PROMPT)) == 6


def test_a_prompt_may_be_an_iterator(opened):
    llama = opened("gemma2", kv="exact")
    first = answer(llama, PROMPT)
    assert answer(llama, iter(PROMPT)) == first


@pytest.mark.parametrize("mode", ["exact", "sparse"])
def test_the_same_prompt_again_has_the_same_logits(opened, mode):
    """So that the same seed gives the same text, though a part of the prompt is in the cache, and batches of few tokens have kernels of their own."""
    llama = opened(kv=mode, logits_all=True)
    for n in (3, 16, 40, 516):
        llama.reset()
        again = []
        for _ in range(3):
            answer(llama, (PROMPT * 2)[:n])
            again.append(llama.scores[n - 1].tobytes())
        assert len(set(again)) == 1, n


def test_it_says_what_happened(opened):
    llama = opened(kv="exact")
    assert llama.kv.last is None and repr(llama.kv) == "<edgekv.Runtime: mode exact, 2 of 2 layers served, 0 of 1,024 cells used>"
    answer(llama, PROMPT)
    answer(llama, [*PROMPT, 270])
    last = llama.kv.last
    assert (last.n_reused, last.n_prefilled, last.n_generated, last.attended, last.error) == (len(PROMPT), 1, 6, 1, None) and last.tokens_per_second > 0


def test_results_say_so_where_asked(opened):
    """In mode sparse with what the newest answer read, and of streams the last chunk."""
    llama = opened(kv="sparse", sample_budget=64, recent_tokens=32, exact_tokens=0, error_every=1, report=True)
    whole = llama.create_completion(PROMPT, max_tokens=6, temperature=0)
    assert {**whole["edgekv"], "tokens_per_second": 0} == {
        "n_reused": 0, "n_prefilled": 512, "n_generated": 6, "attended": llama.kv.selection().attended, "error": llama.kv.selection().error,
        "tokens_per_second": 0}
    assert 0 < whole["edgekv"]["attended"] < 1 and whole["edgekv"]["error"] > 0
    first, seen = llama.kv.last, llama.kv.last.fields
    chunks = list(llama.create_chat_completion([{"role": "user", "content": "a"}], max_tokens=3, temperature=0, stream=True))
    assert [("edgekv" in chunk) for chunk in chunks] == [False] * (len(chunks) - 1) + [True] and chunks[-1]["edgekv"]["n_generated"] == 3
    assert first.fields == seen, "of its own answer"
    assert "edgekv" not in opened(kv="exact").create_completion(PROMPT, max_tokens=1)


class Mine(Exception):
    """What a program's own code raises."""


def test_what_a_logits_processor_raises_comes_where_the_caller_called(opened, capfd):
    def fail(tokens, logits):
        raise Mine

    llama = opened(kv="exact")
    fresh = llama.create_completion(PROMPT, max_tokens=4, temperature=0)["choices"]
    with pytest.raises(Mine):
        llama.create_completion(PROMPT, max_tokens=4, logits_processor=llama_cpp.LogitsProcessorList([fail]))
    assert "Mine" not in "".join(capfd.readouterr())
    plain = llama_cpp.LogitsProcessorList([lambda tokens, logits: logits])
    assert llama.create_completion(PROMPT, max_tokens=4, temperature=0, logits_processor=plain)["choices"] == fresh


def test_what_a_program_prints_while_a_model_loads_is_seen(opened, monkeypatch, capfd):
    """llama_cpp hides the streams of the whole process meanwhile, and for good where two threads load at once."""
    load = llama_cpp.llama_cpp.llama_model_load_from_file
    monkeypatch.setattr(llama_cpp.llama_cpp, "llama_model_load_from_file", lambda *given: os.write(1, b"meanwhile\n") and load(*given))
    opened(kv="exact")
    assert capfd.readouterr() == ("meanwhile\n", "")


def test_an_adapter_that_is_missing_or_none_is_refused(opened, tmp_path):
    """llama_cpp goes on without it."""
    (tmp_path / "text").write_text("no adapter")
    for name, sentence in (("none.gguf", "there is no adapter .*none.gguf"), ("text", "could not load the adapter .*text")):
        with pytest.raises(ModelError, match=sentence):
            opened(lora_path=str(tmp_path / name))


def test_keywords_are_those_that_are_read():
    """Types, the signature, and what llama_cpp and KvOptions take."""
    stock = set(inspect.signature(llama_cpp.Llama.__init__).parameters) - {"self", "kwargs"}
    shown = set(inspect.signature(Llama).parameters)
    assert set(KvKeywords.__annotations__) | {"type_k", "type_v"} == set(option_names())
    assert set(LlamaKeywords.__annotations__) | {"model_path", "flash_attn", "type_k", "type_v"} == stock | set(option_names())
    assert shown == stock | set(option_names()) | {"kv", "kv_options", "weights_from_disk", "report"}
    assert inspect.signature(Llama).parameters["n_ctx"].default == 512
    both = [name for name in vars(Llama).keys() & vars(llama_cpp.Llama).keys() if callable(getattr(Llama, name)) and name[0] != "_"]
    assert len(both) > 6
    for name in both:
        assert [*inspect.signature(getattr(Llama, name)).parameters] == [*inspect.signature(getattr(llama_cpp.Llama, name)).parameters], name


IMPORTED = """
import json, sys
import edgekv
print(json.dumps(list(sys.modules)))
edgekv.Llama
print(json.dumps(list(sys.modules)))
edgekv.Llama(sys.argv[1], kv="off", n_ctx=256).close()
print(json.dumps(list(sys.modules)))
"""
OF_OTHER_MODES = {"importlib.metadata", "edgekv.arrays.ops", "edgekv.cache_types", "edgekv.planning.device", "edgekv.planning.device_fit",
                  "edgekv.planning.device_mode", "edgekv.planning.kept", "edgekv.planning.roofline", "edgekv.policies", "edgekv.prefix_cache",
                  "edgekv.runtime.measured_heads", "edgekv.runtime.wiring", "edgekv.tiering.eviction", *(["psutil"] if sys.platform == "linux" else [])}
OF_A_MODEL = OF_OTHER_MODES | {"edgekv._native._core", "edgekv.config", "edgekv.models", "edgekv.planning", "edgekv.runtime", "platformdirs", "psutil"}
OF_LLAMA_CPP = OF_A_MODEL | {"_cffi_backend", "edgekv._native", "edgekv.llama", "llama_cpp", "logging", "numpy", "typing"}


def test_nothing_is_imported_before_it_is_used(synthetic, tmp_path):
    done = subprocess.run([sys.executable, "-c", IMPORTED, synthetic("llama")], cwd=tmp_path, capture_output=True, text=True, check=True)
    for needless, loaded in zip((OF_LLAMA_CPP, OF_A_MODEL, OF_OTHER_MODES), done.stdout.splitlines(), strict=True):
        assert not needless & set(json.loads(loaded))
