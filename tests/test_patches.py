"""patches/apply.py against another version of llama.cpp."""

from __future__ import annotations

import importlib.util
from pathlib import Path

APPLY = Path(__file__).resolve().parent.parent / "patches" / "apply.py"

PATCH = """one patch

diff --git a/src/llama-graph.cpp b/src/llama-graph.cpp
index 0000001..0000002 100644
--- a/src/llama-graph.cpp
+++ b/src/llama-graph.cpp
@@ -1,2 +1,3 @@
 a
+// edgekv: one
 b
@@ -3,2 +4,3 @@
 c
+// edgekv: two
 d
@@ -5,2 +7,3 @@
 e
+// edgekv: three
 f
"""


def test_a_rehearsal_says_what_holds(tmp_path, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("apply", APPLY)
    apply = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(apply)
    patch = tmp_path / "core" / "0001-one.patch"
    patch.parent.mkdir()
    patch.write_text(PATCH)
    monkeypatch.setattr(apply, "series", lambda: [patch])
    for text, said in (("abcdef", "3 stand, 0 moved, 0 failed"), ("abxcdef", "1 stand, 2 moved, 0 failed"), ("abcdex", "2 stand, 0 moved, 1 failed"),
                       ("xyz", "0 stand, 0 moved, 3 failed")):
        source = tmp_path / text / "src" / "llama-graph.cpp"
        source.parent.mkdir(parents=True)
        source.write_text("".join(f"{line}\n" for line in text))
        apply.rehearse(tmp_path / text)
        assert f"core/0001-one.patch: {said}\n3 hunks: {said}" in capsys.readouterr().out
        assert source.read_text().replace("\n", "") == text, "the source stays as it is"
