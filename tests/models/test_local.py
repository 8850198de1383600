"""Models that other tools keep on this machine, and how one is found by name."""

import json
import os
import shutil
import subprocess
import sys

import gguf
import numpy as np
import pytest
from click.testing import CliRunner

from edgekv.cli.models import models
from edgekv.common.errors import ModelError
from edgekv.models.local import find_local, local_models
from edgekv.models.model_writer import write_header, write_model
from edgekv.models.shapes import SHAPES


@pytest.fixture
def home(tmp_path, monkeypatch, default_model):
    """A home folder with a model of each tool in it, and files that are none."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    model = write_model(SHAPES["tiny"], tmp_path / "tiny.bin", "q8_0").read_bytes()

    def put(path: str, contents: bytes = model) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(contents)

    put(".cache/huggingface/hub/models--some--repo/snapshots/abc/model-Q8_0.gguf")
    put(".cache/huggingface/hub/models--some--repo/snapshots/abc/mmproj-F16.gguf")
    put(".cache/huggingface/hub/models--some--repo/snapshots/abc/split-00002-of-00002.gguf")
    put(".cache/llama.cpp/cached.gguf")
    put(".cache/llama.cpp/page.gguf", b"<!DOCTYPE html>")
    put(".ollama/models/blobs/sha256-aa")
    put(".ollama/models/blobs/sha256-bb", b"{}")
    put(".ollama/models/manifests/registry.ollama.ai/library/small/latest", json.dumps(
        {"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:aa"}]}).encode())
    put(".ollama/models/manifests/registry.ollama.ai/library/other/broken", b"{")
    put(".lmstudio/models/maker/repo/studio.gguf", model[:-100])
    return tmp_path


def part(path, **said: str) -> bytes:
    """A GGUF file with these texts in its header, and a tensor if it has a type."""
    writer = gguf.GGUFWriter(path, said.pop("architecture", "llama"))
    for key, text in said.items():
        writer.add_string(f"general.{key}", text)
    if said:
        writer.add_tensor("blk.0.attn_q.weight", np.zeros((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def run(*arguments: str):
    return CliRunner().invoke(models, arguments, standalone_mode=False)


@pytest.mark.parametrize("variables", [{}, {"XDG_CACHE_HOME": "/x"}, {"HF_HOME": "~/h"}, {"HF_HOME": "/h", "HF_HUB_CACHE": "$HOME/c"},
                                       {"HUGGINGFACE_HUB_CACHE": "/c"}])
def test_what_is_fetched_is_looked_for_where_it_lies(variables, tmp_path):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGINGFACE_", "XDG_CACHE_"))}
    code = "from huggingface_hub.constants import HF_HUB_CACHE as theirs; from edgekv.models.local import hub_folder; print(theirs, hub_folder(), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], env=clean | {"HOME": str(tmp_path)} | variables, capture_output=True, text=True, check=True)
    theirs, ours = done.stdout.splitlines()
    assert theirs == ours


def test_every_place_is_looked_at(home):
    found = {(model.source, model.name) for model in local_models()}
    assert found == {("default model", "SmolLM2-135M-Instruct.Q4_1"), ("Hugging Face cache", "some/repo/model-Q8_0"),
                     ("llama.cpp cache", "cached"), ("Ollama", "small:latest"), ("LM Studio", "studio")}


def test_what_goes_with_a_model_is_none(home):
    """Adapters, projectors of any name, importance matrices and vocabularies are left out; a first part without tensors is a model."""
    files = {"lora": {"type": "adapter"}, "vision": {"type": "mmproj"}, "old-vision": {"architecture": "clip", "name": "x"}, "vocab": {},
             "Small.imatrix": {"type": "imatrix"}, "steer": {"architecture": "controlvector", "name": "x"}, "whole": {"type": "model"},
             "parts-00001-of-00002": {}}
    folder = home / ".lmstudio/models"
    for name, said in files.items():
        part(folder / f"{name}.gguf", **said)
    assert {model.name for model in local_models() if model.source == "LM Studio"} == {"studio", "whole", "parts-00001-of-00002"}


def test_names_as_their_places_write_them(home):
    model = (home / "tiny.bin").read_bytes()
    layers = (home / ".ollama/models/manifests/registry.ollama.ai/library/small/latest").read_bytes()
    for tag in ("registry.ollama.ai/library/small/1b", "registry.ollama.ai/me/mine/latest", "hf.co/maker/Repo-GGUF/Q8_0"):
        (home / ".ollama/models/manifests" / tag).parent.mkdir(parents=True, exist_ok=True)
        (home / ".ollama/models/manifests" / tag).write_bytes(layers)
    (home / ".ollama/models/blobs/sha256-cc-partial").write_bytes(model[:-100])
    snapshot = home / ".cache/huggingface/hub/models--user--With--Dashes/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "X.GGUF").write_bytes(model)
    names = [model.name for model in local_models() if model.source in ("Ollama", "Hugging Face cache")]
    assert sorted(names) == ["hf.co/maker/Repo-GGUF:Q8_0", "me/mine:latest", "small:1b", "small:latest", "some/repo/model-Q8_0", "user/With--Dashes/X"]
    assert find_local("small:1b").path == find_local("small").path


@pytest.mark.parametrize("settings", [".lmstudio/settings.json", ".config/LM Studio/settings.json", "elsewhere/settings.json"])
def test_lm_studios_moved_folder(home, monkeypatch, settings):
    """Its settings name the folder for models; its own folder may lie elsewhere too."""
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (home / ".lmstudio-home-pointer").write_text(f"{home / 'elsewhere'}\n")
    (home / settings).parent.mkdir(parents=True, exist_ok=True)
    for model in ("big disk/maker/moved.gguf", "elsewhere/models/maker/pointed.gguf"):
        (home / model).parent.mkdir(parents=True)
        shutil.copy(home / "tiny.bin", home / model)
    for text, found in (("{", False), ('{"downloadsFolder": 3}', False), (json.dumps({"downloadsFolder": str(home / "big disk")}), True)):
        (home / settings).write_text(text)
        names = {model.name for model in local_models() if model.source == "LM Studio"}
        assert names == {"studio", "pointed", *(["moved"] if found else [])}


def test_places_that_variables_name(home, monkeypatch):
    monkeypatch.setenv("LLAMA_CACHE", str(home / ".lmstudio"))
    assert ("llama.cpp cache", "studio") in {(model.source, model.name) for model in local_models()}


def test_list(home):
    rows = {row["name"]: row for row in json.loads(run("list", "-o", "json").stdout)}
    assert rows["small:latest"]["architecture"] == "llama" and rows["small:latest"]["layers"] == "2/2"
    assert rows["cached"]["kv_bytes_per_token"] == 1024 and rows["cached"]["fits_tokens"] == 4096
    assert rows["studio"]["architecture"] is None and "is truncated: the last" in rows["studio"]["problem"]
    head = run("list").stdout.splitlines()[0]
    assert "fits now" in head and head.endswith("  problem")
    (home / ".lmstudio").rename(home / "away")
    assert run("list").stdout.splitlines()[0].endswith("fits now")


def test_path(home, default_model):
    assert run("path").stdout.strip() == str(default_model)
    assert run("path", "small").stdout.strip() == str(home / ".ollama/models/blobs/sha256-aa")
    with pytest.raises(ModelError, match="there is no model 'large' on this machine; there are: SmolLM2"):
        find_local("large")
    with pytest.raises(ModelError, match="'m' is a part of several names"):
        find_local("m")


def test_show(home, tmp_path):
    text = run("show", "cached").stdout
    assert "Q8_0" in text and "1,024 bytes a token" in text and "EdgeKV" in text and "chat template:" in text
    path = write_header(SHAPES["gemma-3-4b"], tmp_path / "gemma.gguf", "q4_0")
    facts = json.loads(run("show", str(path), "--json").stdout)
    assert facts["sliding_window"] == 1024 and sum(layer["served"] for layer in facts["layers"]) == 5
    assert facts["layers"][0]["reason"] == "attended by EdgeKV: a sliding window, whole (1,024 tokens)" and facts["tensors"][0]["type"] == "Q4_0"
    assert facts["kv_bytes_per_token_by_type"]["f16"] == 139_264 and "add_generation_prompt" in facts["chat_template_text"]
    hybrid = run("show", str(write_header(SHAPES["lfm2-1.2b"], tmp_path / "lfm2.gguf", "q4_0"))).stdout
    assert "recurrent: no KV cache" in hybrid and "160.0 KiB of recurrent layers" in hybrid


def test_show_whole_template(home, monkeypatch):
    assert "--full shows them" not in run("show", "cached").stdout
    monkeypatch.setattr("edgekv.cli.models._TEMPLATE_LINES", 1)
    short, full = run("show", "cached").stdout, run("show", "cached", "--full").stdout
    assert "--full shows them" in short and "--full shows them" not in full and "endfor" in full and "endfor" not in short
