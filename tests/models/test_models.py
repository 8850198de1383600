"""models/: the default model, geometry, what is said about bad files, and that the synthetic models are what they claim."""

import importlib.metadata
import json
import shutil
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from support.adapters import finish

from edgekv.common.errors import EXIT_MODEL, ConfigError, ModelError
from edgekv.llama import Llama
from edgekv.models import default, geometry, synth
from edgekv.models import default_model as find_default_model
from edgekv.models.reader import open_gguf


def test_default_model_geometry(default_model):
    g = geometry(default_model)
    assert (g.architecture, g.n_layer, g.n_ctx_train, g.n_vocab, g.file_type) == ("llama", 30, 8192, 49152, "Q4_1")
    assert set(g.n_head) == {9} and set(g.n_head_kv) == {3} and g.head_dim_k == g.head_dim_v == 64
    assert g.rope_freq_base == 100000.0 and g.rope_dim == 64 and g.rope_scaling is None
    assert g.chat_template and g.sliding_window == 0 and not any(g.swa)
    assert g.kv_bytes_per_token() == 2 * 30 * 3 * 64 * 2
    assert g.kv_bytes_per_token("q8_0", "q8_0") == 2 * 30 * (3 * 64 // 32) * 34
    assert g.kv_bytes(8192) == 8192 * g.kv_bytes_per_token()
    assert 134e6 < g.n_params < 136e6 and g.tensor_bytes < g.file_bytes == default_model.stat().st_size


def test_default_model_missing(monkeypatch):
    monkeypatch.setattr(default, "DISTRIBUTION", "a-distribution-that-nobody-has-installed")
    with pytest.raises(ModelError, match=r'pip install "edgekv\[demo\]"'):
        find_default_model()


def test_default_model_without_its_file(monkeypatch):
    class Distribution:
        files = [importlib.metadata.PackagePath("package/__init__.py")]

    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Distribution())
    with pytest.raises(ModelError, match="no GGUF file"):
        find_default_model()


@pytest.mark.parametrize("kind", synth.GENERATES_TEXT)
def test_synthetic_geometry(synthetic, kind):
    g = geometry(synthetic(kind))
    assert g.architecture == kind and g.n_vocab == 384 and g.chat_template
    assert g.n_layer_kv == {"mamba": 0, "lfm2": 2}.get(kind, 2)
    if kind in ("gemma2", "gpt-oss"):
        assert g.sliding_window == 64 and g.swa == (True, False)
        per_layer = 2 * 2 * 64 * 2
        assert g.kv_bytes_per_token() == 2 * per_layer and g.kv_bytes(1000) == per_layer * (1000 + 64)
    else:
        assert g.sliding_window == 0 and not any(g.swa)
    if kind == "lfm2":
        assert g.n_head_kv == (0, 1, 0, 1)
    if kind == "mamba":
        assert g.kv_bytes(4096) == 0 and g.rope_freq_base is None


@pytest.mark.parametrize("head_dim", [64, 72, 80, 96, 112, 128, 192, 256, 512])
def test_synthetic_sizes(synthetic, head_dim):
    g = geometry(synthetic(head_dim=head_dim, n_layer=3, n_head=6, n_head_kv=2, n_vocab=400, n_ctx_train=1024, dtype="f32"))
    assert (g.n_layer, g.n_vocab, g.n_ctx_train, g.file_type) == (3, 400, 1024, "F32")
    assert g.n_head == (6, 6, 6) and g.n_head_kv == (2, 2, 2) and g.head_dim_k == head_dim


def test_synthetic_is_deterministic(tmp_path):
    first, again, other = (synth.write("llama", tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()


@pytest.mark.parametrize("kind", synth.GENERATES_TEXT)
def test_llama_cpp_decodes_synthetic(synthetic, kind):
    """Stock attention with and without flash attention agree, on logits with a spread worth comparing."""
    with_flash, without = (_last_logits(synthetic(kind), flash) for flash in (True, False))
    assert with_flash.shape == (4, 384) and np.isfinite(with_flash).all()
    assert with_flash.std(axis=1).min() > 1.5
    np.testing.assert_allclose(with_flash, without, atol=0.15)


def _last_logits(path: Path, flash_attn: bool) -> np.ndarray:
    from edgekv import _native

    _native.prepare()
    import llama_cpp

    llama = llama_cpp.Llama(str(path), n_ctx=256, n_batch=64, n_threads=1, flash_attn=flash_attn, verbose=False)
    tokens = llama.tokenize(b"The quick brown fox jumps over the lazy dog, again and again. " * 2)
    assert 90 < len(tokens) < 200, f"the text has {len(tokens)} tokens"
    llama.eval(tokens[:-4])
    logits = []
    for token in tokens[-4:]:
        llama.eval([token])
        logits.append(np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llama.ctx, -1), (llama.n_vocab(),)).copy())
    llama.close()
    return np.array(logits)


def _refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        geometry(path)
    message = str(caught.value)
    assert caught.value.exit_code == EXIT_MODEL, "another exit code"
    assert "\n" not in message and str(path) in message, "a message is one line and names the file"
    return message


def test_missing_file(tmp_path):
    assert "there is no file" in _refusal(tmp_path / "missing.gguf")


def test_directory(tmp_path):
    assert "is a directory" in _refusal(tmp_path) and "no GGUF file" in _refusal(tmp_path)
    (tmp_path / "model.gguf").touch()
    assert "it contains model.gguf" in _refusal(tmp_path)


SAFETENSORS_HEADER = json.dumps({"weight": {"dtype": "F32", "shape": [75], "data_offsets": [0, 300]}}).encode().ljust(300)
SAFETENSORS = struct.pack("<Q", 300) + SAFETENSORS_HEADER


