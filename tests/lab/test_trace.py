"""Trace files: what is written is read, what is not a trace is refused, and an interrupted recording leaves nothing. And the recorder."""

import os
import signal
import subprocess
import time
import zipfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.laboratory import COMMAND
from support.traces import random_trace

from edgekv.bench.text import Text, find_text
from edgekv.common.enums import CacheType
from edgekv.common.errors import ConfigError, EdgeKVError
from edgekv.common.reports import LayerReport
from edgekv.config import KvOptions
from edgekv.lab.traces.file import CHUNK_STEPS, TraceWriter
from edgekv.lab.traces.record import Recording, record
from edgekv.lab.traces.trace import Trace
from edgekv.llama import Llama
from edgekv.runtime.observers import UbatchReport
from edgekv.runtime.runtime import Runtime

ARRAYS = ("mass_sum", "mass_max", "sampled_sum", "sampled_max", "n_read")


def same(one: Trace, other: Trace) -> None:
    assert one.header == other.header, "the headers differ"
    for a, b in zip(one, other, strict=True):
        assert (a.position, a.n_used_end, a.warmup) == (b.position, b.n_used_end, b.warmup), f"the steps at {a.position} differ"
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), f"{name} at {a.position}")


def arrays_of(trace: Trace) -> dict[str, np.ndarray]:
    """[step, row, head, page] of each."""
    steps = list(trace)
    return {name: np.stack([getattr(step, name) for step in steps]) for name in ARRAYS}


# ---- the file -------------------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path):
    trace = random_trace(n_steps=2 * CHUNK_STEPS + 3)
    trace.write(tmp_path / "a.trace")
    with Trace.open(tmp_path / "a.trace") as read:
        same(trace, read)
        read.keep()
        same(trace, read)  # again, from the start
    same(trace, read)  # in memory
    same(trace, Trace.of(trace.header, **arrays_of(trace)))
    assert trace.n_bytes == sum(array.nbytes for array in trace._source._arrays.values())
    assert os.listdir(tmp_path) == ["a.trace"]


def test_damage_is_told_where_it_is_read(tmp_path):
    random_trace().write(tmp_path / "a.trace")
    with zipfile.ZipFile(tmp_path / "a.trace") as whole:
        member = next(info for info in whole.infolist() if info.filename.endswith("sampled_max.npy"))
    data = bytearray((tmp_path / "a.trace").read_bytes())
    middle = member.header_offset + len(member.filename) + 200
    data[middle : middle + 40] = bytes(40)
    (tmp_path / "a.trace").write_bytes(data)
    with Trace.open(tmp_path / "a.trace") as trace, pytest.raises(ConfigError, match="damaged.*sampled_max"):
        list(trace)


