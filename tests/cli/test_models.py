"""`edgekv models`: files of random weights have the shape they claim, are whole or not there, and decode."""

import errno
import json
import shutil
from contextlib import closing
from pathlib import Path

import gguf
import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from edgekv.cli.models import models
from edgekv.cli.synthetic import MIXTURES, WEIGHT_TYPES
from edgekv.common.errors import ConfigError, DoesNotFit, EdgeKVError
from edgekv.llama import Llama
from edgekv.models import geometry, model_writer, shapes
from edgekv.models.model_writer import write_model
from edgekv.models.shapes import SHAPES

TINY = SHAPES["tiny"]


def run(*arguments: str, **environment: str):
    return CliRunner().invoke(models, arguments, env=environment)


def test_shapes():
    rows = {row["shape"]: row for row in json.loads(run("shapes", "-o", "json").stdout)}
    assert list(rows) == list(SHAPES)
    assert rows["llama-3-8b"]["kv_bytes_per_token"] == 2 * 32 * 8 * 128 * 2 and rows["llama-3-8b"]["heads"] == "32/8"
    assert rows["llama-3-8b"]["file_bytes_f16"] == pytest.approx(2 * 8.03e9, rel=1e-3)
    text = run("shapes").stdout
    assert all(name in text for name in SHAPES) and "q4_0 GiB" in text


@pytest.mark.parametrize(("name", "n_params"), [  # the published models' numbers, without biases of norms and RoPE factors
    ("qwen3-0.6b", 596_049_920), ("llama-3.2-1b", 1_235_814_400), ("lfm2-1.2b", 1_170_340_608), ("llama-3.2-3b", 3_212_749_824),
    ("qwen3-4b", 4_022_468_096), ("gemma-3-4b", 3_880_099_328), ("llama-3-8b", 8_030_261_248), ("qwen3-14b", 14_768_307_200),
    ("gpt-oss-20b", 20_914_757_184), ("glm-4.7-flash", 29_943_393_920), ("qwen3-30b-a3b", 30_532_122_624),
    ("qwen3-32b", 32_762_123_264), ("llama-3-70b", 70_553_706_496)])
def test_sizes_are_those_of_the_real_models(name, n_params):
    assert SHAPES[name].n_params == n_params


def test_what_is_written_by_hand_agrees():
    """The help names types without importing what knows them."""
    assert (WEIGHT_TYPES, MIXTURES) == (shapes.WEIGHT_TYPES, shapes.MIXTURES)


@pytest.mark.parametrize("weight_type", WEIGHT_TYPES)
def test_written_model(tmp_path, weight_type):
    path = tmp_path / "model.gguf"
    result = run("synth", "tiny", "-o", str(path), "--type", weight_type, "--layers", "3", "--ctx-train", "512", "--seed", "5")
    assert result.exit_code == 0 and result.stdout == f"{path}\n" and [p.name for p in tmp_path.iterdir()] == ["model.gguf"]
    g = geometry(path)
    shape = replace(TINY, n_layer=3)
    assert (g.n_layer, g.n_ctx_train, g.n_vocab, g.file_type) == (3, 512, 384, weight_type.upper())
    assert (g.n_head[0], g.n_head_kv[0], g.head_dim_k, g.rope_freq_base, g.chat_template) == (4, 2, 64, 10000.0, True)
    assert g.tensor_bytes == shape.file_bytes(weight_type) and g.n_params == shape.n_params
    assert g.kv_bytes_per_token() == shape.kv_bytes_per_token()
    for tensor, weights in zip(gguf.GGUFReader(path).tensors, shape.weights()):
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert tensor.name == weights.name and np.isfinite(values).all()
        if not weights.is_vector:
            last = values[-100:]  # the first ones of the embedding are small on purpose
            assert last.std() == pytest.approx(weights.std, rel=0.06)
            # the part that they have in common is 96 numbers: their mean is within three of its deviations
            assert abs(last.mean()) < (3 * weights.shared * 96 ** -0.5 if weights.shared else 0.03) * weights.std
            assert len(np.unique(last, axis=0)) == len(last)


