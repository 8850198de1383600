"""Trace files: what is written is read, what is no trace is refused, and an interrupted recording leaves nothing. And the recorder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from traces import header, masses, random_trace

from edgekv.bench.passes import Caches
from edgekv.bench.record import Recording, record
from edgekv.bench.text import Text, find_text
from edgekv.errors import ConfigError, EdgeKVError
from edgekv.llama import Llama
from edgekv.trace import Trace
from edgekv.trace_format import CHUNK_STEPS, TraceWriter
from edgekv.vocab import CacheType

EDGEKV = [sys.executable, "-c", "from edgekv.cli.main import main; main()"]


def same(one: Trace, other: Trace) -> None:
    assert one.header == other.header
    np.testing.assert_array_equal(one.key_norms, other.key_norms)
    for a, b in zip(one, other, strict=True):
        assert (a.position, a.n_used_end, a.warmup) == (b.position, b.n_used_end, b.warmup)
        np.testing.assert_array_equal(a.mass_sum, b.mass_sum)
        np.testing.assert_array_equal(a.mass_max, b.mass_max)
        assert list(a.estimates) == list(b.estimates)
        for sketch in a.estimates:
            np.testing.assert_array_equal(a.estimates[sketch], b.estimates[sketch])


# ---- the file -------------------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path):
    trace = random_trace(n_steps=2 * CHUNK_STEPS + 3)
    trace.write(tmp_path / "a.trace")
    with Trace.open(tmp_path / "a.trace") as read:
        same(trace, read)
        same(trace, read)  # again, from the start
        loaded = read.loaded(["b2"])
    assert loaded.header.sketches == ("b2",)
    same(loaded, Trace.of(trace.header, *_arrays(trace), {"b2": np.stack([step.estimates["b2"] for step in trace])}, trace.key_norms))
    assert os.listdir(tmp_path) == ["a.trace"]


def test_steps():
    of = header(depth=300, n_warmup=5, n_steps=40)
    mass = masses(of)
    steps = list(Trace.of(of, mass))
    assert [step.warmup for step in steps] == [True] * 5 + [False] * 40
    assert [step.position for step in steps] == list(range(295, 340))
    assert steps[8].n_used_end == 19 and steps[9].n_used_end == 20  # positions 303 and 304 = 19 * 16
    assert not steps[8].mass_sum[:, :, 19:].any()
    np.testing.assert_allclose(np.stack([step.mass_sum for step in steps]), mass, rtol=1e-3, atol=1e-7)
    positions = of.page_positions(303)
    assert positions[:2].tolist() == [15, 31] and positions[18:].tolist() == [303, -1, -1, -1]


def test_numpy_reads_it(tmp_path):
    trace = random_trace()
    trace.write(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as arrays:
        chunk = arrays["steps/000032.mass_sum"]
        assert chunk.dtype == np.float16 and chunk.shape == (13, 3, 2, trace.header.n_pages)
        np.testing.assert_array_equal(chunk[-1], list(trace)[-1].mass_sum.astype(np.float16))


def test_only_what_is_asked_for_is_read(tmp_path):
    random_trace().write(tmp_path / "a.trace")
    with zipfile.ZipFile(tmp_path / "a.trace") as whole:
        box = next(info for info in whole.infolist() if info.filename.endswith("box.npy"))
    data = bytearray((tmp_path / "a.trace").read_bytes())
    middle = box.header_offset + len(box.filename) + 200
    data[middle : middle + 40] = bytes(40)
    (tmp_path / "a.trace").write_bytes(data)
    with Trace.open(tmp_path / "a.trace") as trace:
        assert len(list(trace.steps(["b2"]))) == len(trace)
        with pytest.raises(ConfigError, match="damaged.*estimate_box"):
            list(trace.steps(["box"]))
        with pytest.raises(ConfigError, match="no estimates of sketch 'b1', but of: b2, box"):
            next(trace.steps(["b1"]))


@pytest.mark.parametrize(("rows", "n_steps", "n_warmup"), [([2, 0], 7, 2), (None, None, 0), ([1], 40, None)])
def test_cut(rows, n_steps, n_warmup):
    trace = random_trace()
    smaller = trace.cut(rows, n_steps, n_warmup)
    rows = [0, 1, 2] if rows is None else rows
    assert smaller.header.layers == tuple(trace.header.layers[row] for row in rows)
    kept = list(trace)[5 - smaller.header.n_warmup :][: len(smaller)]
    assert len(smaller) == (5 if n_warmup is None else n_warmup) + (n_steps or 40) == len(kept)
    n = smaller.header.n_pages
    for a, b in zip(smaller, kept):
        assert (a.position, a.warmup) == (b.position, b.warmup)
        np.testing.assert_array_equal(a.mass_sum, b.mass_sum[rows, :, :n])
        np.testing.assert_array_equal(a.estimates["box"], b.estimates["box"][rows, :, :n])
    np.testing.assert_array_equal(smaller.key_norms, trace.key_norms[rows, :, :n])
    with pytest.raises(ConfigError, match="cannot be cut"):
        trace.cut([3])


def test_what_is_no_trace(tmp_path):
    path = tmp_path / "a.trace"
    random_trace().write(path)
    whole = path.read_bytes()

    def refused(match: str) -> None:
        with pytest.raises(ConfigError, match=match):
            Trace.open(path)

    path.write_bytes(whole[: len(whole) // 2])
    refused("is no trace, or only a part of one")
    path.write_bytes(b"GGUF" + bytes(100))
    refused("is no trace")
    with zipfile.ZipFile(path, "w") as other:
        other.writestr("readme.txt", "hello")
    refused("is no trace")
    with zipfile.ZipFile(path, "w") as other:
        other.writestr("header.json", "[1]")
    refused("is no trace")
    path.unlink()
    refused("cannot be read: No such file")


@pytest.mark.parametrize(("old", "new", "match"), [
    ('"version": 1', '"version": 2', "version 2 and this EdgeKV reads version 1"), ("edgekv-trace", "another", "is no trace"),
    ('"n_steps": 40', '"n_steps": 90', "is damaged"), ('"n_steps"', '"steps"', "is damaged"),
    ('"n_heads": 2', '"n_heads": 1', "is damaged"),
    ('"sketches": [', '"sketches": ["b1", ', "estimate_b1.npy is missing")])
def test_another_header(tmp_path, old, new, match):
    random_trace().write(tmp_path / "a.trace")
    with zipfile.ZipFile(tmp_path / "a.trace") as whole, zipfile.ZipFile(tmp_path / "b.trace", "w") as changed:
        for name in whole.namelist():
            data = whole.read(name)
            changed.writestr(name, data.replace(old.encode(), new.encode(), 1) if name == "header.json" else data)
    with pytest.raises(ConfigError, match=match):
        Trace.open(tmp_path / "b.trace")


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    trace, path = random_trace(), tmp_path / "a.trace"
    path.write_text("an earlier one")
    with pytest.raises(KeyboardInterrupt), TraceWriter(path, trace.header) as writer:
        writer.key_norms(trace.key_norms)
        assert len(list(tmp_path.iterdir())) == 2
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="not complete"), TraceWriter(path, trace.header) as writer:
        writer.key_norms(trace.key_norms)
    assert [file.name for file in tmp_path.iterdir()] == ["a.trace"] and path.read_text() == "an earlier one"
    (tmp_path / "a.trace.part").write_text("half")
    with pytest.raises(KeyboardInterrupt), TraceWriter(path, trace.header) as writer:
        assert writer.replaced
        raise KeyboardInterrupt
    trace.write(path)
    with Trace.open(path) as read:
        same(trace, read)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk(tmp_path):
    (tmp_path / "a.trace.part").symlink_to("/dev/full")
    with pytest.raises(EdgeKVError, match="a.trace was not written: the disk is full; free some space"):
        random_trace().write(tmp_path / "a.trace")
    assert not list(tmp_path.iterdir())


def test_places_that_cannot_be_written(tmp_path):
    with pytest.raises(ConfigError, match="is a folder"):
        random_trace().write(tmp_path)
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        random_trace().write(tmp_path / "none" / "a.trace")


# ---- the recorder ---------------------------------------------------------------------------------------------------------------

TEXT = Text("words", "A text of its own, with few words. " * 60)


def recorded(tmp_path, model, **changes) -> Trace:
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.trace"
    settings = {"depth": 300, "n_steps": 40, "n_warmup": 8, "sketches": ("b2",), **changes}
    record(Recording(model, find_text("prose"), **settings), path)
    return Trace.open(path)


def observed(model, tokens, n_prompt: int, **options) -> np.ndarray:
    """float32 [step, row, head, page]: what mode exact gives the pages."""
    llama = Llama(str(model), kv="exact", n_ctx=len(tokens), n_threads=1, verbose=False, **options)
    steps = []
    try:
        llama.eval(tokens[:n_prompt])
        llama.kv.observers.append(lambda step: steps.append(step.mass_sum.copy()))
        for token in tokens[n_prompt:]:
            llama.eval([token])
    finally:
        llama.close()
    return np.stack(steps)


@pytest.mark.parametrize(("kind", "shape", "type_k"), [
    ("llama", {}, "f16"), ("llama", {"n_head": 6, "n_head_kv": 2, "head_dim": 128}, "q8_0"), ("gemma2", {}, "f16"),
    ("gpt-oss", {}, "f16")])
def test_a_recording_is_full_attention(tmp_path, synthetic, kind, shape, type_k):
    model = synthetic(kind, **shape)
    caches = Caches(CacheType(type_k))
    with recorded(tmp_path, model, caches=caches, sketches=("b2", "box")) as trace:
        of, steps = trace.header, list(trace)
    llama = Llama(str(model), n_ctx=512, verbose=False)
    tokens = find_text("prose").tokens(llama, 340)
    hooked = [layer for layer in llama.kv.layers if layer.hooked]
    llama.close()
    assert of.layers == tuple(layer.il for layer in hooked) and of.groups == tuple(layer.n_head // layer.n_head_kv for layer in hooked)
    assert (of.depth, of.n_total, of.n_pages) == (300, 48, 22)
    # the same step gives the same bits; float16 rounds them
    truth = observed(model, tokens, 292, type_k=type_k)[..., : of.n_pages]
    np.testing.assert_array_equal(np.stack([step.mass_sum for step in steps]), truth.astype(np.float16).astype(np.float32))
    for step in steps:
        assert (step.mass_max <= step.mass_sum + 1e-6).all()
        assert (step.mass_max * of.group >= step.mass_sum * (1 - 1e-3) - 1e-6).all()
        for estimate in step.estimates.values():
            if kind != "gpt-oss":  # sinks of the model itself take some
                np.testing.assert_allclose(step.mass_sum.sum(axis=2), of.group, rtol=2e-3)
                np.testing.assert_allclose(estimate.sum(axis=2), of.group, rtol=2e-3)
    error = {sketch: np.mean([np.abs(step.estimates[sketch] - step.mass_sum).sum() for step in steps]) for sketch in of.sketches}
    assert error["b2"] < error["box"]


def test_each_kind_is_as_if_it_were_alone(tmp_path, synthetic):
    """Also: the passes rewind to the same tokens."""
    model = synthetic("llama")
    with recorded(tmp_path, model, sketches=("b2", "box", "b1")) as together:
        for sketch in ("box", "b1"):
            with recorded(tmp_path, model, sketches=(sketch,)) as alone:
                for a, b in zip(together, alone, strict=True):
                    np.testing.assert_array_equal(a.estimates[sketch], b.estimates[sketch])
                    np.testing.assert_array_equal(a.mass_sum, b.mass_sum)
        with recorded(tmp_path, model, sketches=()) as attention:
            same(attention, Trace.of(replace(together.header, sketches=()), *_arrays(together), key_norms=together.key_norms))


def _arrays(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    steps = list(trace.steps())
    return np.stack([step.mass_sum for step in steps]), np.stack([step.mass_max for step in steps])


def test_key_norms(tmp_path, synthetic):
    """Norms do not turn with the position: those of q8_0 are those of f16 but for its rounding."""
    model = synthetic("llama")
    norms = []
    for type_k in CacheType:
        with recorded(tmp_path, model, caches=Caches(type_k)) as trace:
            norms.append(trace.key_norms)
    assert norms[0].shape == (2, 2, 22) and (norms[0] > 1).all() and norms[0].std() > 0.05
    np.testing.assert_allclose(*norms, rtol=0.01)


def test_what_cannot_be_recorded(tmp_path, synthetic):
    path = tmp_path / "a.trace"

    def refused(match: str, kind: type[EdgeKVError], model: Path, text: Text = TEXT, **changes) -> None:
        with pytest.raises(kind, match=match):
            record(Recording(model, text, **{"depth": 300, "n_steps": 40, "n_warmup": 8, **changes}), path)
        assert not list(tmp_path.iterdir())

    llama = synthetic("llama")
    refused("the text words has .* tokens and 4000 are needed", ConfigError, llama, depth=3000, n_steps=1000)
    refused("recurrent layers and cannot be rewound", EdgeKVError, synthetic("lfm2"), sketches=("b2", "b1"))
    refused("serves no layer of this model", EdgeKVError, synthetic("mamba"))
    for changes in ({"sketches": ("none",)}, {"sketches": ("b2", "b2")}, {"sketches": ("b3",)}, {"n_steps": 0}, {"depth": 8}):
        with pytest.raises(ConfigError):
            Recording(llama, TEXT, **{"depth": 300, "n_warmup": 8, **changes})


def test_a_recurrent_model_with_one_kind(tmp_path, synthetic):
    with recorded(tmp_path, synthetic("lfm2")) as trace:
        assert trace.header.n_rows >= 1 and trace.header.sketches == ("b2",)


# ---- the command ----------------------------------------------------------------------------------------------------------------


def command(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*EDGEKV, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, **environment})


def test_record_and_info(tmp_path, synthetic):
    path = tmp_path / "a.trace"
    small = ("--depth", 200, "--steps", 20, "--window", 4, "--threads", 1)
    done = command("trace", "record", synthetic("llama"), "-o", path, "--text", "code", "--sketches", "none", *small)
    assert done.returncode == 0 and done.stdout == "" and "200 tokens and 20 steps" in done.stderr
    told = command("trace", "info", path)
    assert "200 before the steps (4 of them the window), 20 steps" in told.stdout and "4 KV heads in 2 layers" in told.stdout
    assert '"sketches": []' in command("trace", "info", path, "-o", "json").stdout
    stock = command("trace", "record", synthetic("llama"), "-o", path, *small, EDGEKV="0")
    assert stock.returncode == 2 and stock.stderr == "edgekv: EDGEKV=0 is set, so there is no attention to observe; unset it\n"
    both = command("trace", "record", synthetic("llama"), "-o", path, "--sketches", "b2,none")
    assert both.returncode == 2 and "attention alone" in both.stderr


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_recording(tmp_path, synthetic, sign):
    """Ctrl-C leaves nothing; after a kill the next recording replaces what is left, and says so."""
    path, part = tmp_path / "a.trace", tmp_path / "a.trace.part"
    arguments = ["trace", "record", str(synthetic("llama")), "-o", str(path), "--threads", "1"]
    running = subprocess.Popen([*EDGEKV, *arguments, "--depth", "400", "--steps", "3600"], stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        if part.exists() and part.stat().st_size:
            break
        time.sleep(0.05)
    running.send_signal(sign)
    _, said = running.communicate(timeout=60)
    assert not path.exists()
    assert part.exists() == (sign == signal.SIGKILL)
    if sign == signal.SIGINT:
        assert running.returncode == 130 and said.strip() == "edgekv: interrupted"
        return
    done = command(*arguments, "--depth", 200, "--steps", 20)
    assert done.returncode == 0 and "a.trace.part, left over from a recording that did not end, is replaced" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["a.trace"]
