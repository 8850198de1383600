"""Heads that sample at resolutions of their own, and what is measured for an error."""

import json
import logging

import numpy as np
import pytest
from support.contexts import attached

import edgekv
from edgekv._native import paging
from edgekv.common.enums import KvMode
from edgekv.common.errors import ConfigError
from edgekv.config import HeadErrors, KvOptions
from edgekv.planning.kept import Kept, key_of
from edgekv.runtime import attachments, measured_heads
from edgekv.runtime.sampling import sampled_with, sparse_with

N = 900
SHAPE = dict(n_layer=3, n_head=8, n_head_kv=4)
SAMPLED = dict(mode="sparse", exact_tokens=0, recent_tokens=16, keep_rows=True, error_every=1)
BASE, OTHER = 60.0, 400.0


def known(table: np.ndarray) -> HeadErrors:
    """Errors of heads that would each have 1 % at these resolutions, [layer, head]; 0: not estimated."""
    at = (500.0, 2000.0, 8000.0)
    return HeadErrors(at, tuple(tuple(tuple(0.01 * (c / one) ** -0.5 if one else 0.0 for one in heads) for heads in table) for c in at))


def rows_at(path, table: np.ndarray | None, resolution: float = BASE) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """What the token behind N others reads, [layer][head]."""
    with attached(path, KvOptions(**SAMPLED, sample_budget=resolution), n_ctx=1024, n_seq=1, n_threads=1) as (context, run):
        context.read(np.random.default_rng(3).integers(260, 350, N), 0, N, most=300)
        paging.set_resolutions(run._native_handle(), table)
        context.decode([270], [N], [0])
        return [[run.last_rows(layer, head) for head in range(SHAPE["n_head_kv"])] for layer in range(SHAPE["n_layer"])]


def same(one, other) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other))


def test_each_head_samples_at_its_own(synthetic):
    """The rows are those of a context that samples everything so. What a layer reads changes the queries of the layers behind it alone."""
    path = synthetic("llama", **SHAPE)
    base, finer = rows_at(path, None), rows_at(path, None, OTHER)
    assert len(finer[0][0][0]) > 2 * len(base[0][0][0])
    assert all(same(a, b) for one, other in zip(base, rows_at(path, np.full((3, 4), BASE), 5.0)) for a, b in zip(one, other))
    for layer in range(3):
        whole = np.zeros((3, 4))
        whole[layer] = OTHER
        expected = rows_at(path, whole)
        for head in (0, 3):
            table = np.zeros((3, 4))
            table[layer, head] = OTHER
            found = rows_at(path, table)
            assert all(same(found[il][h], base[il][h]) for il in range(layer) for h in range(4)), "before it"
            assert all(same(found[layer][h], (expected if h == head else base)[layer][h]) for h in range(4))
            assert not same(found[layer][head], base[layer][head])
        assert layer or all(same(a, b) for a, b in zip(expected[0], finer[0]))


@pytest.mark.parametrize(("table", "said"), [
    (np.zeros((2, 4)), "resolutions are for 2 layers and 4 KV heads, but this context has 3 and 4"), (np.zeros((3, 5)), "has 3 and 4"),
    (np.full((3, 4), 0.5), "must be a number from 1 on, or 0"), (np.full((3, 4), np.nan), "from 1 on"), (np.full((3, 4), -1), "from 1 on"),
    (np.full((3, 4), np.inf), "from 1 on")])
def test_what_is_no_table_of_resolutions(synthetic, table, said):
    with attached(synthetic("llama", **SHAPE), KvOptions(**SAMPLED), n_seq=1) as (_, run), pytest.raises(ConfigError, match=said):
        paging.set_resolutions(run._native_handle(), table)