@pytest.mark.parametrize(("content", "said"), [
    (b"", "zero bytes"),
    (b"GGUF", "truncated"),
    (b"GGUF" + struct.pack("<I", 3), "truncated"),
    (b"GGUF" + struct.pack("<IQQ", 3, 5, 1 << 60), "truncated"),
    (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
    (b"GGUF" + struct.pack("<IQQ", 99, 0, 0), "version 99"),
    (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "does not name its architecture"),
    (SAFETENSORS + bytes(300), "safetensors"),
    (b"PK\x03\x04" + bytes(60), "zip archive"),
    (b"tjgg" + bytes(60), "before GGUF"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer"),
    (b"<!DOCTYPE html><html>", "HTML page"),
    ("Once upon a time there was a café.".encode(), "text"),
    (bytes(range(200, 256)), "binary file"),
])
def test_not_a_model(tmp_path, content, said):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert said in _refusal(path)


@pytest.mark.parametrize("keep", [0.999, 0.5, 0.005])
def test_truncated_real_file(default_model, tmp_path, keep):
    """The file ends in the weights, in the weights again, and in the vocabulary."""
    path = tmp_path / "model.gguf"
    shutil.copyfile(default_model, path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(int(size * keep))
    message = _refusal(path)
    assert "truncated" in message and ("header" if keep < 0.01 else f"{size - int(size * keep)} bytes") in message


def test_damaged_header(synthetic, tmp_path):
    """Flipping any byte of the header gives a geometry or a ModelError, never another exception."""
    original = bytearray(synthetic().read_bytes())
    path = tmp_path / "model.gguf"
    rng = np.random.default_rng(0)
    for offset in [*range(24, 64), *rng.integers(64, 9000, 60)]:
        damaged = original.copy()
        damaged[offset] ^= 0xFF
        path.write_bytes(damaged)
        try:
            geometry(path)
        except ModelError as error:
            assert str(path) in str(error)  # noqa: PT017 (not every damage is one)


def test_vocabulary_only(synthetic):
    assert "only a vocabulary" in _refusal(synthetic("vocabulary"))


def test_embedding_models(synthetic, tmp_path):
    assert "embedding model (bert)" in _refusal(synthetic("bert"))
    path = _metadata_only(tmp_path / "pooled.gguf", "qwen3", lambda w: w.add_pooling_type(gguf.PoolingType.LAST))
    assert "embedding model (qwen3)" in _refusal(path)
    path = _metadata_only(tmp_path / "both-ways.gguf", "llada", lambda w: w.add_causal_attention(False))
    assert "both directions" in _refusal(path)


@pytest.mark.parametrize(("arch", "why"), [("dream", "fills in a whole text"), ("t5", "reads with one half"), ("wavtokenizer-dec", "makes sound")])
def test_models_that_cannot_continue_a_text(tmp_path, arch, why):
    assert f"is a {arch} model, which {why}" in _refusal(_metadata_only(tmp_path / "other.gguf", arch, lambda w: None))


def test_not_the_model_itself(tmp_path):
    assert "LoRA adapter" in _refusal(_metadata_only(tmp_path / "lora.gguf", "llama", lambda w: w.add_type("adapter")))
    assert "projector" in _refusal(_metadata_only(tmp_path / "projector.gguf", "clip", lambda w: None))


def test_incomplete_metadata(tmp_path):
    assert "does not say" in _refusal(_metadata_only(tmp_path / "model.gguf", "llama", lambda w: None))


def _metadata_only(path: Path, arch: str, extra) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    extra(writer)
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    return finish(writer, path)


def test_split_model(tmp_path):
    parts = [tmp_path / f"model-{i:05}-of-00002.gguf" for i in (1, 2)]
    for no, part in enumerate(parts):
        def describe(writer, no=no):
            writer.add_uint16("split.count", 2)
            writer.add_uint16("split.no", no)
            writer.add_block_count(1)
            writer.add_embedding_length(4)
            writer.add_context_length(128)
            writer.add_head_count(1)
        _metadata_only(part, "llama", describe)
    g = geometry(parts[0])
    assert g.n_params == 32 and g.file_bytes == sum(part.stat().st_size for part in parts)
    assert "give the first one" in _refusal(parts[1])
    parts[1].unlink()
    with pytest.raises(ModelError, match="no file .*00002-of-00002"):
        geometry(parts[0])


def test_arrays_stay_one_part(default_model):
    """GGUFReader itself makes a NumPy array for each token and merge, which takes seconds."""
    reader = open_gguf(default_model)
    tokens, types = reader.fields["tokenizer.ggml.tokens"], reader.fields["tokenizer.ggml.token_type"]
    assert len(tokens.parts) == len(types.parts) == 6
    assert reader.length("tokenizer.ggml.tokens") == len(reader.value("tokenizer.ggml.token_type")) == 49152
    assert reader.value("general.languages") == [] and reader.length("general.languages") == 1


def test_a_context_beyond_the_table_of_positions(tmp_path):
    """llama.cpp would end the process there."""
    path = tmp_path / "gpt2.gguf"
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(1)
    writer.add_embedding_length(8)
    writer.add_context_length(128)
    for name, n in (("token_embd.weight", 16), ("position_embd.weight", 128)):
        writer.add_tensor(name, np.zeros((n, 8), np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    with pytest.raises(ConfigError, match="has 128 positions, and a context of 256 tokens needs more; ask for n_ctx=128 or less"):
        Llama(str(path), n_ctx=256)
    with pytest.raises(ModelError, match="could not load"):  # it has no layers: what is refused is the context above
        Llama(str(path), n_ctx=128, verbose=False)
