"""A server takes no kept row where one thing has changed behind its options."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.adapters import control_vector, lora
from support.kept import EXACT, conversation, serve, sources

from edgekv.models.reader import open_gguf
from edgekv.models.synth import SyntheticShape
from edgekv.store.settings import StoreSettings

SHAPE = SyntheticShape(n_layer=4, n_head=6)
PROMPT = conversation(1, 300)


@pytest.fixture
def tiny(synthetic) -> Path:
    return synthetic("llama", n_layer=SHAPE.n_layer, n_head=SHAPE.n_head, dtype="f32")


def other_weight(path: Path) -> None:
    """Change the last byte of a tensor, far behind its first 4 KiB."""
    tensor = next(tensor for tensor in open_gguf(path).tensor_infos if tensor.name == "blk.1.attn_k.weight")
    with path.open("r+b") as file:
        file.seek(tensor.end - 2)
        byte = file.read(1)
        file.seek(tensor.end - 2)
        file.write(bytes([byte[0] ^ 0x40]))


def yarn(monkeypatch, scale: str) -> None:
    monkeypatch.setenv("LLAMA_ARG_ROPE_SCALING_TYPE", "yarn")
    monkeypatch.setenv("LLAMA_ARG_ROPE_SCALE", scale)


CHANGES = {
    "a rope variable": lambda _, patch: patch.setenv("LLAMA_ARG_ROPE_FREQ_BASE", "20000"),
    "yarn variables": lambda _, patch: yarn(patch, "2"),
    "the rotation of the cache": lambda _, patch: patch.setenv("LLAMA_ATTN_ROT_DISABLE", "1"),
    "a weight": lambda files, _: other_weight(files["model"]),
    "the content of an adapter": lambda files, _: lora(files["adapter"], SHAPE, seed=1),
    "the content of a control vector": lambda files, _: control_vector(files["vector"], SHAPE, seed=1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_one_thing_that_is_changed_without_an_option(tiny, tmp_path, monkeypatch, name):
    files = {kind: tmp_path / f"{kind}.gguf" for kind in ("model", "adapter", "vector")}
    files["model"].write_bytes(tiny.read_bytes())
    lora(files["adapter"], SHAPE)
    control_vector(files["vector"], SHAPE)
    where = StoreSettings(folder=tmp_path / "kept")
    kv = EXACT | {"type_k": "q8_0", "type_v": "q8_0"}
    extra = ("--lora", str(files["adapter"]), "--control-vector", str(files["vector"]))

    def found() -> int:
        with serve(files["model"], kv, where, extra=extra) as server:
            n = sources(server, PROMPT)["disk"]
            server.prefixes.flush()
            return n

    assert (found(), found()) == (0, len(PROMPT))
    CHANGES[name](files, monkeypatch)
    assert found() == 0


def test_the_range_of_a_control_vector(tiny, tmp_path):
    where, vector = StoreSettings(folder=tmp_path / "kept"), str(control_vector(tmp_path / "vector.gguf", SHAPE))

    def found(first: int, last: int, strength: str = "1") -> int:
        options = ("--control-vector-scaled", f"{vector}:{strength}", "--control-vector-layer-range", str(first), str(last))
        with serve(tiny, EXACT, where, extra=options) as server:
            n = sources(server, PROMPT)["disk"]
            server.prefixes.flush()
            return n

    assert [found(1, 3), found(1, 2), found(2, 3), found(1, 3, "0.5"), found(1, 3)] == [0, 0, 0, 0, len(PROMPT)]


def test_the_context_that_chooses_factors(synthetic, tmp_path):
    """Rows written with 1,024 tokens have short factors; long ones would rotate K wrongly."""
    model, where = synthetic("longrope", dtype="f32"), StoreSettings(folder=tmp_path / "kept")

    def found(n_ctx: int) -> int:
        with serve(model, EXACT, where, n_ctx=n_ctx) as server:
            n = sources(server, PROMPT)["disk"]
            server.prefixes.flush()
            return n

    assert [found(1024), found(2048), found(512), found(4096)] == [0, 0, len(PROMPT), len(PROMPT)]


def test_where_files_of_adapters_lie_does_not_matter(tiny, tmp_path):
    where = StoreSettings(folder=tmp_path / "kept")
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        path = lora(tmp_path / name / "adapter.gguf", SHAPE)
        with serve(tiny, EXACT, where, extra=("--lora", str(path))) as server:
            found.append(sources(server, PROMPT)["disk"])
            server.prefixes.flush()
    assert found == [0, len(PROMPT)]
