"""The digest of the native sources, which kept rows carry: no source can be forgotten."""

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def sources(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("sources", ROOT / "native" / "sources.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for folder in module.FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


@pytest.mark.parametrize("name", ["native/src/kernels/isa.h", "native/llama/llama-edgekv-identity.cpp", "native/src/attention/cpu/select.cpp",
                                  "patches/core/0001-attention-hook.patch", "native/src/kernels/kernels.cmake"])
def test_each_source_counts(sources, tmp_path, name):
    before = sources.digest()
    path = tmp_path / name
    path.write_bytes(path.read_bytes() + b"// changed\n")
    assert sources.digest() != before


def test_what_is_no_source_does_not(sources, tmp_path):
    before = sources.digest()
    (tmp_path / "patches/README.md").write_text("other")
    (tmp_path / "native/src/notes.txt").write_text("other")
    path = tmp_path / "native/src/kernels/isa.h"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))  # a checkout with other ends of lines
    assert sources.digest() == before
    shutil.move(path, path.with_name("renamed.h"))
    assert sources.digest() != before


def test_the_header_is_written_where_it_changes(sources, tmp_path):
    header = tmp_path / "out.h"
    sources.main(str(header))
    found = re.fullmatch(r'#define EDGEKV_SOURCES "([0-9a-f]{32})"\n', header.read_text())
    assert header.with_suffix(".txt").read_text() == f"{found[1]}\n", "what a plug-in says that it is made of"
    written = header.stat().st_mtime_ns
    sources.main(str(header))
    assert header.stat().st_mtime_ns == written
