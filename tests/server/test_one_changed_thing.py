"""A server takes no kept row where one thing has changed: behind its options, or in the adapters of a request."""

import shutil
from pathlib import Path

import pytest
from support.adapters import control_vector, lora
from support.clients import post
from support.faulty import flip
from support.prefix_server import EXACT, ask, conversation, from_disk, n_read, serve

from edgekv.models.reader import open_gguf
from edgekv.models.synth_file import SyntheticShape
from edgekv.prefix_cache.settings import StoreSettings

SHAPE = SyntheticShape(n_layer=4, n_head=6)
PROMPT = conversation(1, 300)


@pytest.fixture
def tiny(synthetic) -> Path:
    return synthetic("llama", n_layer=SHAPE.n_layer, n_head=SHAPE.n_head, dtype="f32")


def other_weight(path: Path) -> None:
    """Change the last byte of a tensor, far behind its first 4 KiB."""
    tensor = next(tensor for tensor in open_gguf(path).tensor_infos if tensor.name == "blk.1.attn_k.weight")
    path.write_bytes(flip(tensor.end - 1)(path.read_bytes()))


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


def found_in(home: Path) -> int:
    """Tokens that a new server takes from the folder, with the files beside it."""
    extra = ("--lora", str(home / "adapter.gguf"), "--control-vector", str(home / "vector.gguf"))
    return from_disk(home / "model.gguf", EXACT | {"type_k": "q8_0", "type_v": "q8_0"}, StoreSettings(folder=home / "kept"), PROMPT, extra=extra)


@pytest.fixture(scope="module")
def kept(synthetic, tmp_path_factory) -> Path:
    """A model, an adapter, a control vector, and a folder with a prompt that was read with them."""
    home = tmp_path_factory.mktemp("changed")
    (home / "model.gguf").write_bytes(synthetic("llama", n_layer=SHAPE.n_layer, n_head=SHAPE.n_head, dtype="f32").read_bytes())
    lora(home / "adapter.gguf", SHAPE)
    control_vector(home / "vector.gguf", SHAPE)
    assert found_in(home) == 0
    return home


@pytest.mark.parametrize("name", [None, *CHANGES])
def test_one_thing_that_is_changed_without_an_option(kept, tmp_path, monkeypatch, name):
    home = shutil.copytree(kept, tmp_path / "home")
    if name is not None:
        CHANGES[name]({kind: home / f"{kind}.gguf" for kind in ("model", "adapter", "vector")}, monkeypatch)
    assert found_in(home) == (0 if name else len(PROMPT))


def test_the_range_of_a_control_vector(tiny, tmp_path):
    where, vector = StoreSettings(folder=tmp_path / "kept"), str(control_vector(tmp_path / "vector.gguf", SHAPE))

    def found(first: int, last: int, strength: str = "1") -> int:
        options = ("--control-vector-scaled", f"{vector}:{strength}", "--control-vector-layer-range", str(first), str(last))
        return from_disk(tiny, EXACT, where, PROMPT, extra=options)

    assert [found(1, 3), found(1, 2), found(2, 3), found(1, 3, "0.5"), found(1, 3)] == [0, 0, 0, 0, len(PROMPT)]


def test_the_context_that_chooses_factors(synthetic, tmp_path):
    """Rows written with 1,024 tokens have short factors; long ones would rotate K wrongly."""
    model, where = synthetic("longrope", dtype="f32"), StoreSettings(folder=tmp_path / "kept")
    found = [from_disk(model, EXACT, where, PROMPT, n_ctx=n_ctx) for n_ctx in (1024, 2048, 512, 4096)]
    assert found == [0, 0, len(PROMPT), len(PROMPT)]


def test_where_files_of_adapters_lie_does_not_matter(tiny, tmp_path):
    where = StoreSettings(folder=tmp_path / "kept")
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        path = lora(tmp_path / name / "adapter.gguf", SHAPE)
        found.append(from_disk(tiny, EXACT, where, PROMPT, extra=("--lora", str(path))))
    assert found == [0, len(PROMPT)]


# ---- adapters --------------------------------------------------------------------------------------------------------


@pytest.fixture
def adapted(tmp_path) -> tuple[str, ...]:
    """The adapter is loaded, and only requests that name it use it."""
    return "--lora-scaled", f"{lora(tmp_path / 'adapter.gguf', SHAPE)}:0"


def answer(model: Path, extra: tuple[str, ...] = (), **more) -> list[int]:
    """The answer of a server that keeps nothing."""
    with serve(model, store=None, extra=extra) as server:
        return ask(server, PROMPT, cache_prompt=False, **more)["tokens"]


ON = {"lora": [{"id": 0, "scale": 1.0}]}


@pytest.mark.parametrize("for_all", [False, True], ids=["of a request", "of all requests"])
def test_rows_of_adapters_serve_their_own_alone(tiny, adapted, tmp_path, for_all):
    """A server without adapters used to take such rows from disk."""
    plain, steered, n, where = answer(tiny), answer(tiny, adapted, **ON), len(PROMPT), StoreSettings(folder=tmp_path / "kept")
    with serve(tiny, store=where, extra=adapted) as server:
        def asked(scale: float) -> tuple[list[int], int]:
            one = [{"id": 0, "scale": scale}]
            if for_all:
                post(server.url, "/lora-adapters", one)
            found = ask(server, PROMPT, **({"lora": one} if scale and not for_all else {}))
            return found["tokens"], n_read(found)

        assert plain != steered
        assert [asked(scale) for scale in (1.0, 0.0, 1.0, 0.0)] == [(steered, n), (plain, n), (steered, 1), (plain, 1)]
        assert asked(1e-7)[1] == n, "such a scale is 0.000000 as text"
        assert len(server.prefixes.stats()) == 1, "one for each scale would have threads, and a scan of the folder, for ever"
        server.prefixes.flush()
    with serve(tiny, store=where) as server:
        found = ask(server, PROMPT)
        assert (found["tokens"], n_read(found)) == (plain, 1)


def test_slots_share_no_cells_of_other_adapters(tiny, adapted):
    plain = answer(tiny)
    with serve(tiny, store=None, n_slots=2, extra=("--kv-unified", *adapted)) as server:
        ask(server, PROMPT, id_slot=0, **ON)
        assert ask(server, PROMPT, id_slot=1)["tokens"] == plain