def test_an_error_sets_the_resolutions_of_a_context(synthetic):
    """And takes them back; coverage is counted at what a head sampled at."""
    path = synthetic("llama", **SHAPE)
    asked = KvOptions(**SAMPLED, target_error="1%", head_errors=known(np.array([[500, 1000, 4000, 0], [8000, 0, 500, 500], [16000, 16000, 500, 1000.0]])))
    table = np.where(asked.selection.resolutions, asked.selection.resolutions, 2000)
    assert len(set(table[0])) == 4
    read = {}
    for name, options in {"error": asked, "uniform": asked.with_(sample_budget=2000)}.items():
        with attached(path, options, n_ctx=1024, n_seq=1, n_threads=1) as (context, run):
            context.read(np.random.default_rng(3).integers(260, 350, N), 0, N, most=300)
            context.decode([270], [N], [0])
            read[name] = run.layer_selection()
            covered = read[name]["covered"] / read[name]["n_covered"]
            assert (covered > 0.2).all() and (covered <= 1).all()
            run.configure(run.options.with_(target_error=None))
            before = run.layer_selection()["n_read"]
            context.decode([271], [N + 1], [0])
            read[f"{name}, then none"] = run.layer_selection()["n_read"] - before
    assert (np.sign(read["error"]["n_read"][0] - read["uniform"]["n_read"][0]) == np.sign(table[0] - 2000)).all(), "the first layer's queries are the same"
    assert np.allclose(read["error, then none"][0], read["uniform, then none"][0], rtol=0.02)


def test_another_model_samples_at_the_resolution_for_all(synthetic):
    """Such as a draft's, whose context gets the same options."""
    asked = KvOptions(**SAMPLED, target_error="1%", head_errors=known(np.full((3, 2), 500.0)))
    with attached(synthetic("llama", **SHAPE), asked, n_ctx=1024, n_seq=1, n_threads=1) as (context, run):
        context.decode(np.random.default_rng(3).integers(260, 350, 300).tolist(), range(300), [0] * 300)
        context.decode([270], [300], [0])
        found = run.layer_selection()
        run.configure(run.options.with_(sample_budget=2000))
        context.decode([270], [301], [0])
        # of the mean head: a head's own number follows the token that reads
        assert np.mean(found["n_read"]) == pytest.approx(np.mean(run.layer_selection()["n_read"] - found["n_read"]), rel=0.03)


def test_an_error_that_nobody_knows_a_resolution_for(synthetic):
    asked = KvOptions(**SAMPLED, target_error="1%")
    with attached(synthetic("llama", **SHAPE), KvOptions(), n_seq=1) as (_, run):
        with pytest.raises(ConfigError, match="the errors of this model's heads were not measured, .*edgekv.Llama with an error"):
            attachments.attach(run.address, asked)
        assert run.mode is KvMode.EXACT
    with attached(synthetic("llama", **SHAPE), KvOptions(mode="exact", target_error="1%"), n_seq=1) as (_, run):
        with pytest.raises(ConfigError, match="were not measured"):
            run.mode = "sparse"
        with pytest.raises(ConfigError, match="were not measured"):
            run.configure(run.options.with_(mode="sparse"))


def test_rows_of_other_resolutions_are_others():
    """The table is part of what a store tells rows apart by, not the error that it follows from; without an error it is what it was."""
    one = KvOptions(**SAMPLED, target_error="1%", head_errors=known(np.full((1, 2), 1000.0)))
    assert sampled_with(KvOptions(**SAMPLED)) == sampled_with(KvOptions(**SAMPLED, head_errors=one.selection.head_errors))
    assert "error" not in repr(sampled_with(one)) and sampled_with(one) != sampled_with(KvOptions(**SAMPLED))
    others = [one.with_(target_error="2%"), one.with_(sample_budget=1000), one.with_(head_errors=known(np.array([[1000.0, 500.0]])))]
    assert len({sampled_with(options) for options in (one, *others)}) == 4 == len({sparse_with(options) for options in (one, *others)})


# ---- measured ------------------------------------------------------------------------------------------------------------------


