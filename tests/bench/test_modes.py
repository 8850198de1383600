"""Modes of a benchmark, and the texts that they read."""

import re

import numpy as np
import pytest
from click.testing import CliRunner

from edgekv.bench.modes import MODES, errors_for, find_mode, in_order
from edgekv.bench.tally import log_softmax
from edgekv.bench.text import TEXTS, find_text, read_text
from edgekv.cli.bench import bench
from edgekv.common.enums import KvMode
from edgekv.common.errors import ConfigError
from edgekv.config import KvOptions
from edgekv.config.assignments import split_modes
from edgekv.llama import Llama


def test_modes_can_be_changed():
    mode = find_mode("sparse:sample_budget=1e3,keep_rows=on,kv_budget=2MiB,error_every=2")
    options = mode.options(KvOptions(), 4096)
    assert (options.selection.sample_budget, options.selection.keep_rows, options.selection.error_every) == (1000.0, True, 2)
    assert options.placement.kv_budget == 2 << 20 and options.mode is KvMode.SPARSE
    assert find_mode("sparse:kv_budget=auto").options(KvOptions(), 4096).placement.kv_budget is None
    assert find_mode("sparse").figures == {} and find_mode("evict").figures == {"error": None, "coverage": None}


def test_mode_evict_keeps_a_share_of_any_context():
    """And at least what it never drops: the first and the newest tokens, in whole pages."""
    kept = find_mode("evict:policy=h2o,evict_to=12.5%")
    assert [kept.options(KvOptions(), n).keep_tokens for n in (8000, 1000)] == [1000, 125] and kept.destructive
    assert [kept.options(KvOptions(page_size=64), n).keep_tokens for n in (8000, 1000, 0)] == [1000, 16 + 64 + 2 * 64, 16 + 64 + 2 * 64]
    assert find_mode("evict:evict_to=1024").options(KvOptions(), 8000).keep_tokens == 1024


def test_a_mode_with_an_error_knows_the_heads(synthetic, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("EDGEKV_TARGET_ERROR", raising=False)
    path = synthetic("llama")
    plain, finer = find_mode("sparse"), find_mode("sparse:target_error=2%")
    assert finer.options(KvOptions(), 0).selection.target_error == 0.02 and errors_for([plain, find_mode("exact")], path, {}, 1) is None
    known = errors_for([plain, finer], path, {}, 1)
    base = KvOptions(head_errors=known)
    assert known is not None and finer.options(base, 0).selection.resolutions and plain.options(base, 0).selection.resolutions is None
    monkeypatch.setenv("EDGEKV_TARGET_ERROR", "1%")
    assert errors_for([plain], path, {}, 1) == known, "a variable sets the error of all modes that say nothing else"
    assert errors_for([find_mode("sparse:sample_budget=500")], path, {}, 1) is None


@pytest.mark.parametrize(("name", "sentence"), [
    ("sparse:target_error=0", "above 0%"), ("sparse:target_error=1%,sample_budget=300", "target_error chooses .* give one of the two"),
    ("exact:target_error=1%", "target_error works in mode sparse only"), ("sparse:head_errors=x", "is not a change"),
    ("fish", "choose one of: off, "), ("sparse:fins=2", "with one of mode, sample_budget, target_error, prompts, "),
    ("sparse:sample_budget", "write NAME=VALUE"), ("sparse:sample_budget=much", "sample_budget is 'much'; it must be a number"),
    ("sparse:keep_rows=perhaps", "it must be on or off"), ("sparse:error_every=0.5", "a whole number"),
    ("sparse:sample_budget=0.5", "a number from 1"), ("sparse:coverage=0.9", "is not a change"), ("sparse-box", "choose one of: off, "),
    ("sparse:evict_to=10%", "evict_to works in mode evict only, and the mode is sparse; use mode evict"),
    ("evict:evict_to=110%", "what is kept is '110%'; it must be a share"), ("ema", "choose one of: off, "),
    ("sparse:sketch=none", "sketch is gone: .* sample_budget says how much"), ("sparse:attend=10%", "attend is gone"),
    ("sparse:kv_budget=much", "write bytes"), ("sparse:page_size=32", "is not a change"),
    ("exact:sample_budget=100", "sample_budget works in modes sparse and evict only, and the mode is exact; use mode sparse"),
    ("off:kv_vram=1GiB", "kv_vram does nothing in mode off"),
    ("sparse:policy=ema+fish", "there is no policy 'fish'"), ("sparse:prefetch=fish", "there is no prefetch 'fish'")])
def test_modes_that_are_none(name, sentence):
    with pytest.raises(ConfigError, match=sentence):
        find_mode(name)


def test_lists_of_modes():
    assert split_modes("off, exact") == ("off", "exact")
    changed = ("sparse:sample_budget=1000,policy=lru", "exact", "evict:evict_to=5%")
    assert split_modes(",".join(changed)) == changed
    assert in_order(("sparse", "exact", "sparse")) == ("off", "exact", "sparse") and in_order(("sparse",)) == ("off", "sparse")


def test_a_mode_that_drops_is_known_however_it_is_named():
    assert find_mode("evict").destructive and find_mode("sparse:mode=evict,evict_to=512").destructive
    assert not find_mode("sparse").destructive and not find_mode("evict:mode=exact").destructive


def test_help_names_every_mode():
    words = re.sub(r"-\n\s+", "-", CliRunner().invoke(bench, ["--help"]).stdout).replace(",", " ").replace(";", " ").split()
    assert {name for name in MODES if not find_mode(name).destructive} <= set(words)


def test_texts_are_long():
    assert all(len(find_text(name).content) > 250_000 for name in TEXTS)
    assert find_text("code").content == find_text("code").content
    with pytest.raises(ConfigError, match="one of: prose, code, dialogue"):
        find_text("missing.txt")


def test_dialogue_is_read_in_the_models_own_template(default_model, synthetic):
    dialogue = find_text("dialogue")
    llama = Llama(str(default_model), n_ctx=64, vocab_only=True, verbose=False)
    tokens = dialogue.tokens(llama, 3000)
    assert len(tokens) == 3000 and tokens[:1000] == dialogue.tokens(llama, 1000)
    turn_end = llama.tokenize(b"<|im_end|>", add_bos=False, special=True)[0]
    assert tokens.count(turn_end) > 30
    llama.close()
    plain = Llama(str(synthetic()), n_ctx=64, verbose=False)
    assert plain.detokenize(dialogue.tokens(plain, 200)).decode().lstrip().lower().startswith("user: ")
    plain.close()


def test_log_softmax_of_extremes():
    assert log_softmax(np.array([1000.0, 0.0], np.float32)) == pytest.approx([0.0, -1000.0])


def test_texts_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_text(tmp_path / "missing.txt")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_text(tmp_path / "binary")
