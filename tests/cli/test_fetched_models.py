"""Models that are addresses of a hub: what is fetched after which question, and the sentences where it is not to be had."""

import os
from pathlib import Path

import pexpect
import pytest
from support.hub import Hub
from support.serve_process import EDGEKV

from edgekv.common.errors import EXIT_MODEL, EXIT_OK, EXIT_RUNTIME
from edgekv.common.units import size

PARTS = ["big/Small-F16-00001-of-00002.gguf", "big/Small-F16-00002-of-00002.gguf"]


@pytest.fixture
def hub(synthetic):
    whole = synthetic("llama").read_bytes()
    hub = Hub({"README.md": b"", "Small-Q8_0.gguf": whole, PARTS[0]: b"GGUF one", PARTS[1]: b"GGUF two"})
    yield hub
    hub.close()


@pytest.fixture
def variables(hub, tmp_path) -> dict[str, str]:
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGINGFACE_"))]:
        pytest.skip(f"{name} is set here")
    return {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_DISABLE_TELEMETRY": "1", "no_proxy": "127.0.0.1"}


def at_a_terminal(environment: dict[str, str], answer: str) -> tuple[str, int]:
    """What a person sees who answers the one question of `edgekv models show`, and the exit code."""
    child = pexpect.spawn(EDGEKV[0], [*EDGEKV[1:], "models", "show", "hf:user/repo"], encoding="utf-8", env=environment, dimensions=(40, 100), timeout=60)
    child.expect_exact("[Y/n]: ")
    asked = child.before
    child.sendline(answer)
    child.expect(pexpect.EOF)
    child.close()
    return asked + "\n" + child.before, child.exitstatus


def test_pull_fetches_all_parts_and_prints_the_first(edgekv, hub, variables):
    done = edgekv("models", "pull", "hf:user/repo:F16", **variables)
    assert done.returncode == EXIT_OK, done.stderr
    assert Path(done.stdout.strip()).read_text() == "GGUF one" and sorted(hub.fetched()) == PARTS
    assert done.stderr.splitlines() == [f"user/repo: {PARTS[0]} (1 of 2)", f"user/repo: {PARTS[1]} (2 of 2)"]
    assert edgekv("models", "pull", "hf:user/repo:F16", **variables).stdout == done.stdout and len(hub.fetched()) == 2, "nothing is fetched twice"


def test_a_person_is_asked_once_with_the_size_and_sees_a_bar(environment, hub, variables):
    seen, code = at_a_terminal(environment | variables, "y")
    assert code == EXIT_OK and hub.fetched() == ["Small-Q8_0.gguf"]
    assert seen.startswith(f"Fetch Small-Q8_0.gguf, {size(len(hub.files['Small-Q8_0.gguf']))}, from Hugging Face? ")
    assert "Small-Q8_0.gguf: 100%|" in seen and "chat template" in seen


def test_nothing_is_fetched_without_a_persons_consent(edgekv, environment, hub, variables):
    seen, code = at_a_terminal(environment | variables, "n")
    assert code == EXIT_RUNTIME and "nothing was fetched" in seen and not hub.fetched()
    hub.asked.clear()
    done = edgekv("models", "show", "hf:user/repo", **variables)
    assert done.returncode == EXIT_MODEL and not hub.asked
    assert "hf:user/repo is not on this machine, and nobody can be asked here; `edgekv models pull hf:user/repo` fetches it" in done.stderr


def test_what_was_fetched_is_used_without_a_network(edgekv, hub, variables):
    assert edgekv("models", "pull", "hf:user/repo", **variables).returncode == EXIT_OK
    hub.close()
    done = edgekv("models", "show", "hf:user/repo:q8_0", **variables)
    assert done.returncode == EXIT_OK, done.stderr


@pytest.mark.parametrize(("refusal", "code", "words"), [
    ((404, "RepoNotFound"), EXIT_MODEL, "there is no model user/repo on Hugging Face"),
    ((403, "GatedRepo"), EXIT_MODEL, "set HF_TOKEN"),
    ((500, ""), EXIT_RUNTIME, "user/repo cannot be fetched from Hugging Face: Server error '500"),
    (None, EXIT_RUNTIME, "Connection refused; try again, which goes on with what has come"),
    ("offline", EXIT_RUNTIME, "HF_HUB_OFFLINE is set")])
def test_what_cannot_be_had_is_one_sentence(edgekv, hub, variables, refusal, code, words):
    """Also where the library would try again five times, each with a line of its own."""
    if refusal == "offline":
        variables["HF_HUB_OFFLINE"] = "1"
    elif refusal is None:
        hub.close()
    else:
        hub.refusal = refusal
    done = edgekv("models", "pull", "hf:user/repo", **variables)
    assert done.returncode == code and words in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