def test_the_text_is_ours_and_long_enough():
    text = measured_heads.own_text()
    assert text == measured_heads.own_text() and len(text) > 8 * measured_heads.N_TOKENS and measured_heads.text_digest()
    assert '"""' in text and "import numpy" in text


def test_errors_are_measured_once_and_kept(synthetic, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path, options = synthetic("llama", **SHAPE), dict(n_ctx=512, n_threads=1, verbose=False)
    done: list[tuple[int, int]] = []
    asked = KvOptions(mode="sparse", target_error="5%")
    with caplog.at_level(logging.WARNING, "edgekv"):
        measured = edgekv.with_head_errors(path, asked, lambda what, n, total: done.append((n, total)), n_threads=1)
        assert [record.message for record in caplog.records if "is measured once" in record.message and path.name in record.message]
        caplog.clear()
        with_it = edgekv.Llama(str(path), kv="sparse", target_error=0.05, **options)
        assert not caplog.records, "it is known"
    errors = measured.selection.head_errors
    assert done[-1][0] == done[-1][1] and with_it.kv.options.selection.head_errors == errors
    assert np.shape(errors.errors) == (3, 3, 4) and errors.resolutions == measured_heads.RESOLUTIONS
    assert (np.diff(np.array(errors.errors), axis=0) < 0).all() and np.max(errors.errors) < 0.5, "a finer sample errs less"
    assert edgekv.with_head_errors(path, asked.with_(target_error="10%")).selection.head_errors == errors, "one measurement serves all errors"
    for unmoved in (asked.with_(mode="exact"), asked.with_(target_error=None), measured):
        assert edgekv.with_head_errors(path, unmoved) is unmoved

    other = synthetic("llama", seed=1, **SHAPE)
    assert edgekv.with_head_errors(other, asked, n_threads=1).selection.head_errors != errors, "another model file"
    kept = json.loads((tmp_path / "edgekv" / "head-errors.json").read_text())
    assert len(kept) == 2


def test_a_model_that_is_never_sampled_has_nothing_to_measure(synthetic, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    errors = edgekv.with_head_errors(synthetic("mamba"), KvOptions(mode="sparse", target_error="1%"), n_threads=1).selection.head_errors
    assert not any(errors.errors[0])


def test_the_file_of_errors(tmp_path, caplog):
    kept, errors = Kept("", "errors", path=tmp_path / "some" / "errors.json"), known(np.array([[500.0, 2000.0]]))
    assert kept.find("a", HeadErrors) is None
    kept.keep("a", errors)
    kept.keep("b", known(np.array([[1000.0]])))
    assert kept.find("a", HeadErrors) == errors and kept.find("c", HeadErrors) is None
    for wrong in ("no json", "[]", '{"a": 3}', '{"a": {"resolutions": [500], "errors": [[[0.1]]]}}',
                  '{"a": {"resolutions": [500, 2000], "errors": [[[0.1]], [[-1]]]}}', '{"a": {"resolutions": [500, 2000], "errors": [[["x"]], [[1]]]}}',
                  '{"a": {"resolutions": [500, 2000], "errors": [[[NaN]], [[1]]]}}'):
        kept.path.write_text(wrong)
        assert kept.find("a", HeadErrors) is None
    kept.keep("a", errors)
    assert kept.find("a", HeadErrors) == errors
    (tmp_path / "file").write_text("")
    Kept("", "errors", path=tmp_path / "file" / "errors.json").keep("a", errors)
    assert "cannot be kept" in caplog.text


def test_what_errors_are_valid_for():
    options = KvOptions(mode="sparse", target_error="1%")
    def key(model: bytes = b"model", kernels: str = "cpu avx2", text: str = "text", **changes: object) -> str:
        return key_of(model, measured_heads.settings(options.with_(**changes)), kernels, text)

    keys = [key(), key(b"other"), key(kernels="cpu avx512"), key(text="t"), key(type_k="q8_0"), key(recent_tokens=32), key(sink_tokens=0)]
    assert len(set(keys)) == len(keys) and key(target_error="2%") == keys[0]
