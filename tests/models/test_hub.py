"""Addresses of Hugging Face: the files that they choose, there and among those that are here."""

import shutil
from pathlib import Path

import pytest

from edgekv.cli.common.shared_options import model_path
from edgekv.common.errors import ConfigError, ModelError
from edgekv.models.hub import Address, choose

FILES = ["README.md", "Small-1B-Q4_K_M.gguf", "Small-1B-Q4_K_S.gguf", "Small-1B-Q8_0.gguf", "mmproj-Small-F16.gguf", "imatrix.gguf",
         "big/Small-1B-F16-00001-of-00002.gguf", "big/Small-1B-F16-00002-of-00002.gguf"]


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


def test_an_address_finds_what_is_here_whole(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--user--repo" / "snapshots" / "abc"
    (folder / "big").mkdir(parents=True)
    for file in FILES[3], FILES[-2]:
        (folder / file).write_bytes(b"GGUF")
    assert model_path(Path("hf:user/repo")) == model_path(Path("hf:user/repo:Q8_0")) == folder / FILES[3]
    with pytest.raises(ModelError, match="nobody can be asked"):
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
