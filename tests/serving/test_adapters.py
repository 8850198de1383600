"""Rows of one set of adapters are not used or kept as rows of another, however a slot comes to other adapters."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.adapters import lora
from support.clients import post
from support.kept import ask, conversation, n_read, serve

from edgekv.models.synth import SyntheticShape
from edgekv.store.settings import StoreSettings

SHAPE = SyntheticShape(n_layer=4, n_head=6)
PROMPT = conversation(1, 300)


@pytest.fixture
def tiny(synthetic) -> Path:
    return synthetic("llama", n_layer=SHAPE.n_layer, n_head=SHAPE.n_head, dtype="f32")


@pytest.fixture
def adapted(tmp_path) -> tuple[str, ...]:
    """The adapter is loaded, and only requests that name it use it."""
    return "--lora-scaled", f"{lora(tmp_path / 'adapter.gguf', SHAPE)}:0"


def answer(model: Path, extra: tuple[str, ...] = (), **more) -> list[int]:
    """The answer of a server that keeps nothing."""
    with serve(model, store=None, extra=extra) as server:
        return ask(server, PROMPT, cache_prompt=False, **more)["tokens"]


def set_adapters(server, scale: float) -> None:
    post(server.url, "/lora-adapters", [{"id": 0, "scale": scale}])


ON = {"lora": [{"id": 0, "scale": 1.0}]}


def test_a_request_without_adapters_takes_no_rows_of_theirs(tiny, adapted):
    plain, steered = answer(tiny), answer(tiny, adapted, **ON)
    assert plain != steered
    with serve(tiny, extra=adapted) as server:
        assert ask(server, PROMPT, **ON)["tokens"] == steered
        without = ask(server, PROMPT)
        assert (without["tokens"], n_read(without)) == (plain, len(PROMPT))
        again = ask(server, PROMPT, **ON)
        assert again["tokens"] == steered and n_read(again) == 1  # its own rows, from RAM


def test_adapters_that_are_set_for_all_requests_take_no_rows_of_others(tiny, adapted):
    plain, steered = answer(tiny), answer(tiny, adapted, **ON)
    with serve(tiny, extra=adapted) as server:
        assert ask(server, PROMPT)["tokens"] == plain
        set_adapters(server, 1.0)
        changed = ask(server, PROMPT)
        assert (changed["tokens"], n_read(changed)) == (steered, len(PROMPT))
        set_adapters(server, 0.0)
        assert ask(server, PROMPT)["tokens"] == plain
        set_adapters(server, 1e-7)  # as text it was 0.000000
        assert n_read(ask(server, PROMPT)) == len(PROMPT)


@pytest.mark.parametrize("how", ["request", "post"])
def test_what_adapters_computed_is_not_kept_under_another_name(tiny, adapted, tmp_path, how):
    """A server without adapters used to take such rows from disk."""
    plain, where = answer(tiny), StoreSettings(folder=tmp_path / "kept")
    with serve(tiny, store=where, extra=adapted) as server:
        if how == "post":
            set_adapters(server, 1.0)
            ask(server, PROMPT)
            set_adapters(server, 0.0)
        else:
            ask(server, PROMPT, **ON)
        ask(server, PROMPT[:-1])
        server.prefixes.flush()
    with serve(tiny, store=where) as server:
        found = ask(server, PROMPT)
        assert found["tokens"] == plain and n_read(found) < 3


def test_slots_share_no_cells_of_other_adapters(tiny, adapted):
    plain = answer(tiny)
    with serve(tiny, store=None, n_slots=2, extra=("--kv-unified", *adapted)) as server:
        ask(server, PROMPT, id_slot=0, **ON)
        assert ask(server, PROMPT, id_slot=1)["tokens"] == plain
