"""The plan of a context on a device against what the engine allocates, on the emulated device."""

import pytest
from support.contexts import attached
from support.fake_gpus import GIB

from edgekv._native import device_calls
from edgekv.common.enums import DeviceKind
from edgekv.config import KvOptions
from edgekv.models import geometry
from edgekv.planning.device_fit import device_plan
from edgekv.planning.devices import room_of

pytestmark = pytest.mark.usefixtures("emulator")

N_CTX = 2048
CASES = [
    ("exact", {}, {}), ("exact", {"page_size": 80}, {"n_head": 6}), ("exact", {"type_k": "q8_0"}, {"head_dim": 128}),
    ("sparse", {}, {}), ("sparse", {"page_size": 80}, {"head_dim": 128, "n_head": 16}),
    ("sparse", {"type_v": "q8_0"}, {}), ("sparse", {"type_k": "q4_0", "type_v": "q8_0"}, {}),
]


@pytest.mark.parametrize(("mode", "changes", "shape"), CASES, ids=str)
@pytest.mark.parametrize("n_sequences", [1, 3])
@pytest.mark.parametrize("budget", ["auto", "large", "small"])
def test_the_plan_is_what_is_allocated(synthetic, mode, changes, shape, n_sequences, budget):
    """The small budget stages one layer at a time, has a shorter ring in mode exact, and an arena for a part of the pages."""
    path = synthetic("llama", n_ctx_train=4096, **shape)
    options = KvOptions(mode=mode, attention_device="emulated", exact_tokens=0, **changes)
    room = room_of(device_calls.info(DeviceKind.EMULATED))
    if budget != "auto":
        options = options.with_(kv_vram=GIB)
        whole = device_plan(geometry(path), N_CTX, options, room, n_sequences)
        options = options if budget == "large" else options.with_(kv_vram=whole.fixed + whole.arena // 4)
    plan = device_plan(geometry(path), N_CTX, options, room, n_sequences)
    assert not plan.missing
    types = {"type_k": options.cache.type_k.ggml_type, "type_v": options.cache.type_v.ggml_type}
    with attached(path, options, n_ctx=N_CTX * n_sequences, n_seq=n_sequences, unified=False, n_threads=1, **types) as (context, runtime):
        plane, memory = device_calls.plane(runtime._native_handle()), runtime.memory()
        assert (plane.fixed_bytes, plane.staging_bytes) == (plan.fixed, plan.staging), "the parts beside the arena"
        assert (memory.sketch_bytes, memory.workspace_bytes) == (plan.sketches, plan.scratch + plan.staging + plan.ring)
        assert plan.arena <= memory.arena_bytes < plan.arena + 256
        assert budget == "auto" or plane.budget_bytes == plan.budget
        context.decode([300] * 17, range(17), [0] * 17)
        context.decode([300] * n_sequences, [17] + [0] * (n_sequences - 1), range(n_sequences))
        assert device_calls.plane(runtime._native_handle()).fixed_bytes == plan.fixed, "a step takes nothing more"
