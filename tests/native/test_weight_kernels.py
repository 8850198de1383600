"""What multiplies weights: the fastest ways are measured once on the machine, and the library is told. That a way to fetch changes no result is shown by
native/tests/host/test_products.cpp, and what llama.cpp's kernels compute beside ours by tests/runtime/test_products.py."""

import pytest
from support.contexts import attached

from edgekv import _native
from edgekv.config import KvOptions

_native.prepare()

from edgekv._native import testing, weight_kernels, weight_types  # noqa: E402 (the libraries must be in place first)
from edgekv._native.weight_kernels import MAKERS, TOKENS, WAYS, Kind  # noqa: E402

multiplies = pytest.mark.skipif(not weight_types.multiplied_by_us("Q4_1", None), reason="llama.cpp's kernels multiply weights here")


@pytest.fixture
def choices(default_model, tmp_path, monkeypatch):
    """Those of this process, on a machine that has kept none; afterwards the kernels are told again what it had."""
    before, chosen = dict(weight_kernels._chosen), {}
    monkeypatch.setattr(weight_kernels, "_chosen", chosen)
    monkeypatch.setattr(weight_kernels, "choice_file", lambda: tmp_path / "choices.json")
    yield chosen
    for kind in kinds_of(default_model):
        kind.fetch(before.get(kind.walk, next(iter(WAYS))))
        for tokens in TOKENS:
            kind.make(tokens, before.get(weight_kernels._product(kind, tokens), MAKERS[0]))


def kinds_of(path) -> list[Kind]:
    with attached(path, KvOptions(mode="exact"), n_seq=1) as (_, run):
        return weight_kernels.kinds_of(run._native_handle())


def products(path, n_tokens: int) -> int:
    """That our kernels make for a batch."""
    with attached(path, KvOptions(mode="exact"), n_seq=1) as (context, _):
        before = testing.use_products(None)
        context.decode(range(260, 260 + n_tokens), range(n_tokens), [0] * n_tokens)
        return testing.use_products(None) - before


@multiplies
def test_a_models_kinds_are_measured_and_what_is_chosen_is_used(default_model, choices, monkeypatch):
    """The first model that is large enough: each order and each product of its weights, once."""
    timed = []
    monkeypatch.setattr(Kind, "time_ways", lambda self: timed.append(self.walk) or dict.fromkeys(WAYS, 1.0))
    monkeypatch.setattr(Kind, "time_makers", lambda self, tokens: timed.append((self, tokens)) or dict(
        zip(MAKERS, (1.0, 0.5 if self.name == "Q4_1" and tokens == "up to four tokens" else 2.0))))
    several, one = products(default_model, 8), products(default_model, 1)
    kinds = kinds_of(default_model)
    assert {kind.name for kind in kinds} == {"Q4_1", "Q8_0"}
    assert timed.count(kinds[0].walk) == 1 and all(timed.count((kind, tokens)) == 1 for kind in kinds for tokens in TOKENS)
    assert several > one == 1, "llama.cpp multiplies one token by all matrices of Q4_1; the embedding, which is the output too, is Q8_0"
    assert [(kind.name, tokens) for kind, tokens in weight_kernels.left_to_llama_cpp(kinds)] == [("Q4_1", "up to four tokens")]
    n = len(timed)
    choices.clear()
    assert products(default_model, 1) == 1 and len(timed) == n, "another process takes what was kept"


@multiplies
def test_what_llama_cpp_multiplies_and_a_small_model_ask_for_nothing(default_model, synthetic, choices, monkeypatch):
    monkeypatch.setattr(weight_kernels.kept_choice, "choose", lambda path, what, default, *_: default)
    with attached(synthetic(), KvOptions(mode="exact"), n_seq=1):
        assert not choices
    with attached(default_model, KvOptions(mode="off"), n_seq=1) as (_, run):
        assert not choices
        run.configure(run.options)
        assert not choices
        run.mode = "exact"
        assert choices
        choices.clear()
        run.configure(run.options.with_(mode="sparse"))
        assert choices


@multiplies
@pytest.mark.parametrize("kind", [Kind("Q4_1", None), Kind("Q4_K", None), Kind("Q4_0", "CPU_REPACK"), Kind("Q4_K", "CPU_REPACK")], ids=str)
def test_every_way_and_maker_can_be_timed(kind):
    if not weight_types.multiplied_by_us(kind.name, kind.layout) or kind.layout not in (None, weight_types.layouts()[kind.name]):
        pytest.skip("weights do not lie so here")
    kept = weight_kernels._chosen.get(kind.walk, next(iter(WAYS)))
    assert list(kind.time_ways()) == list(WAYS) and all(seconds > 0 for seconds in kind.time_ways().values())
    kind.fetch(kept)
    for tokens in TOKENS:
        assert list(kind.time_makers(tokens)) == list(MAKERS) and all(seconds > 0 for seconds in kind.time_makers(tokens).values())


@multiplies
def test_llama_cpp_computes_all_rows_whose_time_is_taken(default_model, capfd):
    """With AMX it leaves out a rest that fills no tiles, and says so."""
    for kind in kinds_of(default_model):
        for tokens in TOKENS:
            assert all(seconds > 0 for seconds in kind.time_makers(tokens).values())
    assert "block size" not in capfd.readouterr().err
