"""edgekv.heads and `edgekv heads`: what is made of attention mass."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

from edgekv.cli.heads import heads as command
from edgekv.errors import ConfigError, ContextOverflow, EdgeKVError, ModelError
from edgekv.heads import HeadMass, observe
from edgekv.llama import Llama
from edgekv.runtime import LayerReport

PROMPT = 2 * "It is a truth universally acknowledged, that a single man in possession of a fortune, must be in want of a wife. "


def head_mass(*shares: list[float], recent_pages: int = 1) -> HeadMass:
    layer = LayerReport(0, True, "", 1, 1, 64, "f16", "f16")
    return HeadMass(list(range(100)), 1, 16, recent_pages, [layer] * len(shares), np.array([[share] for share in shares]))


def test_shares():
    mass = head_mass([0.4, 0.1, 0.3, 0.2], [0.25] * 4, [1.0, 0, 0, 0])
    assert mass.n_pages == 4
    np.testing.assert_allclose(mass.sink[:, 0], [0.4, 0.25, 1.0])
    np.testing.assert_allclose(mass.recent[:, 0], [0.2, 0.25, 0.0])
    np.testing.assert_allclose(mass.rest[:, 0], [0.4, 0.5, 0.0])
    assert mass.effective_pages[1, 0] == pytest.approx(4.0) and mass.effective_pages[2, 0] == pytest.approx(1.0)
    entropy = -sum(p * math.log(p) for p in (0.4, 0.1, 0.3, 0.2))
    assert mass.effective_pages[0, 0] == pytest.approx(math.exp(entropy))
    assert mass.top_page[0, 0] == 2 and mass.page_slice(2) == list(range(32, 48))


def test_no_page_between():
    """Few pages: the top page is then any page, and recent ones never include the first."""
    mass = head_mass([0.3, 0.7], recent_pages=4)
    assert mass.top_page[0, 0] == 1
    assert mass.sink[0, 0] == 0.3 and mass.recent[0, 0] == 0.7 and mass.rest[0, 0] == 0.0
    assert head_mass([1.0]).recent[0, 0] == 0.0


def test_unobserved_layers_are_nan():
    mass = head_mass([math.nan] * 4, [0.25] * 4)
    assert np.isnan([mass.sink[0, 0], mass.recent[0, 0], mass.rest[0, 0], mass.effective_pages[0, 0]]).all()
    assert mass.top_page[0, 0] == -1 and mass.top_page[1, 0] >= 0


@pytest.fixture(scope="module")
def tiny(synthetic):
    llama = Llama(str(synthetic()), n_ctx=512, n_threads=1, verbose=False)
    yield llama
    llama.close()


@pytest.mark.parametrize("n_steps", [1, 5, 16])
def test_observe(tiny, n_steps):
    tokens = tiny.tokenize(PROMPT.encode())
    mass = observe(tiny, tokens, n_steps)
    assert mass.n_steps == n_steps and mass.tokens == tokens
    assert mass.pages.shape == (2, 2, -(-len(tokens) // 16))
    np.testing.assert_allclose(mass.pages.sum(axis=2), 1.0, atol=1e-6)
    assert mass.pages.min() >= 0 and mass.pages.std() > 0.01
    assert not tiny.kv.observers


def test_observe_again_gives_the_same(tiny):
    tokens = tiny.tokenize(PROMPT.encode())
    np.testing.assert_allclose(observe(tiny, tokens, 3).pages, observe(tiny, tokens, 3).pages, atol=1e-6)


def test_observe_short_prompt(tiny):
    mass = observe(tiny, tiny.tokenize(b"a"), 16)
    assert mass.n_steps == len(mass.tokens) == 2 and mass.pages.shape[2] == 1


def test_observe_refuses(tiny):
    with pytest.raises(ConfigError, match="1 to 16"):
        observe(tiny, [1, 2], 17)
    with pytest.raises(ConfigError, match="empty"):
        observe(tiny, [], 1)
    with pytest.raises(ContextOverflow, match="600 tokens and the context 512"):
        observe(tiny, [5] * 600, 1)


def test_stock_layers_are_left_out(synthetic):
    llama = Llama(str(synthetic("gemma2")), n_ctx=256, n_threads=1, verbose=False)
    mass = observe(llama, llama.tokenize(PROMPT.encode())[:200], 2)
    llama.close()
    assert np.isnan(mass.pages[0]).all()
    np.testing.assert_allclose(mass.pages[1].sum(axis=1), 1.0, atol=1e-6)


def test_nothing_to_observe(synthetic):
    llama = Llama(str(synthetic("mamba")), n_ctx=256, n_threads=1, verbose=False)
    with pytest.raises(EdgeKVError, match="no layer"):
        observe(llama, llama.tokenize(b"hello"), 1)
    llama.close()


def test_command_table(synthetic):
    result = CliRunner().invoke(command, [str(synthetic()), "-p", PROMPT, "-n", "2", "-t", "1", "-l", "1"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].split()[:3] == ["layer", "head", "first"] and len(lines) == 3
    assert [line.split()[:2] for line in lines[1:]] == [["1", "0"], ["1", "1"]]
    assert "attention of the last 2 tokens" in result.stderr


def test_command_json(synthetic):
    result = CliRunner().invoke(command, [str(synthetic("gemma2")), "-t", "1", "-o", "json"], input=PROMPT)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [layer["hooked"] for layer in report["layers"]] == [False, True]
    share = report["pages"]["share"]
    assert len(share) == 2 and len(share[1]) == 2 and len(share[1][0]) == report["n_pages"] == len(report["pages"]["text"])
    assert set(share[0][0]) == {None} and sum(share[1][0]) == pytest.approx(1, abs=1e-6)
    assert {row["layer"] for row in report["heads"]} == {1}
    assert "".join(report["pages"]["text"]).strip() == PROMPT.strip()


@pytest.mark.parametrize("layers", ["2", "x", "0-", "", "1,,"])
def test_command_refuses_layers(synthetic, layers):
    result = CliRunner().invoke(command, [str(synthetic()), "-p", "x", "-l", layers])
    assert isinstance(result.exception, ConfigError) and "--layers" in str(result.exception)


def test_command_missing_model(tmp_path):
    result = CliRunner().invoke(command, [str(tmp_path / "no.gguf"), "-p", "x"])
    assert isinstance(result.exception, ModelError)
