"""What a context takes is what llama.cpp allocates, whatever keys a header has; a file that ends llama.cpp is one sentence."""

import os
import re

import pytest
from support import vision
from support.headers import MIB, allocated, with_keys
from support.serve_process import serving

from edgekv.common.errors import EXIT_MODEL, ModelError
from edgekv.config import CacheOptions
from edgekv.models import geometry, inspector, kept, reader
from edgekv.planning.allocations import Slots, work_bytes

import llama_cpp

WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
SHAPES = {
    "llama": ("llama", {}, {}),
    "gemma2": ("gemma2", {}, {}),
    "gemma2 without a window": ("gemma2", {"n_ctx_train": 16384}, {WINDOW: None}),
    "gemma2 with pattern 0": ("gemma2", {}, {PATTERN: 0}),
    "gpt-oss": ("gpt-oss", {}, {}),
    "lfm2": ("lfm2", {}, {}),
    "lfm2 with a window": ("lfm2", {}, {WINDOW: 512}),
    "mamba": ("mamba", {}, {}),
}


@pytest.fixture(params=SHAPES)
def odd(request, synthetic, tmp_path):
    kind, sizes, keys = SHAPES[request.param]
    return with_keys(synthetic(kind, **sizes), tmp_path / "model.gguf", keys)


@pytest.mark.parametrize(("n_seq", "unified", "kind", "number"), [(1, False, "f16", 1), (4, False, "q8_0", 8), (4, True, "f16", 1)])
def test_bytes_are_those_that_llama_cpp_allocates(odd, n_seq, unified, kind, number):
    cache, slots = CacheOptions(type_k=kind, type_v=kind), Slots(n_seq, unified)
    for n_ctx in (256, 5000, 16384):
        made = allocated(odd, n_ctx, n_seq, unified, number)
        for n_bytes, part in ((geometry(odd).kv_bytes(n_ctx, kind, kind, n_seq, unified), "KV home"),
                              (work_bytes(geometry(odd), n_ctx, cache, slots), "compute")):
            mib, off = made[part]
            assert n_bytes / MIB == pytest.approx(mib, abs=off + 1e-9), (part, n_ctx)


@pytest.mark.parametrize(("keys", "slides", "window"), [
    ({}, (True, False), 64), ({WINDOW: None}, (True, False), 4096), ({PATTERN: 0}, (True, True), 64),
])
def test_llama_cpp_says_which_layers_slide(synthetic, tmp_path, keys, slides, window):
    g = geometry(with_keys(synthetic("gemma2"), tmp_path / "model.gguf", keys))
    assert (g.swa, g.sliding_window) == (slides, window)


def test_tokens_that_end_an_answer(default_model):
    """The same as of a vocabulary that is loaded whole, with its merges and pieces."""
    settings = llama_cpp.llama_model_default_params()
    settings.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(default_model).encode(), settings)
    vocab = llama_cpp.llama_model_get_vocab(model)
    ends = tuple(token for token in range(llama_cpp.llama_vocab_n_tokens(vocab)) if llama_cpp.llama_vocab_is_eog(vocab, token))
    llama_cpp.llama_model_free(model)
    assert geometry(default_model).ends == ends and len(ends) > 2


def test_a_second_question_starts_no_process_and_reads_no_header(synthetic, tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "SETTLED_NS", -(1 << 62))
    path = with_keys(synthetic(), tmp_path / "model.gguf", {})
    first = geometry(path)
    home = first.kv_bytes(512)
    monkeypatch.setattr(inspector, "_opened", lambda opened={}: opened)  # as a new process has it
    monkeypatch.setattr(inspector._Process, "ask", lambda *_: pytest.fail("it asked again"))
    with monkeypatch.context() as patched:
        patched.setattr(reader.MetadataReader, "_header", property(lambda _: pytest.fail("it read again")))
        assert geometry(path) == first and geometry(path).kv_bytes(512) == home
        with_keys(synthetic(), path, {"context_length": 512})
        os.utime(path, ns=(1, 1))
        with pytest.raises(pytest.fail.Exception, match="read again"):
            geometry(path)
    with pytest.raises(pytest.fail.Exception, match="asked again"):
        geometry(path)


def test_a_header_of_a_file_that_may_still_change_is_not_kept(synthetic, tmp_path, monkeypatch):
    """Its times do not tell two writes apart that follow each other within a tick of the file system's clock."""
    monkeypatch.setattr(kept, "SETTLED_NS", 1 << 62)
    path = with_keys(synthetic(), tmp_path / "model.gguf", {"context_length": 512})
    assert geometry(path).n_ctx_train == 512
    assert not kept.Kept(path, kept.identity([path]), "header.json").facts


def test_a_file_that_ends_llama_cpp_is_a_sentence(synthetic, tmp_path):
    """And the next file is answered. llama.cpp takes windows without a layer that slides for a fault of its own."""
    path = with_keys(synthetic("gemma2"), tmp_path / "model.gguf", {PATTERN: 1})
    with pytest.raises(ModelError, match="it ends the process that opens the header") as caught:
        geometry(path)
    assert caught.value.exit_code == EXIT_MODEL and str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert geometry(with_keys(synthetic(), tmp_path / "other.gguf", {})).n_layer == 2


def test_llama_cpp_says_why_it_refuses_a_file(synthetic, tmp_path):
    path = with_keys(synthetic(), tmp_path / "model.gguf", {"block_count": 7})
    with pytest.raises(ModelError, match=r"llama.cpp refuses .*'blk.2.attn_norm.weight' not found"):
        geometry(path)


@pytest.mark.parametrize("write", [vision.llava, vision.gemma3, vision.qwen2vl])
def test_a_projector_takes_what_the_server_reserves(write, tmp_path):
    """Its log says so in two decimals of MiB, of weights and of buffers, when it warms up. The file of qwen2vl is a hundredth of that."""
    model, projector = vision.qwen2vl_text(tmp_path / "model.gguf"), write(tmp_path / "projector.gguf")
    with serving(tmp_path, str(model), "--mmproj", str(projector), "--ctx", "512", "--log-file", "-", "--", "--warmup", "-lv", "5") as served:
        said = [float(mib) for mib in re.findall(r"(?:load_hparams: model|reserve_compute_meta: .*buffer) size[ :=]+([\d.]+) MiB", "".join(served.lines))]
    assert len(said) == 2
    assert inspector.projector_bytes(projector) / MIB == pytest.approx(sum(said), abs=0.01 + 1e-9)