def test_what_is_no_trace(tmp_path):
    path = tmp_path / "a.trace"
    random_trace().write(path)
    whole = path.read_bytes()

    def refused(match: str) -> None:
        with pytest.raises(ConfigError, match=match):
            Trace.open(path)

    path.write_bytes(whole[: len(whole) // 2])
    refused("is not a trace, or only a part of one")
    path.write_bytes(b"GGUF" + bytes(100))
    refused("is not a trace")
    with zipfile.ZipFile(path, "w") as other:
        other.writestr("readme.txt", "hello")
    refused("is not a trace")
    with zipfile.ZipFile(path, "w") as other:
        other.writestr("header.json", "[1]")
    refused("is not a trace")
    path.unlink()
    refused("cannot be read: No such file")


@pytest.mark.parametrize(("old", "new", "match"), [
    ('"version": 2', '"version": 1', "version 1 and this EdgeKV reads version 2; record it again"),
    ("edgekv-trace", "another", "is not a trace"),
    ('"n_steps": 40', '"n_steps": 90', "is damaged"), ('"n_steps"', '"steps"', "is damaged"),
    ('"n_heads": 2', '"n_heads": 1', "is damaged"), ('"resolution"', '"sketches"', "is damaged")])
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
        writer.chunk("mass_sum", 0, arrays_of(trace)["mass_sum"][:CHUNK_STEPS])
        assert len(list(tmp_path.iterdir())) == 2
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="not complete"), TraceWriter(path, trace.header) as writer:
        writer.chunk("mass_sum", 0, arrays_of(trace)["mass_sum"][:CHUNK_STEPS])
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


# ---- the recorder ---------------------------------------------------------------------------------------------------------------

TEXT = Text("words", "A text of its own, with few words. " * 60)


def test_places_that_cannot_be_written(tmp_path):
    with pytest.raises(ConfigError, match="is a folder"):
        random_trace().write(tmp_path)
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        random_trace().write(tmp_path / "none" / "a.trace")


def recorded(tmp_path, model, **changes) -> Trace:
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.trace"
    settings = {"depth": 300, "n_steps": 40, "n_warmup": 8, **changes}
    record(Recording(model, find_text("prose"), **settings), path)
    return Trace.open(path)


def live(model, seen: Callable[[Runtime, UbatchReport], None], **options) -> list[LayerReport]:
    """Decode the tokens of such a recording without one; seen(runtime, step) after each step. Returns the layers."""
    with closing(Llama(str(model), n_ctx=340, n_threads=1, verbose=False, **options)) as llama:
        tokens = find_text("prose").tokens(llama, 340)
        llama.eval(tokens[:292])
        llama.kv.observers.append(partial(seen, llama.kv))
        for token in tokens[292:]:
            llama.eval([token])
        return llama.kv.layers


@pytest.mark.parametrize(("kind", "shape", "type_k"), [
    ("llama", {}, "f16"), ("llama", {"n_head": 6, "n_head_kv": 2, "head_dim": 128}, "q8_0"), ("llama", {}, "q4_0"), ("gemma2", {}, "f16"),
    ("gpt-oss", {}, "f16")])
def test_a_recording_is_full_attention(tmp_path, synthetic, kind, shape, type_k):
    model = synthetic(kind, **shape)
    with recorded(tmp_path, model, type_k=CacheType(type_k)) as trace:
        of, steps = trace.header, list(trace)
    truth: list[np.ndarray] = []
    layers = live(model, lambda _, step: truth.append(step.mass_sum[..., : of.n_pages].copy()), kv="exact", type_k=type_k)
    hooked = [layer for layer in layers if layer.hooked]
    assert of.layers == tuple(layer.il for layer in hooked) and of.groups == tuple(layer.n_head // layer.n_head_kv for layer in hooked)
    assert (of.depth, of.n_total, of.n_pages) == (300, 48, 22)
    # the same step gives the same bits; float16 rounds them
    np.testing.assert_array_equal(np.stack([step.mass_sum for step in steps]), np.stack(truth).astype(np.float16).astype(np.float32))
    for step in steps:
        assert (step.mass_max <= step.mass_sum + 1e-6).all()
        assert (step.mass_max * of.group >= step.mass_sum * (1 - 1e-3) - 1e-6).all()
        if kind != "gpt-oss":  # sinks of the model itself take some
            np.testing.assert_allclose(step.mass_sum.sum(axis=2), of.group, rtol=2e-3)


def test_a_recording_is_what_mode_sparse_observes(tmp_path, synthetic):
    """The same as live, and right on average: over many steps its mean is that of full attention."""
    model = synthetic("llama", n_layer=2)
    with recorded(tmp_path, model, resolution=200.0) as trace:
        of, arrays = trace.header, arrays_of(trace)
    assert of.resolution == 200
    masses, n_read = [], np.zeros(arrays["n_read"].shape)

    def seen(runtime: Runtime, step: UbatchReport) -> None:
        for row, head in np.ndindex(n_read.shape[1:3]):
            for cell in runtime.last_rows(row, head)[0]:
                n_read[len(masses), row, head, cell // 16] += 1
        masses.append(step.mass_sum[..., : of.n_pages].copy())

    live(model, seen, kv_options=KvOptions(mode="sparse", sample_budget=200.0, exact_tokens=0, keep_rows=True, plan_every=1, policy="none", kv_budget=0,
                                           attention_device="cpu"))
    np.testing.assert_array_equal(arrays["sampled_sum"], np.stack(masses).astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(arrays["n_read"], n_read)
    assert (arrays["n_read"].sum(axis=3) < 300).all() and (arrays["n_read"] == 0).any()
    assert not arrays["sampled_sum"][arrays["n_read"] == 0].any(), "what is not read has no weight"
    assert (arrays["sampled_max"] <= arrays["sampled_sum"] + 1e-6).all()
    np.testing.assert_allclose(arrays["sampled_sum"].sum(axis=3), of.group, rtol=2e-3)
    # pages between the sinks and the newest are read by chance; the first layer sees the same as full attention does
    middle = np.s_[:, 0, :, 2:12]
    error = arrays["sampled_sum"][middle] - arrays["mass_sum"][middle]
    mean = arrays["mass_sum"][middle].mean()
    assert np.abs(error.mean()) < 0.02 * mean and error.std() > 0.05 * mean


def test_what_cannot_be_recorded(tmp_path, synthetic):
    path = tmp_path / "a.trace"

    def refused(match: str, kind: type[EdgeKVError], model: Path, text: Text = TEXT, **changes) -> None:
        with pytest.raises(kind, match=match):
            record(Recording(model, text, **{"depth": 300, "n_steps": 40, "n_warmup": 8, **changes}), path)
        assert not list(tmp_path.iterdir())

    llama = synthetic("llama")
    refused("the text words has .* tokens and 4000 are needed", ConfigError, llama, depth=3000, n_steps=1000)
    refused("serves no layer of this model", EdgeKVError, synthetic("mamba"))
    with pytest.raises(ConfigError, match="the window, of 8 tokens"):
        Recording(llama, TEXT, depth=8, n_warmup=8)


def test_a_recurrent_model_reads_the_text_once(tmp_path, synthetic):
    """Its state at the end of the text is kept for the second pass."""
    said = []
    path = tmp_path / "a.trace"
    record(Recording(synthetic("lfm2"), find_text("prose"), depth=300, n_steps=40, n_warmup=8, resolution=1e9), path,
           lambda what, done, total: said.append(what))
    assert list(dict.fromkeys(said)) == ["read the text", "record attention", "record what sampling observes"]
    assert said.index("record attention") > len(said) - 1 - said[::-1].index("read the text")
    with Trace.open(path) as trace:
        for step in trace:  # a resolution that reads everything
            np.testing.assert_allclose(step.sampled_sum, step.mass_sum, rtol=2e-3, atol=1e-5)


# ---- the command ----------------------------------------------------------------------------------------------------------------


def command(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, "lab", *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, **environment})


def test_record_and_info(tmp_path, synthetic):
    path = tmp_path / "a.trace"
    small = ("--depth", 200, "--steps", 20, "--window", 4, "--threads", 1)
    done = command("trace", "record", synthetic("llama"), "-o", path, "--text", "code", "--sample-budget", "2000", *small)
    assert done.returncode == 0 and done.stdout == "" and "200 tokens and 20 steps" in done.stderr
    told = command("trace", "info", path)
    assert "200 before the steps (4 of them the window), 20 steps" in told.stdout and "4 KV heads in 2 layers" in told.stdout
    assert "at sample budget 2,000" in told.stdout and '"resolution": 2000.0' in command("trace", "info", path, "-o", "json").stdout
    stock = command("trace", "record", synthetic("llama"), "-o", path, *small, EDGEKV="0")
    assert stock.returncode == 2 and stock.stderr == "edgekv: EDGEKV=0 is set, so there is no attention to observe; unset it\n"
    none = command("trace", "record", synthetic("llama"), "-o", path, "--sample-budget", "0")
    assert none.returncode == 2 and "the sample budget is '0'" in none.stderr


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_recording(tmp_path, synthetic, sign):
    """Ctrl-C leaves nothing; after a kill the next recording replaces what is left, and says so."""
    path, part = tmp_path / "a.trace", tmp_path / "a.trace.part"
    arguments = ["trace", "record", str(synthetic("llama")), "-o", str(path), "--threads", "1"]
    running = subprocess.Popen([*COMMAND, "lab", *arguments, "--depth", "400", "--steps", "3600"], stderr=subprocess.PIPE, text=True)
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
