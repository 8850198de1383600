"""patches/apply.py against another version of llama.cpp, and what a patch may hold."""

import importlib.util
import re
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


MEMBERS = {"core/0004": {"edgekv_clock"}, "core/0019": {"edgekv_threads"}, "server/0001": {"edgekv_space"},
           "server/0004": {"edgekv_events", "edgekv_fit"}}
"""What must go wherever upstream copies, moves or swaps an object, or ends with it."""

LOCALS = {
    "core/0001": {"edgekv_attended", "edgekv_choice", "edgekv_stored"}, "core/0003": {"edgekv_ubatch"}, "core/0005": {"edgekv_records"},
    "core/0006": {"edgekv_expected", "edgekv_planning"}, "core/0012": {"edgekv_labels"}, "core/0013": {"edgekv_product"}, "core/0020": {"edgekv_offsets"},
    "server/0001": {"edgekv_file", "edgekv_scope", "edgekv_why"}, "server/0002": {"edgekv_embeds", "edgekv_end", "edgekv_loop", "edgekv_slot", "edgekv_turn"},
    "server/0003": {"edgekv_answer", "edgekv_i", "edgekv_infill", "edgekv_later", "edgekv_slot", "edgekv_token"},
    "server/0004": {"edgekv_begun", "edgekv_choice", "edgekv_error", "edgekv_state"}, "server/0005": {"edgekv_before", "edgekv_error", "edgekv_here"}}

UPSTREAMS = {"core/0008", "core/0009", "core/0014"}
"""Patches that mend upstream's own faults, as upstream would."""

_NO_TYPE = r"(?!(?:return|case|friend|throw|new|else|goto)\b)"
_TYPE = rf"(?:(?:const|constexpr|static|inline|thread_local|unsigned|struct|class|enum) )*{_NO_TYPE}[A-Za-z_][\w:]*(?:<.*?>)?"
DECLARATION = re.compile(rf"(?:^|\bfor \(|\bif \(|[;{{(,] ?){_TYPE}(?: ?[&*]+ ?| )(\w+) ?(?:[=;(){{\[:,]|$)")
DEFINITION = re.compile(rf"^(?:\w+ )*{_TYPE}(?: ?[&*]+ ?| )~?[\w:]+\([^;]*\) ?(?:const |override |noexcept )*(?:\{{.*)?$")


def added_lines() -> dict[str, list[str]]:
    """The code that each patch adds, without indentation, comments and texts."""
    added = {}
    for path in sorted(APPLY.parent.glob("*/*.patch")):
        lines = [line[1:].strip() for line in path.read_text().splitlines() if line.startswith("+") and not line.startswith("+++")]
        bare = [re.sub(r'"[^"]*"', '""', re.sub(r"//.*|/\*.*?\*/", "", line)).strip() for line in lines]
        added[f"{path.parent.name}/{path.name[:4]}"] = [line for line in bare if line and not line.startswith("#")]
    return added


def test_a_patch_declares_only_names_of_its_own_and_no_member_but_five():
    """So nothing of upstream's is hidden, and no class of upstream's grows. What is declared anew belongs into one of the two lists."""
    for name, lines in added_lines().items():
        declared = {found for line in lines for found in DECLARATION.findall(line)}
        assert name in UPSTREAMS or declared == MEMBERS.get(name, set()) | LOCALS.get(name, set()), name


def test_a_patch_defines_no_function():
    for name, lines in added_lines().items():
        defined = [line for line in lines if DEFINITION.match(line)]
        assert not defined, (name, defined)


def test_a_patch_removes_nothing_and_its_hunks_are_whole():
    """Of a hunk whose counts are wrong patch-ng applies a part in silence, and leaves out the hunks behind it."""
    for path in APPLY.parent.glob("*/*.patch"):
        for counts, hunk in re.findall(r"^@@ (.*?) @@.*\n((?:[ +].*\n|\n|-.*\n)*)", path.read_text(), re.MULTILINE):
            n_old, n_new = (int(one.partition(",")[2] or 1) for one in counts.split())
            signs = [line[:1] for line in hunk.splitlines()]
            assert (signs.count("-"), n_old, n_new) == (0, signs.count(" "), len(signs)), (path.name, counts)


def test_the_rules_see_what_they_forbid():
    for line in ("auto & slots = this->slots;", "uint64_t edgekv_n = 0;", "edgekv_server::ticket ticket;", "for (auto & cells : v_cells) {",
                 "if (ggml_tensor * product = build(res)) {", "std::vector<uint8_t> labels(n);", "iterate(slots, [&](server_slot & slot) {"):
        assert DECLARATION.search(line), line
    for line in ("return slots;", "edgekv_server::decode_begins();", "if (!edgekv_labels.read(i, io)) {", "n_batch = std::min(n_batch, 3);",
                 "case GGML_OP_CUSTOM:", "friend struct llama_edgekv_access;", "throw std::runtime_error(text);"):
        assert not DECLARATION.search(line), line
    assert DEFINITION.match("static void * stream(ggml_backend_t backend) {") and DEFINITION.match("bool edgekv_refuses() {")
    assert not DEFINITION.match("if (edgekv_here.too_deep()) {") and not DEFINITION.match("edgekv_server::decode_begins();")
