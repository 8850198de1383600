"""models/: the default model, geometry, what is said about bad files, and that the synthetic models are what they claim."""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from support.adapters import control_vector, finish
from support.headers import with_keys

from edgekv import _native
from edgekv._native.gguf_header import block_sizes, file_types
from edgekv.common.errors import EXIT_MODEL, ConfigError, ModelError
from edgekv.common.units import size
from edgekv.llama import Llama
from edgekv.models import default, geometry, synth
from edgekv.models import default_model as find_default_model
from edgekv.models.geometry import open_model
from edgekv.models.reader import open_gguf
from edgekv.models.synth_file import SyntheticShape


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
    monkeypatch.setattr(default, "PACKAGE", "a_package_that_nobody_has_installed")
    with pytest.raises(ModelError, match=r'pip install "edgekv\[demo\]"'):
        find_default_model()


def test_default_model_without_its_file(monkeypatch):
    monkeypatch.setattr(default, "PACKAGE", "json")
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
        assert g.kv_bytes_per_token() == 2 * per_layer
        assert g.kv_bytes(1000) == per_layer * (1024 + 768), "cells in steps of 256; of a window its tokens and a ubatch"
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


def _refusal(path: Path, naming: Path | None = None) -> str:
    with pytest.raises(ModelError) as caught:
        geometry(path)
    message = str(caught.value)
    assert caught.value.exit_code == EXIT_MODEL, "another exit code"
    assert "\n" not in message and str(naming or path) in message, "a message is one line and names the file"
    return message


def test_missing_file(tmp_path):
    assert "there is no file" in _refusal(tmp_path / "missing.gguf")


def test_directory(tmp_path):
    assert "is a directory, not a GGUF file; it contains no GGUF file: give the path of a GGUF model" in _refusal(tmp_path)
    (tmp_path / "model.gguf").touch()
    assert f"it contains model.gguf: give {tmp_path / 'model.gguf'}" in _refusal(tmp_path)


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
    n_bytes = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(int(n_bytes * keep))
    message = _refusal(path)
    assert "truncated" in message and ("header" if keep < 0.01 else f"the last {size(n_bytes - int(n_bytes * keep))} of its weights") in message


MUTATIONS = """
import random, sys
from pathlib import Path
from edgekv.common.errors import ModelError
from edgekv.models import geometry
from edgekv.models.reader import open_gguf
path, damaged_path = Path(sys.argv[1]), Path(sys.argv[2])
header = path.read_bytes()[:9000]
end = open_gguf(path).tensor_infos[0].end
rng, n_refused = random.Random(0), 0
for turn in range(600):
    damaged = bytearray(header)
    at = turn + 8 if turn < 200 else rng.randrange(8, len(header))
    if turn % 3 == 0:
        damaged[at] ^= 0xFF
    elif turn % 3 == 1:
        damaged[at : at + 8] = rng.choice([bytes(8), b"\\xff" * 8, rng.randbytes(8)])
    else:
        del damaged[at:]
    damaged_path.write_bytes(damaged)
    try:
        open_gguf(damaged_path, whole=False)
        geometry(damaged_path)
    except ModelError as error:
        assert str(damaged_path) in str(error) and str(error).isprintable()
        n_refused += 1
print(n_refused)
"""


def test_damaged_header(synthetic, tmp_path):
    """Any change in the header gives a geometry or a ModelError of one line: no other exception, and no end of the process in ggml, whose own lines
    stay silent."""
    done = subprocess.run([sys.executable, "-c", MUTATIONS, str(synthetic()), str(tmp_path / "model.gguf")], cwd=tmp_path, capture_output=True,
                          text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "") and 200 <= int(done.stdout) <= 600  # a third of them is cut off


@pytest.mark.parametrize(("damage", "said"), [
    (lambda header: header.replace(b"general.name", b"general.type"), "duplicate key 'general.type'"),
    (lambda header: header.replace(b"general.name", b"general.nam\n"), None),
    (lambda header: header[:200], "failed to read key-value pairs"),
])
def test_what_ggml_says_of_a_header(synthetic, tmp_path, damage, said):
    path = tmp_path / "model.gguf"
    path.write_bytes(damage(synthetic().read_bytes()))
    if said:
        assert said in _refusal(path)
    else:
        assert geometry(path).architecture == "llama"


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
    assert "control vector" in _refusal(control_vector(tmp_path / "vector.gguf", SyntheticShape()))


def test_incomplete_metadata(tmp_path):
    assert "does not say" in _refusal(_metadata_only(tmp_path / "model.gguf", "llama", lambda w: None))


def _metadata_only(path: Path, arch: str, extra) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    extra(writer)
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    return finish(writer, path)


