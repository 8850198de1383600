"""Which context is opened, and which is refused before anything is loaded: all that the plan counts must fit in free memory."""

import re

import pytest
from msgspec.structs import replace

from edgekv.common.enums import KvMode
from edgekv.common.errors import EXIT_DOES_NOT_FIT, ConfigError, DoesNotFit
from edgekv.config import KvOptions
from edgekv.llama import Llama
from edgekv.models.geometry import ModelFile, geometry, open_model
from edgekv.planning import available
from edgekv.planning.allocations import HOST, ContextRequest, Slots, total
from edgekv.planning.context import choose_context
from edgekv.planning.fit import kv_bytes, page_bytes
from edgekv.planning.plan import make_plan

EXACT, SPARSE = (KvOptions(mode=mode, attention_device="cpu") for mode in (KvMode.EXACT, KvMode.SPARSE))
MIB, PLENTY = 1 << 20, 1 << 40


@pytest.fixture
def model(synthetic) -> ModelFile:
    return open_model(synthetic("llama", n_ctx_train=4096))


def request(model: ModelFile, kv: KvOptions, n_ctx: int | None, available: int = PLENTY, n_slots: int = 1, **more) -> ContextRequest:
    return ContextRequest(model, kv, n_ctx, Slots(n_slots), available, **more)


def needed(model: ModelFile, kv: KvOptions, n_ctx: int, **more) -> int:
    return request(model, kv, n_ctx, **more).needed(n_ctx, kv)


def refusal(asked: ContextRequest) -> str:
    with pytest.raises(DoesNotFit) as caught:
        choose_context(asked)
    assert caught.value.exit_code == EXIT_DOES_NOT_FIT, "another exit code"
    return str(caught.value)


# ---- how long -------------------------------------------------------------------------------------------------------------------


def test_the_length_that_is_asked_for(model):
    per_token = model.geometry.kv_bytes_per_token()
    assert choose_context(request(model, EXACT, None)).n_ctx == 4096
    assert choose_context(request(model, EXACT, 300)).kv_bytes == 512 * per_token, "cells come in steps of 256"
    cut = choose_context(request(model, EXACT, 9000))
    assert cut.n_ctx == 4096 and "4,096" in cut.note and "9,000" in cut.note
    assert "use --ctx 1024 or less" in refusal(request(model, EXACT, 4096, needed(model, EXACT, 1024)))
    assert choose_context(request(model, EXACT, 10**9, needed(model, EXACT, 4096))) == choose_context(request(model, EXACT, 10**9)), "what is opened must fit"
    assert "a context of 4,096 tokens needs " in refusal(request(model, EXACT, 10**9, needed(model, EXACT, 4096) - 1))


def test_no_more_tokens_than_can_be_counted(model):
    evict = EXACT.with_(mode="evict")
    assert choose_context(request(model, evict, 1 << 29, n_slots=2)).n_ctx == 1 << 29
    with pytest.raises(ConfigError, match="2 slots of 536,870,913 tokens are more than 1,073,741,824 in all; use --ctx 536870912 or less"):
        choose_context(request(model, evict, (1 << 29) + 1, n_slots=2))


@pytest.mark.parametrize("n_slots", [1, 2])
def test_the_automatic_length_leaves_half_of_the_rest(model, n_slots):
    """The rest is the memory that the weights and other fixed parts leave free."""
    in_flight = request(model, EXACT, 1024, store_bytes=5 * MIB).in_flight_bytes
    fixed = model.geometry.tensor_bytes + 32 * MIB + 5 * MIB + in_flight
    room = needed(model, EXACT, 1024, n_slots=n_slots, store_bytes=5 * MIB) - fixed
    scarce = choose_context(request(model, EXACT, None, fixed + 2 * room, n_slots, store_bytes=5 * MIB))
    assert scarce.n_ctx == 1024 and "--ctx" in scarce.note and scarce.kv_bytes == n_slots * 1024 * model.geometry.kv_bytes_per_token()
    assert choose_context(request(model, EXACT, None, fixed + 2 * room - 2, n_slots, store_bytes=5 * MIB)).n_ctx == 768
    assert choose_context(request(model, EXACT, None, needed(model, EXACT, 256))).n_ctx == 256, "a small context is better than none"
    assert "close other programs" in refusal(request(model, EXACT, None, 0))
    assert "close other programs" in refusal(request(model, EXACT, None, needed(model, EXACT, 256) - 1))


