"""What fits in memory: contexts, and in mode sparse their sketches and arena."""

from __future__ import annotations

import pytest
from contexts import attached

from edgekv.config import KvOptions
from edgekv.errors import EXIT_DOES_NOT_FIT, ConfigError, DoesNotFit
from edgekv.fit import TABLE_BYTES, choose_context, kv_bytes, page_bytes
from edgekv.models import geometry
from edgekv.vocab import KvMode, SketchKind

EXACT = KvOptions(mode=KvMode.EXACT)
SPARSE = KvOptions(mode=KvMode.SPARSE)
MIB, PLENTY = 1 << 20, 1 << 40


@pytest.fixture
def model(synthetic):
    return geometry(synthetic("llama", n_ctx_train=4096))


def test_context_choice(model):
    per_token = model.kv_bytes_per_token()
    assert choose_context(model, None, EXACT, available=PLENTY).n_ctx == 4096
    assert choose_context(model, 300, EXACT, available=PLENTY).kv_bytes == 300 * per_token
    cut = choose_context(model, 9000, EXACT, available=PLENTY)
    assert cut.n_ctx == 4096 and "4,096" in cut.note and "9,000" in cut.note
    scarce = choose_context(model, None, EXACT, available=256 * MIB + 2 * 1024 * per_token)
    assert scarce.n_ctx == 1024 and "--ctx" in scarce.note
    with pytest.raises(DoesNotFit) as caught:
        choose_context(model, 4096, EXACT, available=256 * MIB + 1024 * per_token)
    assert caught.value.exit_code == EXIT_DOES_NOT_FIT and "use --ctx 1024 or less" in str(caught.value)
    with pytest.raises(DoesNotFit, match="use --ctx 4096 or less"):
        choose_context(model, 10**9, EXACT, available=1 << 30)
    with pytest.raises(DoesNotFit, match="close other programs"):
        choose_context(model, None, EXACT, available=0)
    half = choose_context(model, None, EXACT, n_sequences=2, available=256 * MIB + 4 * 1024 * per_token)
    assert half.n_ctx == 1024 and half.kv_bytes == 2 * 1024 * per_token


def test_sparse_leaves_room_for_its_own(model):
    """What just fits in mode exact does not in mode sparse, and the context that is proposed instead does."""
    available = 256 * MIB + kv_bytes(model, 4096, EXACT).total
    assert choose_context(model, 4096, EXACT, available=available).n_ctx == 4096
    with pytest.raises(DoesNotFit, match="sketches and arena .* use --ctx") as caught:
        choose_context(model, 4096, SPARSE, available=available)
    proposed = int(str(caught.value).split("--ctx ")[1].split()[0])
    assert 2048 <= proposed < 4096 and choose_context(model, proposed, SPARSE, available=available)


def test_an_impossible_budget_gets_a_possible_one(model):
    needed = kv_bytes(model, 4096, SPARSE.with_(kv_budget=1 << 40))
    assert needed.arena == needed.home, "an arena is never larger than what it holds copies of"
    available = 256 * MIB + needed.fixed + MIB
    with pytest.raises(DoesNotFit, match="a KV budget of .* use --kv-budget 1MiB or less"):
        choose_context(model, 4096, SPARSE.with_(kv_budget=1 << 40), available=available)
    assert choose_context(model, 4096, SPARSE.with_(kv_budget=MIB), available=available).bytes.arena == MIB
    assert choose_context(model, 4096, SPARSE.with_(kv_budget=0), available=available).bytes.arena == 0
    with pytest.raises(ConfigError, match=f"one page of this model takes {page_bytes(model, SPARSE):,}; give more"):
        choose_context(model, 4096, SPARSE.with_(kv_budget=1), available=PLENTY)


@pytest.mark.parametrize(("kind", "layers"), [("mamba", []), ("gemma2", [1]), ("lfm2", [1, 3])])
def test_only_layers_that_can_be_sparse_count(synthetic, kind, layers):
    model = geometry(synthetic(kind))
    exact, sparse = kv_bytes(model, 512, EXACT), kv_bytes(model, 512, SPARSE)
    assert sparse.home == exact.home == exact.total
    n_heads = sum(model.n_head_kv[il] for il in layers)
    assert sparse.tables == n_heads * 32 * TABLE_BYTES and (sparse.sketches > 0) == (sparse.arena > 0) == (n_heads > 0)


CASES = [
    *({"sketch": kind.value} for kind in SketchKind), {"attend": "700"}, {"attend": "50%", "page_tokens": 48},
    {"kv_budget": 100_000}, {"type_k": "q8_0"}, {"n_dense": 1},
]


@pytest.mark.parametrize("changes", CASES, ids=str)
@pytest.mark.parametrize(("n_sequences", "head_dim"), [(1, 64), (2, 96)])
def test_the_estimate_is_what_is_allocated(synthetic, changes, n_sequences, head_dim):
    path = synthetic("llama", n_ctx_train=4096, head_dim=head_dim)
    options = KvOptions(mode=KvMode.SPARSE, **changes)
    expected = kv_bytes(geometry(path), 1536, options, n_sequences)
    types = {"type_k": options.type_k.ggml_type, "type_v": options.type_v.ggml_type}
    shape = {"n_ctx": 1536 * n_sequences, "n_seq": n_sequences, "unified": False, "n_threads": 1}
    with attached(path, options, **shape, **types) as (_, runtime):
        memory = runtime.memory()
        assert (memory.home_bytes, memory.sketch_bytes, memory.arena_bytes) == (expected.home, expected.sketches, expected.arena)
        assert memory.table_bytes + memory.observation_bytes <= expected.tables
