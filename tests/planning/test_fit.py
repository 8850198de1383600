"""What fits in memory: contexts, sketches and arena of mode sparse, and all of it on a device."""

import re

import pytest
from msgspec.structs import replace
from support.contexts import attached

from edgekv.common.enums import KvMode
from edgekv.common.errors import EXIT_DOES_NOT_FIT, DoesNotFit
from edgekv.config import KvOptions
from edgekv.models import Geometry, geometry
from edgekv.models.geometry import open_model
from edgekv.planning import workspace
from edgekv.planning.device_fit import DeviceRoom, check_device, choose_device_context, device_plan, margin_bytes
from edgekv.planning.fit import kv_bytes, largest_context, sparse_layers

EXACT = KvOptions(mode=KvMode.EXACT)
SPARSE = KvOptions(mode=KvMode.SPARSE)
MIB, PLENTY = 1 << 20, 1 << 40


@pytest.mark.parametrize(("kind", "layers"), [("mamba", []), ("gemma2", [1]), ("lfm2", [1, 3])])
def test_only_layers_that_can_be_sparse_count(synthetic, kind, layers):
    model = geometry(synthetic(kind))
    exact, sparse = kv_bytes(model, 512, EXACT), kv_bytes(model, 512, SPARSE)
    assert sparse.home == exact.home == exact.total
    n_heads = sum(model.n_head_kv[il] for il in layers)
    assert (sparse.tables > 0) == (sparse.sketches > 0) == (n_heads > 0)
    evict = kv_bytes(model, 512, EXACT.with_(mode=KvMode.EVICT, evict_to=512))
    # 32 pages and 8 groups of cells: slot, mass (two numbers), drop; given back; oldest and newest; stale and pinned; what Python has
    entries = 32 * len(layers) * max((model.n_head_kv[il] for il in layers), default=0)
    assert evict.tables == (entries * (4 + 8 + 1) + len(layers) * 32 + 32 * 8 + 8 * (5 + 8) + n_heads * 32 * 35 if layers else 0)


def test_heads_that_have_kernels(synthetic):
    """At most 128 query heads share a KV head."""
    served = {dim: geometry(synthetic(head_dim=dim, n_layer=1)).states for dim in (56, 64, 72, 88, 112)}
    assert [dim for dim, states in served.items() if states == ("hooked",)] == [64, 72, 112] and served[88] == ("head_dim",)
    assert [geometry(synthetic(head_dim=64, n_layer=1, n_head=n, n_head_kv=1)).states for n in (128, 129)] == [("hooked",), ("head_dim",)]


def test_a_sample_of_what_is_kept_takes_sketches(synthetic):
    """As much as the context then allocates, with the sights of one head for each thread besides mode sparse's work space."""
    path = synthetic("llama")
    model, options = geometry(path), KvOptions(mode="evict", evict_to=1024, sample_budget=500, exact_tokens=0)
    expected, sparse = kv_bytes(model, 8192, options), kv_bytes(model, 2048, SPARSE)  # cells for layers that keep different tokens
    assert expected.workspace == sparse.workspace + 16 * 16 * 32 and expected.sketches == sparse.sketches > 0 and expected.arena == 0
    with attached(path, options, n_ctx=8192, n_seq=1, n_threads=1, n_batch=256, n_ubatch=256) as (context, run):
        for first in range(0, 1024, 256):
            context.decode([300] * 256, range(first, first + 256), [0] * 256)
        context.decode([300] * 16, range(1024, 1040), [0] * 16)
        memory = run.memory()
        assert (memory.home_bytes, memory.sketch_bytes) == (expected.home, expected.sketches)


CASES = [{}, {"page_size": 80}, {"type_k": "q8_0"}, {"type_k": "q4_0", "type_v": "q4_0"}]