def test_split_model(synthetic, tmp_path):
    whole, parts = synthetic(), [tmp_path / f"model-{i:05}-of-00002.gguf" for i in (1, 2)]
    tensors = gguf.GGUFReader(whole).tensors
    for no, part in enumerate(parts):
        split = {"split.count": 2, "split.no": no, "split.tensors.count": len(tensors)}
        with_keys(whole, part, split, tensors[:3] if no == 0 else tensors[3:])
    g = geometry(parts[0])
    assert (g.n_params, g.tensor_bytes) == (geometry(whole).n_params, geometry(whole).tensor_bytes)
    assert g.file_bytes == sum(part.stat().st_size for part in parts)
    assert "give the first one" in _refusal(parts[1])
    for part in parts:
        whole_part = part.read_bytes()
        part.write_bytes(whole_part[:-100])
        assert open_model(parts[0], whole=False).geometry.n_params == g.n_params, "headers are enough"
        assert f"{part} is truncated" in _refusal(parts[0], naming=part)
        part.write_bytes(whole_part)
    shutil.copy(parts[0], parts[1])
    assert "invalid split file idx" in _refusal(parts[0])
    parts[1].unlink()
    with pytest.raises(ModelError, match="no file .*00002-of-00002.gguf, one of 2 parts of .*00001-of-00002"):
        geometry(parts[0])


@pytest.mark.parametrize("again", [False, True])
def test_a_header_is_read_as_gguf_reads_it(default_model, again, tmp_path, monkeypatch):
    """And as it was kept."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path))
    if again:
        open_gguf(default_model)
    ours, theirs = open_gguf(default_model), gguf.GGUFReader(default_model)
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert fields and "general.languages" in fields
    for name, field in fields.items():
        if field.types == [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING]:
            assert ours.texts(name) == [bytes(field.parts[at]) for at in field.data]
            assert ours.length(name) == len(field.data) and ours.value(name) == []
        else:
            assert ours.value(name) == field.contents()
            assert ours.length(name) == (len(field.data) if field.types[0] == gguf.GGUFValueType.ARRAY else 0) and not ours.texts(name)
    assert "general.no_such_key" not in ours and not ours.texts("general.no_such_key")
    assert [(one.name, list(one.shape), one.type, one.n_bytes, one.end) for one in ours.tensor_infos] == [
        (one.name, one.shape.tolist(), one.tensor_type.name, one.n_bytes, one.data_offset + one.n_bytes) for one in theirs.tensors]


def test_every_kind_of_value_is_read(tmp_path):
    path, said = tmp_path / "kinds.gguf", {}
    writer = gguf.GGUFWriter(path, "llama")
    for kind, value in (("uint8", 200), ("int8", -100), ("uint16", 60000), ("int16", -30000), ("uint32", 4000000000), ("int32", -2000000000),
                        ("float32", 0.5), ("uint64", 1 << 63), ("int64", -1 << 62), ("float64", 0.1), ("bool", True), ("string", "Öl")):
        getattr(writer, f"add_{kind}")(f"test.{kind}", value)
        said[f"test.{kind}"] = value
    for name, values in (("ints", [1, -2, 3]), ("floats", [0.5, 0.25]), ("bools", [True, False])):
        writer.add_array(f"test.{name}", values)
        said[f"test.{name}"] = values
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    assert {name: open_gguf(path).value(name) for name in said} == said


def test_types_are_those_of_gguf():
    """gguf_header takes them from ggml; gguf writes files with them."""
    theirs = {kind.name: sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items() if kind.name != "Q8_1"}  # of no file; gguf has its old size
    assert theirs.items() <= block_sizes().items()


def test_mixes_of_types_are_those_of_gguf():
    theirs = {int(kind): kind.name.removeprefix("ALL_").removeprefix("MOSTLY_") for kind in gguf.LlamaFileType}
    assert theirs.items() <= file_types().items()


def test_a_context_beyond_the_table_of_positions(tmp_path):
    """llama.cpp would end the process there."""
    path = tmp_path / "gpt2.gguf"
    writer = gguf.GGUFWriter(path, "gpt2")
    for add, value in ((writer.add_block_count, 1), (writer.add_embedding_length, 8), (writer.add_context_length, 128), (writer.add_head_count, 1),
                       (writer.add_feed_forward_length, 16), (writer.add_layer_norm_eps, 1e-5), (writer.add_vocab_size, 16),
                       (writer.add_tokenizer_model, "none")):
        add(value)
    sizes = {"token_embd": (16, 8), "position_embd": (128, 8), "blk.0.attn_qkv": (24, 8), "blk.0.attn_output": (8, 8), "blk.0.ffn_up": (16, 8),
             "blk.0.ffn_down": (8, 16), "output_norm": (8,), "blk.0.attn_norm": (8,), "blk.0.ffn_norm": (8,)}
    for name, shape in sizes.items():
        writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float32))
        if "embd" not in name:
            writer.add_tensor(f"{name}.bias", np.zeros(shape[:1], np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    with pytest.raises(ConfigError, match="has 128 positions, and a context of 256 tokens needs more; ask for n_ctx=128 or less"):
        Llama(str(path), n_ctx=256)
    Llama(str(path), n_ctx=128, verbose=False).close()