# ---- what counts ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv", [EXACT, SPARSE, EXACT.with_(mode="off"), EXACT.with_(mode="evict", evict_to="512")], ids=str)
@pytest.mark.parametrize("slots", [Slots(), Slots(3), Slots(3, unified=True)], ids=str)
def test_the_plan_and_the_choice_agree(model, kv, slots):
    """Plan and choice agree to the byte: the choice refuses a context that the plan finds too large, and opens the one that it names
    instead."""
    asked = ContextRequest(model, kv, 2048, slots, PLENTY, store_bytes=3 * MIB, n_threads=4)
    parts = asked.parts(2048, kv)
    enough = replace(asked, available=total(parts) + 32 * MIB)
    assert choose_context(enough).n_ctx == 2048 and make_plan(enough, None).problem is None
    scarce = replace(asked, available=enough.available - 1)
    said = refusal(scarce)
    assert make_plan(scarce, None).problem == said
    if match := re.search(r"use --ctx (\d+) or less", said):
        best = int(match[1])
        assert choose_context(replace(scarce, n_ctx=best)).n_ctx == best
        refusal(replace(scarce, n_ctx=best + 1))
    else:
        assert kv.mode is KvMode.EVICT, "whose size is the same for every length"


def test_every_part_counts_once(model):
    names = [part.name for part in request(model, SPARSE, 2048, store_bytes=MIB, later_bytes=MIB).parts(2048, SPARSE)]
    assert sorted(names) == sorted(set(names)) and {"weights", "compute", "KV home", "work space", "prefix store", "loaded later"} <= set(names)


def test_there_is_no_arena(model):
    """It would gain nothing on a processor (LOG.md)."""
    whole = needed(model, SPARSE, 4096)
    assert choose_context(request(model, SPARSE, 4096, whole)).bytes.arena == 0
    assert "more" not in refusal(request(model, SPARSE, 4096, whole - 1)), "there is nothing that could give way"
    assert choose_context(request(model, SPARSE.with_(kv_budget=MIB), 4096, whole)).bytes.arena == 0


def test_an_impossible_budget_gets_a_possible_one(model, tmp_path):
    on_disk = SPARSE.with_(kv_dir=tmp_path)
    budget = on_disk.with_(kv_budget=1 << 40)
    kept = kv_bytes(model.geometry, 4096, budget)
    assert kept.arena == kept.home, "never more than what they are copies of"
    available = needed(model, budget, 4096) - kept.arena + MIB
    assert re.search("a KV budget of .* use --kv-budget 1MiB or less", refusal(request(model, budget, 4096, available)))
    assert choose_context(request(model, on_disk.with_(kv_budget=MIB), 4096, available)).bytes.arena == MIB
    assert choose_context(request(model, on_disk.with_(kv_budget=0), 4096, available)).bytes.arena == 0
    with pytest.raises(ConfigError, match=f"one page of this model takes {page_bytes(model.geometry, SPARSE.cache):,}; give more"):
        choose_context(request(model, on_disk.with_(kv_budget=1), 4096))


def test_what_is_set_aside_is_named_where_it_is_the_reason(model, synthetic):
    long = open_model(synthetic("llama", n_ctx_train=65_536))
    available = needed(model, EXACT, 1024)
    assert "17.0 MiB of memory are set aside for kept prefixes (--cache-ram)" in refusal(
        request(model, EXACT, 1024, available, store_bytes=MIB)), "and what is in flight while it is loaded"
    assert "--cache-ram" not in refusal(request(long, EXACT, 65_536, needed(long, EXACT, 65_536) - 1, store_bytes=16)), "nor would it fit without"


def test_layers_on_a_gpu_are_not_on_the_host(model):
    whole, half = (request(model, EXACT, 256, gpu_layers=n).parts(256, EXACT)[0] for n in (0, 1))
    assert half.name == "weights" and half.bytes == whole.bytes * 2 // 3 and half.how == "estimated"


# ---- weights that do not fit ----------------------------------------------------------------------------------------------------


