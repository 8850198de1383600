"""The endpoint shows where the pages of a context on a device lie."""

import numpy as np
import pytest
from support.local_server import SPARSE, complete, exposed, map_fields, options, settled

from edgekv.pages.residency import State
from edgekv.server import page_map
from edgekv.server.server import Server


@pytest.fixture(scope="module")
def on_a_device(synthetic, emulator):
    """One slot, whose pages have slots in a device's arena."""
    with Server(options(synthetic("llama"), kv=SPARSE.with_(attention_device="emulated", plan_every=1))) as server:
        complete(server)
        settled(server)
        yield server


def test_pages_of_a_device_are_those_of_the_runtime(on_a_device):
    run, state = on_a_device.runtime, settled(on_a_device)
    memory, pages, selection, shown = run.memory(), run.tiers(), run.selection(), state["pages"]
    assert state["tiers"][0] == {"tier": "arena", "bytes": memory.arena_bytes, "used_bytes": (pages.n_resident + pages.n_moving) * pages.slot_bytes}
    assert (shown["arena"], shown["home"], shown["filling"], shown["moving"], shown["arena_slots"], shown["promoted"], shown["moved_bytes"]) == (
        pages.n_resident, pages.n_home, pages.n_filling, pages.n_moving, pages.n_slots, pages.n_promotions, pages.moved_bytes)
    assert pages.n_resident > 0 and state["selection"]["hit_rate"] == selection.hit_rate > 0, "the fixture exercises the hierarchy"
    (slot,) = state["slots"]
    assert slot["pages_arena"] == pages.n_resident + pages.n_moving
    found = exposed(on_a_device)
    assert found["edgekv_pages_promoted_total", ()] == pages.n_promotions and found["edgekv_pages", (("state", "arena"),)] == pages.n_resident
    assert found["edgekv_rows_hit_total", ()] == selection.n_hits and found["edgekv_hit_ratio", (("by", "mass"),)] == pytest.approx(selection.hit_rate_mass)


def test_the_map_shows_where_pages_live(on_a_device):
    run = on_a_device.runtime
    fields, shown = map_fields(on_a_device, 0)
    state = run.residency().state[:, :, : shown["n_columns"]]
    cells = run.cells.stream(0).positions[: 16 * shown["n_columns"]] >= 0
    state = np.where(cells.reshape(-1, 16).any(axis=1) & (state == State.FREE), State.FILLING, state)
    lines = np.concatenate([state[row, : layer.n_head_kv] for row, layer in enumerate(run.layers)])
    assert fields.shape == lines.shape and shown["pages_per_column"] == shown["heads_per_line"] == 1
    places = {State.FREE: page_map.EMPTY, State.HOME: page_map.HOME, State.FILLING: page_map.FILLING, State.MOVING: page_map.MOVING,
              State.RESIDENT: page_map.ALL}
    assert all((fields[lines == was] >> 4 == place).all() for was, place in places.items())
    assert (fields & 15).max() > 5 and not (fields & 15)[lines == State.FREE].any(), "attention goes somewhere, and to no empty page"
