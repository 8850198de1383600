"""`edgekv models pull`: the files that it takes, and its sentences where they are not to be had. The library is a fake: tests have no
network."""

import sys
import types

import pytest
from click.testing import CliRunner

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