def test_the_same_arguments_give_the_same_bytes(tmp_path):
    first, again, other = (write_model(TINY, tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()


def check_decodes(path: Path) -> None:
    with closing(Llama(str(path), n_ctx=256, n_threads=1, verbose=False, logits_all=True)) as llama:
        tokens = llama.tokenize(b"The quick brown fox jumps over the lazy dog.")
        llama.eval(tokens)
        logits = llama.scores[: len(tokens)]
        assert len(tokens) == 45 and np.isfinite(logits).all() and 2 < logits[:, 259:].std() < 6
        assert (logits.argmax(axis=1) == tokens).mean() < 0.5, "it does not only repeat its input"


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("weight_type", WEIGHT_TYPES)
def test_llama_cpp_decodes_it(tmp_path, architecture, weight_type):
    shape = replace(TINY, architecture=architecture, tied=architecture == "qwen3")
    check_decodes(write_model(shape, tmp_path / "model.gguf", weight_type))


@pytest.mark.parametrize("name", ["gemma-3-4b", "gemma-4-26b-a4b", "gpt-oss-20b", "qwen3-30b-a3b", "qwen3.6-27b", "qwen3.6-35b-a3b", "glm-4.7-flash"])
def test_every_architecture_is_written_whole(tmp_path, name):
    real = SHAPES[name]
    experts = real.experts and replace(real.experts, n=8, n_used=2, n_ff=64, n_ff_shared=64 * bool(real.experts.n_ff_shared))
    shape = replace(real, n_layer=6, n_embd=256, n_ff=320, n_vocab=384, n_ctx_train=512, experts=experts)
    path = write_model(shape, tmp_path / "model.gguf", "q8_0")
    g = geometry(path)
    assert g.n_params == shape.n_params and g.kv_bytes_per_token() == shape.kv_bytes_per_token()
    assert g.swa == tuple(map(shape.slides, range(6))) and [n > 0 for n in g.n_head_kv] == [*map(shape.attends, range(6))]
    check_decodes(path)


def test_mixture(tmp_path, monkeypatch):
    """A file that llama.cpp's quantiser made has its types; a header alone, an existing file and a failed quantiser leave nothing behind."""
    monkeypatch.setitem(SHAPES, "qwen3-0.6b", replace(SHAPES["qwen3-0.6b"], n_vocab=4096))
    path = tmp_path / "model.gguf"
    assert run("synth", "qwen3-0.6b", "--layers", "1", "--type", "q4_k_m", "-o", str(path)).exit_code == 0
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    assert types["blk.0.attn_q.weight"] == "Q4_K" and types["blk.0.attn_v.weight"] == "Q6_K" and [p.name for p in tmp_path.iterdir()] == ["model.gguf"]
    for arguments, said in ((("-o", str(path)), "exists; remove it"), (("--header-only",), "a header alone has no q4_k_m")):
        assert said in str(run("synth", "tiny", "--type", "q4_k_m", *arguments).exception)

    def fails(source, target):
        assert source.stat().st_size > 0
        target.write_bytes(b"half")
        raise EdgeKVError("no room")

    with pytest.raises(EdgeKVError, match="no room"):
        model_writer.write_mixture(TINY, tmp_path / "other.gguf", fails)
    assert [p.name for p in tmp_path.iterdir()] == ["model.gguf"]


def test_default_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("synth", "tiny").stdout == "synthetic-tiny-q4_0.gguf\n"
    assert run("synth", "tiny", "--layers", "1", EDGEKV_SYNTH_TYPE="f16").stdout == "synthetic-tiny-1-layers-f16.gguf\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["synthetic-tiny-1-layers-f16.gguf", "synthetic-tiny-q4_0.gguf"]
    assert run("synth", "tiny", "-o", "c.gguf", EDGEKV_OUTPUT="json", EDGEKV_LAYERS="0,4-7").exit_code == 0, "those are others' variables"


def test_bad_arguments(tmp_path):
    existing = tmp_path / "there.gguf"
    existing.write_text("precious")
    for arguments, said in ((("gpt-5",), "there is no shape 'gpt-5'; use one of: tiny, qwen3-0.6b"),
                            (("tiny", "-o", str(existing)), "exists; remove it"),
                            (("tiny", "-o", str(tmp_path / "no" / "model.gguf")), "there is no folder")):
        error = run("synth", *arguments).exception
        assert isinstance(error, ConfigError) and said in str(error)
    assert existing.read_text() == "precious" and run("synth", "tiny", "--type", "q2_k").exit_code == 2
    with pytest.raises(ConfigError, match="there is no weight type 'q2_k'"):
        write_model(TINY, tmp_path / "model.gguf", "q2_k")


def test_a_disk_too_small(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(model_writer.shutil, "disk_usage", lambda folder: usage._replace(free=100_000))
    with pytest.raises(DoesNotFit, match=r"model.gguf takes .* KiB, and 97\.7 KiB are free on its disk: .* KiB are missing"):
        write_model(TINY, tmp_path / "model.gguf")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("error", "raised", "said"), [
    (OSError(errno.ENOSPC, "No space left on device"), DoesNotFit, "its disk is full"),
    (OSError(errno.EIO, "Input/output error"), EdgeKVError, "Input/output error; nothing of it was kept"),
    (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
], ids=["full", "broken", "interrupted"])
def test_nothing_is_left_half_written(tmp_path, error, raised, said):
    def stop(done: int, total: int) -> None:
        assert (tmp_path / "model.gguf.part").exists() and 0 < done <= total
        raise error

    with pytest.raises(raised, match=said):
        write_model(TINY, tmp_path / "model.gguf", progress=stop)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_replaced(tmp_path):
    (tmp_path / "model.gguf.part").write_bytes(bytes(1 << 20))
    write_model(TINY, tmp_path / "model.gguf")
    assert [p.name for p in tmp_path.iterdir()] == ["model.gguf"] and geometry(tmp_path / "model.gguf").n_layer == 2
