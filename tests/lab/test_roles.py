"""What made-up attention makes of a head, and `edgekv lab heads`."""

import json
import math
import re

import numpy as np
import pytest
from click.testing import CliRunner
from support.traces import random_trace

from edgekv.common.errors import ConfigError, ContextOverflow, EdgeKVError
from edgekv.lab.commands.heads import heads as command
from edgekv.lab.heads.attended import HeadLayer, HeadMass, observe, replay
from edgekv.lab.heads.roles import ROLES, UNKNOWN, Role, RoleMeter, of_steps
from edgekv.lab.report.drawing import MissingLibrary
from edgekv.llama import Llama

N_PAGES, N_STEPS = 64, 12


def steps(*heads: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """Each head [step, page], as steps of one row."""
    return [(np.stack([head[step] for head in heads])[None], N_PAGES) for step in range(len(heads[0]))]


def head(sink: float, recent: float, where: str) -> np.ndarray:
    """[step, page]: the rest of the mass in the middle, `where` it goes: "fixed" on two pages, "moving" on other two in each
    step, "even" on all of them."""
    mass = np.zeros((N_STEPS, N_PAGES), np.float32)
    mass[:, 0] = sink
    mass[:, -4:] = recent / 4
    rest = 1 - sink - recent
    if where == "even":
        mass[:, 1:-4] += rest / (N_PAGES - 5)
    for step in range(N_STEPS if where != "even" else 0):
        first = 10 if where == "fixed" else 10 + 4 * step
        mass[step, first : first + 2] += rest / 2
    return mass


@pytest.mark.parametrize("sink, recent, where, expected", [
    (0.8, 0.1, "even", Role.ANCHOR),
    (0.1, 0.8, "even", Role.RECENCY),
    (0.1, 0.2, "moving", Role.RETRIEVAL),
    (0.7, 0.05, "moving", Role.RETRIEVAL),  # parks most of its mass, and searches with the rest
    (0.7, 0.2, "moving", Role.ANCHOR),  # too little of it in the middle
    (0.1, 0.2, "fixed", Role.OTHER),  # always the same pages
    (0.1, 0.2, "even", Role.OTHER),  # diffuse
    (0.45, 0.45, "even", Role.OTHER),
], ids=str)
def test_each_role(sink, recent, where, expected):
    profile = of_steps(steps(head(sink, recent, where)), 1, 1)
    assert ROLES[profile.roles()[0, 0]] is expected
    assert profile.names() == [[expected.value]]
    parts = [values[0, 0] for values in (profile.sink, profile.recent, profile.middle)]
    np.testing.assert_allclose(parts, [sink, recent, 1 - sink - recent], atol=1e-6)


def test_what_was_not_observed_has_no_role():
    profile = of_steps(steps(head(0.8, 0.1, "even"), np.zeros((N_STEPS, N_PAGES))), 1, 2)
    assert profile.roles().tolist() == [[ROLES.index(Role.ANCHOR), UNKNOWN]] and profile.names()[0][1] is None
    assert np.isnan(profile.sink[0, 1])


def test_pages_that_come():
    """Pages grow, and the middle with them: a fixed head stays fixed."""
    meter = RoleMeter(1, 1)
    for end in range(20, 40):
        mass = np.zeros((1, 1, 64), np.float32)
        mass[0, 0, [0, 7, end - 1]] = 0.2, 0.5, 0.3
        meter.add(mass, end)
    profile = meter.profile()
    assert profile.change[0, 0] == pytest.approx(0, abs=1e-6) and profile.recent[0, 0] == pytest.approx(0.3, abs=1e-6)


@pytest.mark.parametrize("n_pages", [1, 2, 5, 6])
def test_few_pages(n_pages):
    """No middle, or one page of it."""
    meter = RoleMeter(1, 1)
    for _ in range(3):
        meter.add(np.full((1, 1, n_pages), 1.0), n_pages)
    profile = meter.profile()
    assert profile.sink[0, 0] + profile.recent[0, 0] + profile.middle[0, 0] == pytest.approx(1)
    assert profile.roles()[0, 0] != UNKNOWN


# ---- the command: what each head attends after a prompt --------------------------------------------------------------------------


PROMPT = 2 * "It is a truth universally acknowledged, that a single man in possession of a fortune, must be in want of a wife. "


def head_mass(*shares: list[float], recent_pages: int = 1) -> HeadMass:
    layers = [HeadLayer(0, True, "", 1)] * len(shares)
    pages = np.array([[share] for share in shares])
    meter = RoleMeter(len(shares), 1, recent_pages=recent_pages)
    meter.add(np.nan_to_num(pages), pages.shape[2])
    n_tokens = 16 * pages.shape[2]
    return HeadMass(list(range(n_tokens)), n_tokens, 1, 16, recent_pages, layers, pages, meter.profile())


def test_shares():
    mass = head_mass([0.4, 0.1, 0.3, 0.2], [0.25] * 4, [1.0, 0, 0, 0])
    assert mass.n_pages == 4
    np.testing.assert_allclose(mass.profile.sink[:, 0], [0.4, 0.25, 1.0])
    np.testing.assert_allclose(mass.profile.recent[:, 0], [0.2, 0.25, 0.0])
    np.testing.assert_allclose(mass.profile.middle[:, 0], [0.4, 0.5, 0.0])
    assert mass.effective_pages[1, 0] == pytest.approx(4.0) and mass.effective_pages[2, 0] == pytest.approx(1.0)
    entropy = -sum(p * math.log(p) for p in (0.4, 0.1, 0.3, 0.2))
    assert mass.effective_pages[0, 0] == pytest.approx(math.exp(entropy))
    assert mass.top_page[0, 0] == 2 and mass.page_slice(2) == list(range(32, 48))


def test_pages_that_were_recent_are_not_the_top_one():
    pages = np.zeros((1, 1, 10))
    pages[0, 0] = [0.3, 0.1, 0.05, 0, 0, 0.2, 0.1, 0.1, 0.1, 0.05]
    meter = RoleMeter(1, 1)
    meter.add(pages, 10)
    layer = HeadLayer(0, True, "", 1)
    tops = [int(HeadMass([], 160, n, 16, 4, [layer], pages, meter.profile()).top_page[0, 0]) for n in (1, 16, 17, 160)]
    assert tops == [5, 5, 1, 0]  # page 5 is recent before the last 16 tokens; with all of them observed every page was


@pytest.fixture(scope="module")
def tiny(synthetic):
    llama = Llama(str(synthetic()), n_ctx=512, n_threads=1, verbose=False)
    yield llama
    llama.close()


@pytest.mark.parametrize("n_steps", [1, 5, 40])
def test_observe(tiny, n_steps):
    tokens = tiny.tokenize(PROMPT.encode())
    mass = observe(tiny, tokens, n_steps)
    assert mass.n_steps == n_steps and mass.tokens == tokens
    assert mass.pages.shape == (2, 2, -(-len(tokens) // 16))
    np.testing.assert_allclose(mass.pages.sum(axis=2), 1.0, atol=1e-6)
    assert mass.pages.min() >= 0 and mass.pages.std() > 0.01
    assert not tiny.kv.observers
    assert mass.profile.n_steps == n_steps
    np.testing.assert_allclose(mass.profile.sink + mass.profile.recent + mass.profile.middle, 1.0, atol=1e-6)
    if n_steps == 1:  # then the steps' means are the sums' shares
        np.testing.assert_allclose(mass.profile.recent, mass.pages[:, :, -4:].sum(axis=2), atol=1e-6)
    assert all(role is not None for row in mass.profile.names() for role in row) == (n_steps > 1)


def test_observe_refuses(tiny):
    with pytest.raises(ConfigError, match="1 or more"):
        observe(tiny, [1, 2], 0)
    with pytest.raises(ConfigError, match="empty"):
        observe(tiny, [], 1)
    with pytest.raises(ContextOverflow, match="600 tokens and the context 512"):
        observe(tiny, [5] * 600, 1)


def test_nothing_to_observe(synthetic):
    llama = Llama(str(synthetic("mamba")), n_ctx=256, n_threads=1, verbose=False)
    with pytest.raises(EdgeKVError, match="no layer"):
        observe(llama, llama.tokenize(b"hello"), 1)
    llama.close()


def test_replay():
    trace = random_trace()
    mass = replay(trace)
    header = trace.header
    assert mass.n_tokens == header.depth + header.n_steps and mass.n_steps == len(trace) and mass.n_pages == header.n_pages
    assert [layer.il for layer in mass.layers if layer.hooked] == list(header.layers) and not mass.layers[0].hooked
    total = sum(step.mass_sum.astype(np.float64) for step in trace.steps())
    np.testing.assert_allclose(mass.pages[header.layers[0]], total[0] / total[0].sum(axis=1, keepdims=True), atol=1e-9)
    assert np.isnan(mass.pages[0]).all() and np.isnan(mass.pages[header.layers[-1], -1]).all()  # a layer and a head it has not
    profile = of_steps(((step.mass_sum, step.n_used_end) for step in trace.steps()), header.n_layers, header.n_heads)
    assert [mass.profile.names()[il] for il in header.layers] == profile.names()


def test_command_table(synthetic):
    result = CliRunner().invoke(command, [str(synthetic()), "-p", PROMPT, "-n", "2", "-t", "1", "-l", "1"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].split()[:4] == ["layer", "head", "role", "first"]
    assert [line.split()[:2] for line in lines[1:3]] == [["1", "0"], ["1", "1"]]
    roles = [line.split()[2] for line in lines[1:3]]
    assert set(roles) <= {"retrieval", "anchor", "recency", "other"}
    letters = [line.split()[2] for line in lines[-2:]]
    expected = {"retrieval": "R", "anchor": "A", "recency": "N", "other": "o"}
    assert lines[-2].startswith("head 0") and letters == [expected[role] for role in roles]
    assert "attention of the last 2 tokens" in result.stderr


def test_command_trace(tmp_path):
    path = tmp_path / "random.npz"
    random_trace().write(path)
    result = CliRunner().invoke(command, ["--trace", str(path), "-o", "json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["model"] == "random.gguf, random.npz"
    assert [(row["layer"], row["head"]) for row in report["heads"]] == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]
    for name, begins in (("roles.png", b"\x89PNG\r"), ("roles.svg", b"<?xml")):
        table = CliRunner().invoke(command, ["--trace", str(path), "--picture", str(tmp_path / name)])
        assert "its text" not in table.stdout and "layer 0 is not observed: not in the trace" in table.stderr
        assert (tmp_path / name).read_bytes().startswith(begins)


@pytest.mark.parametrize("name, says", [("roles.gif", r"\.png or \.svg"), ("no/roles.png", "no such folder")])
def test_command_refuses_pictures_before_anything_runs(name, says, tmp_path):
    result = CliRunner().invoke(command, ["no.gguf", "-p", "x", "--picture", str(tmp_path / name)])
    assert isinstance(result.exception, ConfigError)
    assert re.search(says, str(result.exception))


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    result = CliRunner().invoke(command, ["no.gguf", "-p", "x", "--picture", str(tmp_path / "roles.png")])
    assert isinstance(result.exception, MissingLibrary) and result.exception.exit_code == 5
    assert "pip install ./edgekv/lab" in str(result.exception)


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
    assert isinstance(result.exception, (ConfigError, SystemExit)) and result.exit_code and "--layers" in f"{result.exception} {result.output}"