def test_weights_from_disk(header_file):
    """Weights are mapped and need not be in memory all at once; everything else must."""
    file = open_model(header_file("llama-3-70b"), whole=False)
    said = refusal(request(file, EXACT, 4096, 16 << 30))
    assert "the weights take 37.0 GiB and 16.0 GiB are free" in said and "--weights-from-disk" in said
    allowed = request(file, EXACT, 4096, 16 << 30, from_disk=True)
    assert choose_context(allowed).n_ctx == 4096
    assert next(part.place for part in allowed.parts(4096, EXACT) if part.name == "weights") == "disk"
    plan = make_plan(allowed, None)
    assert plan.problem is None and plan.total(HOST) < 3 << 30 and "--weights-from-disk" in plan.flags
    assert "use --ctx" in refusal(request(file, EXACT, 131_072, 16 << 30, from_disk=True))


def test_llama_refuses_before_it_loads(synthetic, monkeypatch):
    path, loaded = str(synthetic("llama", n_ctx_train=4096)), []
    monkeypatch.setattr("edgekv.opening.available_bytes", lambda: 64 * MIB)
    monkeypatch.setattr("llama_cpp.Llama.__init__", lambda self, *args, **options: loaded.append(options))
    with pytest.raises(DoesNotFit, match=r"a context of 4,000,000 tokens needs .* use n_ctx=\d+ or less"):
        Llama(path, kv_options=EXACT, n_ctx=4_000_000, verbose=False)
    assert not loaded
    monkeypatch.undo()
    Llama(path, kv_options=EXACT, n_ctx=1024, verbose=False).close()


# ---- what is free ---------------------------------------------------------------------------------------------------------------


def groups(tmp_path, monkeypatch, lines: str, files: dict[str, object]) -> int:
    """Available bytes under these control groups."""
    (tmp_path / "cgroup").write_text(lines)
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    monkeypatch.setattr(available, "MEMBERSHIP", tmp_path / "cgroup")
    monkeypatch.setattr(available, "GROUPS", tmp_path / "fs")
    monkeypatch.setattr(available, "MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 1000}))
    return available.available_bytes()


V1 = {"memory/a/memory.limit_in_bytes": 500, "memory/a/memory.usage_in_bytes": 450,
      "memory/a/memory.stat": "cache 300\ntotal_active_file 200\ntotal_inactive_file 50\nactive_file 1"}
V2 = {"a/b/memory.max": "max", "a/b/memory.current": 10, "a/memory.max": 700, "a/memory.high": 600, "a/memory.current": 400,
      "a/memory.stat": "anon 100\nactive_file 200\ninactive_file 50"}


@pytest.mark.parametrize(("lines", "files", "left"), [
    ("", {}, 1000), ("0::/\n", {}, 1000), ("4:memory:/a\n0::/\n", V1, 300), ("0::/a/b\n", V2, 450), ("0::/a/b\n", {**V2, "a/b/memory.max": 90}, 80),
    ("0::/elsewhere\n", {"memory.max": 5, "memory.current": 9}, 0), ("nonsense\n", {}, 1000), ("0::/a\n", {"a/memory.max": "?"}, 1000),
], ids=["none", "no limit", "v1", "v2, of the parent", "v2, the narrowest", "in a container", "nonsense", "damaged"])
def test_control_groups(tmp_path, monkeypatch, lines, files, left):
    """The page cache of files counts as free: the kernel gives it up when memory is needed, and mapped weights that were read before lie in
    it."""
    assert groups(tmp_path, monkeypatch, lines, files) == left


def test_the_kernels_figure_comes_first(tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemFree: 3 kB\nMemAvailable:       7 kB\n")
    assert groups(tmp_path, monkeypatch, "", {}) == 7 << 10


@pytest.mark.parametrize("kinds", [{"type_k": "q4_0"}, {"type_v": "q8_0"}])
def test_a_type_that_cannot_hold_the_heads_is_refused(synthetic, kinds):
    """80 numbers are no whole blocks of 32. Each way to open a model asks here, and llama.cpp would say only that there is no context."""
    path = synthetic("llama", head_dim=80)
    name, kind = next(iter(kinds.items()))
    sentence = f"{kind} keeps {name[-1].upper()} in blocks of 32 numbers, and a head of {path.name} has 80; use "
    with pytest.raises(ConfigError, match=re.escape(f"{sentence}--cache-type-{name[-1]} f16")):
        choose_context(request(open_model(path), EXACT.with_(**kinds), 512))
    with pytest.raises(ConfigError, match=re.escape(f'{sentence}{name}="f16"')):
        Llama(str(path), n_ctx=512, verbose=False, **kinds)
    assert geometry(path).holds("f16") and not geometry(path).holds("q4_0")
