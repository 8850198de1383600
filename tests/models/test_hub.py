"""`edgekv models pull`: the files that it takes, and its sentences where they are not to be had. The library is a fake: tests have no
network."""

import shutil
import sys
import types
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.terminal import Terminal

from edgekv.cli.common.shared_options import model_path
from edgekv.cli.models import models
from edgekv.common.errors import ConfigError, EdgeKVError, ModelError
from edgekv.models.hub import Address, choose, pull

FILES = ["README.md", "Small-1B-Q4_K_M.gguf", "Small-1B-Q4_K_S.gguf", "Small-1B-Q8_0.gguf", "mmproj-Small-F16.gguf", "imatrix.gguf",
         "big/Small-1B-F16-00001-of-00002.gguf", "big/Small-1B-F16-00002-of-00002.gguf"]


class Fake(types.ModuleType):
    """As much of huggingface_hub as EdgeKV uses."""

    def __init__(self, folder, error: type[Exception] | None = None):
        super().__init__("huggingface_hub")
        self.fetched: list[str] = []
        self.errors = types.ModuleType("huggingface_hub.errors")
        self.errors.HfHubHTTPError = type("HfHubHTTPError", (OSError,), {})
        self.errors.RepositoryNotFoundError = type("RepositoryNotFoundError", (self.errors.HfHubHTTPError,), {})
        self.errors.GatedRepoError = type("GatedRepoError", (self.errors.RepositoryNotFoundError,), {})
        self._folder, self._error = folder, error

    def HfApi(self):  # noqa: N802 - the library's name
        return self

    def list_repo_files(self, repo: str) -> list[str]:
        if self._error is not None:
            raise (self._error if isinstance(self._error, type) else getattr(self.errors, self._error))("no answer\nmore")
        return FILES

    def get_paths_info(self, repo: str, files: list[str]) -> list[types.SimpleNamespace]:
        return [types.SimpleNamespace(path=file, size=3 << 29) for file in files]

    def hf_hub_download(self, repo: str, file: str) -> str:
        self.fetched.append(file)
        return str(self._folder / file)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    def install(error=None) -> Fake:
        fake = Fake(tmp_path, error)
        monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
        monkeypatch.setitem(sys.modules, "huggingface_hub.errors", fake.errors)
        return fake

    return install


@pytest.mark.parametrize(("text", "repo", "quant"), [
    ("hf:user/repo", "user/repo", None), ("hf:user/My.Repo-GGUF:Q4_K_M", "user/My.Repo-GGUF", "Q4_K_M"), ("user/repo:q8_0", "user/repo", "q8_0")])
def test_addresses(text, repo, quant):
    assert Address.parse(text) == Address(repo, quant)


@pytest.mark.parametrize("text", ["hf:repo", "https://huggingface.co/a/b", "", "hf:a/b/c", "hf:a/b:"])
def test_no_addresses(text):
    with pytest.raises(ConfigError, match="hf:USER/REPO:QUANT"):
        Address.parse(text)


def test_choice():
    assert choose(FILES, None) == ["Small-1B-Q4_K_M.gguf"] and choose(FILES, "q8_0") == ["Small-1B-Q8_0.gguf"]
    assert choose(FILES, "F16") == FILES[-2:], "all parts, and not the projector"
    assert choose(["only.gguf"], None) == ["only.gguf"] and choose(["X.GGUF"], None) == ["X.GGUF"]
    with pytest.raises(ModelError, match="has no Q2_K; it has: .*Q4_K_M"):
        choose(FILES, "Q2_K")
    with pytest.raises(ModelError, match="some/repo has no GGUF file"):
        choose(["model.safetensors"], None, "some/repo")


def test_pull(hub, tmp_path):
    fake = hub()
    result = CliRunner().invoke(models, ["pull", "hf:user/repo:F16"])
    assert result.stdout.strip() == str(tmp_path / FILES[-2]) and fake.fetched == FILES[-2:]
    assert "user/repo: big/Small-1B-F16-00002-of-00002.gguf (2 of 2)" in result.stderr


@pytest.fixture
def person(monkeypatch):
    """Someone at a terminal, who answers what is asked there."""
    def answers(text: str) -> list[str]:
        asked: list[str] = []
        monkeypatch.setattr("sys.stdin", Terminal(text))
        monkeypatch.setattr("sys.stderr", Terminal())
        monkeypatch.setattr("click.confirm", lambda question, **more: asked.append(question) or text == "y")
        return asked

    return answers


def test_an_address_is_a_model_after_one_question_with_its_size(hub, person, tmp_path):
    fake, asked = hub(), person("y")
    assert model_path(Path("hf:user/repo:F16")) == tmp_path / FILES[-2]
    assert asked == [f"Fetch {FILES[-2]}, 3.0 GiB, from Hugging Face?"] and fake.fetched == FILES[-2:]


def test_nothing_is_fetched_unless_a_person_agrees(hub, person):
    fake = hub()
    with pytest.raises(ConfigError, match="hf:user/repo is not on this machine, and nobody can be asked here; `edgekv models pull hf:user/repo` fetches it"):
        model_path(Path("hf:user/repo"))
    person("n")
    with pytest.raises(EdgeKVError, match="nothing was fetched"):
        model_path(Path("hf:user/repo"))
    assert fake.fetched == []


def test_what_was_fetched_before_is_used_without_a_network(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--user--repo" / "snapshots" / "abc"
    (folder / "big").mkdir(parents=True)
    for file in FILES[3], FILES[-2]:
        (folder / file).write_bytes(b"GGUF")
    assert model_path(Path("hf:user/repo")) == model_path(Path("hf:user/repo:Q8_0")) == folder / FILES[3]
    with pytest.raises(ConfigError, match="nobody can be asked"):
        model_path(Path("hf:user/repo:F16"))  # the second part is not here
    (folder / FILES[-1]).write_bytes(b"GGUF")
    assert model_path(Path("hf:user/repo:F16")) == folder / FILES[-2]


def test_a_name_of_the_list_is_a_model(monkeypatch, tmp_path, synthetic):
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path))
    shutil.copy(synthetic(), tmp_path / "Tiny-1B.gguf")
    assert model_path(Path("Tiny-1B")) == model_path(Path("tiny-1")) == tmp_path / "Tiny-1B.gguf"
    with pytest.raises(ModelError, match="there is no model 'Tony' on this machine; there are: .*Tiny-1B"):
        model_path(Path("Tony"))
    assert model_path(Path("none.gguf")) == Path("none.gguf"), "a file's own sentence says that it is not there"


@pytest.mark.parametrize(("error", "kind", "words"), [
    ("RepositoryNotFoundError", ModelError, "there is no model user/repo on Hugging Face"),
    ("GatedRepoError", ModelError, "set HF_TOKEN"),
    ("HfHubHTTPError", EdgeKVError, "could not be fetched: no answer; what has come is kept"),
    (type("ConnectError", (Exception,), {}), EdgeKVError, r"Hugging Face cannot be reached \(no answer\)"),
    (ConnectionError, EdgeKVError, "`edgekv models list` shows the models that are here")])
def test_what_cannot_be_had(hub, error, kind, words):
    hub(error)
    with pytest.raises(kind, match=words):
        pull(Address("user/repo", None))


def test_a_fault_of_ours_is_not_hidden(hub):
    hub(ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        pull(Address("user/repo", None))


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r'pip install "edgekv\[hub\]"'):
        pull(Address("user/repo", None))