@pytest.mark.parametrize("changes", CASES, ids=str)
@pytest.mark.parametrize(("n_sequences", "head_dim"), [(1, 64), (2, 96), (1, 192)])
def test_the_estimate_is_what_is_allocated(synthetic, changes, n_sequences, head_dim):
    path = synthetic("llama", n_ctx_train=4096, head_dim=head_dim)
    options = KvOptions(mode=KvMode.SPARSE, **changes)
    model = geometry(path)
    expected = kv_bytes(model, 1536, options, n_sequences)
    types = {"type_k": options.cache.type_k.ggml_type, "type_v": options.cache.type_v.ggml_type}
    shape = {"n_ctx": 1536 * n_sequences, "n_seq": n_sequences, "unified": False, "n_threads": 1}
    with attached(path, options, **shape, **types) as (_, runtime):
        memory = runtime.memory()
        assert (memory.home_bytes, memory.sketch_bytes, memory.arena_bytes) == (expected.home, expected.sketches, 0)
        layers, page_tokens = sparse_layers(model), options.cache.page_size
        tables = workspace.table_bytes(model, layers, n_sequences, 1536, page_tokens)
        pins = n_sequences * -(-(-(-1536 // page_tokens) * page_tokens) // 64) * 8  # nothing is pinned
        assert tables - pins <= memory.table_bytes + memory.observation_bytes < tables - pins + 64 and tables < expected.tables


# ---- on a device ------------------------------------------------------------------------------------------------------------------

GIB = 1 << 30
CARD = DeviceRoom("GeForce RTX 4070", 12 * GIB, 12 * GIB - 300 * MIB)


@pytest.fixture(scope="module")
def large(header_file) -> Geometry:
    """Llama 3 8B with weights of 4 bits, as far as its size goes."""
    return replace(open_model(header_file("llama-3-8b"), whole=False).geometry, n_ctx_train=131_072, tensor_bytes=4_517_000_000)


def test_scratch_serves_fewer_tokens_at_a_time_in_a_long_context(large):
    """Rows, shares and logits of all tokens that are served together take 64 MiB, or what one token needs: 288 bytes a cell. Where that is less,
    16 tokens that attend every cell need more for their mass than one for the logits of its list: 256 bytes in place of 128."""
    per_cell = {n_ctx: device_plan(large, n_ctx, SPARSE.with_(kv_vram=8 * GIB), CARD).scratch / n_ctx for n_ctx in (8192, 32768, 1 << 20)}
    assert 16 * 288 < per_cell[8192] < 16 * 288 + 512 and 6 * 288 < per_cell[32768] < 6 * 288 + 128 and 416 < per_cell[1 << 20] < 416 + 64
    more = device_plan(large, 32768, SPARSE.with_(kv_vram=8 * GIB), replace(CARD, n_sm=256))
    assert more.scratch > 32768 * per_cell[32768], "each multiprocessor has a part of the rows"


def test_flash_attention_copies_a_quantised_cache(large):
    """Each of K and V of the widest layer's pieces, in f16: of 131,072 tokens a head of 128; where stock serves, of all eight."""
    def compute(mode: KvOptions = EXACT, **types: str) -> int:
        return device_plan(large, 131072, mode.with_(**types), CARD).compute

    copies = 131072 * 128 * 2
    stock = EXACT.with_(mode="off")
    assert compute(stock, type_k="q8_0", type_v="q8_0") - compute(stock) == 16 * copies == 536_870_912
    assert compute(type_k="q8_0", type_v="q8_0") - compute() == 2 * copies == 67_108_864
    assert compute(type_k="q8_0") - compute() == compute(type_v="q8_0") - compute() == copies


def test_staging_and_ring_come_before_the_work_buffers(large):
    """They are chosen by what is free then; what the arena gets is not."""
    free = large.tensor_bytes + 2 * GIB + 100 * MIB  # two heads of 256 MiB take a quarter of that, and more of what the work buffers leave
    plan = device_plan(large, 524288, EXACT, replace(CARD, free=free))
    assert plan.n_staged == 2 and 2 * 524288 * 512 == plan.staging > plan.room // 4
    assert plan.budget == plan.room - margin_bytes(CARD.total)


def test_the_longest_ubatch_that_fits(large):
    """Work buffers may take an eighth of what the weights leave, and nothing that the budget needs."""
    at = {n_ctx: device_plan(large, n_ctx, EXACT, CARD).n_ubatch for n_ctx in (32768, 131072, 524288)}
    assert at == {32768: 2048, 131072: 2048, 524288: 512}
    assert device_plan(large, 131072, EXACT, replace(CARD, free=9 * GIB)).n_ubatch == 1024
    whole = device_plan(large, 32768, SPARSE, CARD)
    tight = device_plan(large, 32768, SPARSE.with_(kv_vram=whole.room + 1), CARD)
    assert tight.n_ubatch == 1024 and tight.room >= whole.room + 1
    assert device_plan(large, 32768, SPARSE, CARD, all_logits=True).n_ubatch == 1024, "the logits of 2,048 tokens are a gigabyte"
    assert device_plan(large, 32768, EXACT.with_(mode="off"), CARD).n_ubatch == 512
    assert device_plan(large, 32768, EXACT, replace(CARD, holds_model=False)).n_ubatch == 2048


def test_automatic_budget(large):
    plan = device_plan(large, 8192, EXACT, CARD)
    assert margin_bytes(4 * GIB) == 512 * MIB and margin_bytes(CARD.total) == int(0.05 * CARD.total)
    assert plan.budget == plan.room - margin_bytes(CARD.total)
    filled = 256 * (64 // 16 + 2) * plan.slot_bytes
    assert plan.arena == plan.home + filled and plan.hot_tokens == 8192, "never more than there are pages, and those that a step fills"
    assert plan.sketches == 0
    # of a page of all heads its bytes, and whether they are there
    assert plan.ring == 2 * 512 * (8 * 8192 + 8), "twice the pages of a layer"
    rings = {budget: device_plan(large, 131072, EXACT.with_(kv_vram=budget), CARD).ring for budget in (64 * MIB, GIB, 8 * GIB)}
    assert rings == {64 * MIB: 8 * MIB // 8192 * 8193, GIB: 128 * MIB // 8192 * 8193, 8 * GIB: 256 * MIB // 8192 * 8193}, "an eighth, or 256 MiB"
    assert device_plan(large, 4096, EXACT, CARD, n_sequences=2).ring == 64 * MIB // 2 // 8192 * 8193, "they take turns"


def test_what_stays_with_llama_cpp(synthetic):
    """Sliding-window layers, and all layers in mode off, keep their caches on the device beside the budget."""
    model = geometry(synthetic("gemma2"))
    plan = device_plan(model, 1024, EXACT, CARD)
    assert plan.n_heads == 2 and plan.home + plan.others == model.kv_bytes(1024) and plan.others == 768 * 512
    off = device_plan(model, 1024, EXACT.with_(mode="off"), CARD)
    assert (off.home, off.others, off.fixed, off.arena, off.missing) == (0, model.kv_bytes(1024), 0, 0, 0)
    recurrent = device_plan(geometry(synthetic("mamba")), 1024, SPARSE, CARD)
    assert recurrent.fixed == recurrent.home == recurrent.hot_tokens == 0


def test_an_emulated_device_holds_no_model(large):
    plan = device_plan(large, 4096, EXACT, replace(CARD, holds_model=False))
    assert plan.weights == plan.compute == plan.others == 0 and plan.room == CARD.free


SHORT = [
    (SPARSE.with_(kv_vram=512 * MIB), 32768, ["--kv-vram", "--ctx"]),
    (SPARSE.with_(kv_vram=GIB), 131072, ["--kv-vram", "--ctx"]),
    (SPARSE.with_(kv_vram=1860 * MIB), 131072, ["--kv-vram", "--ctx", "--cache-type-k"]),
    (EXACT.with_(kv_vram=400 * MIB), 131072, ["--kv-vram", "--ctx", "--cache-type-k"]),
    (EXACT.with_(kv_vram=128 * MIB), 16384, ["--kv-vram", "--ctx", "--cache-type-k"]),
    (EXACT.with_(kv_vram=MIB), 4096, ["--kv-vram"]),
    (SPARSE, 524288, ["--ctx"]),
]


@pytest.mark.parametrize(("kv", "n_ctx", "ways"), SHORT, ids=lambda value: str(value) if isinstance(value, int) else "")
def test_what_is_proposed_fits(large, kv, n_ctx, ways):
    """Each proposal of a refusal is accepted when it is followed alone; the next smaller budget and the next larger context are not."""
    large = replace(large, n_ctx_train=n_ctx)
    with pytest.raises(DoesNotFit, match="are missing; use ") as caught:
        check_device(large, n_ctx, kv, CARD)
    said = str(caught.value)
    proposed = said.partition("missing; use ")[2].split(", or ")
    assert len(proposed) == len(ways) and all(text.startswith(way) for text, way in zip(proposed, ways)), said
    if match := re.search(r"use --kv-vram (\d+)MiB or more", said):
        least = int(match[1]) * MIB
        assert check_device(large, n_ctx, kv.with_(kv_vram=least), CARD)
        with pytest.raises(DoesNotFit):
            check_device(large, n_ctx, kv.with_(kv_vram=least - MIB), CARD)
    if match := re.search(r"--ctx (\d+) or less", said):
        assert check_device(large, int(match[1]), kv, CARD)
        with pytest.raises(DoesNotFit):
            check_device(large, int(match[1]) + 256, kv, CARD)
    if "q8_0" in said:
        assert check_device(large, n_ctx, kv.with_(type_k="q8_0", type_v="q8_0"), CARD)


def test_more_than_the_card_has(large):
    with pytest.raises(DoesNotFit, match=r"are missing; use --kv-vram (\d+)MiB or less, or auto") as caught:
        check_device(large, 32768, SPARSE.with_(kv_vram=11 * GIB), CARD)
    most = int(re.search(r"use --kv-vram (\d+)MiB", str(caught.value))[1]) * MIB
    assert check_device(large, 32768, SPARSE.with_(kv_vram=most), CARD)
    with pytest.raises(DoesNotFit, match="--kv-vram .* is more than"):
        check_device(large, 32768, SPARSE.with_(kv_vram=most + MIB), CARD)


@pytest.mark.parametrize(("free", "layers"), [(4 * GIB, True), (300 * MIB, False)])
def test_the_weights_do_not_fit(large, free, layers):
    with pytest.raises(DoesNotFit, match="are missing; ") as caught:
        check_device(large, 4096, SPARSE, DeviceRoom("small card", 4 * GIB, free))
    assert "--attention-device cpu" in str(caught.value) and ("--gpu-layers" in str(caught.value)) is layers
    assert caught.value.exit_code == EXIT_DOES_NOT_FIT


def test_another_program_has_the_memory(large):
    """Free memory counts, not the card's whole memory."""
    with pytest.raises(DoesNotFit, match=r"\d MiB of GeForce RTX 4070 are to be had beside the weights"):
        check_device(large, 131072, SPARSE, replace(CARD, free=6 * GIB))


def test_device_context_choice(large):
    usual = choose_device_context(large, None, EXACT, CARD, available=64 * GIB)
    assert usual.n_ctx == 32768 and "pinned in host memory at the start" in usual.note and "--ctx" in usual.note and usual.kv_bytes == 4 * GIB
    later = choose_device_context(large, None, EXACT, replace(CARD, pins_later=True), available=64 * GIB)
    assert later.n_ctx == 32768 and "pinned in host memory (--ctx" in later.note
    whole = choose_device_context(large, 131072, EXACT, CARD, available=64 * GIB)
    assert whole.n_ctx == 131072 and whole.note is None and whole.device.hot_tokens > 30_000 and whole.kv_bytes == 16 * GIB
    by_host = choose_device_context(large, None, SPARSE, CARD, available=7 * GIB)
    assert by_host.kv_bytes <= 3.5 * GIB and "--ctx" in by_host.note and by_host.n_ctx % 256 == 0
    by_card = choose_device_context(large, None, SPARSE.with_(kv_vram=GIB // 2), CARD, available=64 * GIB)
    assert 8192 < by_card.n_ctx < 32768 and by_card.device.hot_tokens >= 768 and "512.0 MiB on GeForce RTX 4070" in by_card.note
    cut = choose_device_context(large, 200_000, EXACT, CARD, available=64 * GIB)
    assert cut.n_ctx == 131072 and "200,000" in cut.note
    with pytest.raises(DoesNotFit, match=r"host memory for its pages.* use --ctx (\d+) or less") as caught:
        choose_device_context(large, 131072, EXACT, CARD, available=12 * GIB)
    best = int(re.search(r"--ctx (\d+)", str(caught.value))[1])
    assert choose_device_context(large, best, EXACT, CARD, available=12 * GIB).n_ctx == best
    with pytest.raises(DoesNotFit, match="the weights"):
        choose_device_context(large, None, EXACT, replace(CARD, free=GIB), available=64 * GIB)
    with pytest.raises(DoesNotFit, match="are free on the host"):
        choose_device_context(large, None, EXACT, CARD, available=0)


def test_the_largest_context():
    assert largest_context(lambda n: n <= 5000, 131072) == 4864
    assert largest_context(lambda n: True, 1000) == 1024 and largest_context(lambda n: False, 1000) == 0
