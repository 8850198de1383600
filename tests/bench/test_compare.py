"""edgekv.bench.compare and `edgekv bench compare`: rows of two results in pairs."""

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.results import ENVIRONMENT, bench_rows, llama_bench_rows

from edgekv.bench.compare import compare
from edgekv.cli.bench import bench
from edgekv.common.errors import ConfigError


def faster(rows: list[dict], times: float) -> list[dict]:
    return [{**row, "avg_ts": row["avg_ts"] * times, "samples_ts": [sample * times for sample in row["samples_ts"]]} for row in rows]


def run(folder: Path, *arguments: str, **files: object) -> Result:
    """Each file named without its ending; a text stands as it is, what else as JSON."""
    for name, content in files.items():
        (folder / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return CliRunner().invoke(bench, ["compare", *(str(folder / f"{name}.json") for name in files), *arguments], standalone_mode=False)


def test_the_ratio_and_its_noise():
    """Three samples of 1 % on both sides: s/m is 0.01 each, 4 degrees of freedom, t = 2.776."""
    rows = bench_rows(("exact",), (0,))
    found = compare(rows, faster(rows, 1.05))
    assert [pair.ratio for pair in found.pairs] == pytest.approx([1.05, 1.05])
    half = 2.776 * math.sqrt(2 * 0.01 ** 2 / 3)
    assert found.pairs[0].interval == pytest.approx((1.05 * math.exp(-half), 1.05 * math.exp(half)), rel=1e-6)
    assert [pair.verdict for pair in found.pairs] == ["faster", "faster"]
    for times, verdict in ((1.02, "within noise"), (0.95, "slower"), (1.0, "within noise")):
        assert {pair.verdict for pair in compare(rows, faster(rows, times)).pairs} == {verdict}


def test_samples_of_unlike_noise_have_fewer_degrees_of_freedom():
    """B. L. Welch's: a side without noise of its own adds none."""
    rows = bench_rows(("exact",), (0,))
    still = [{**row, "samples_ts": [row["avg_ts"]] * 3} for row in rows]
    (low, high), n = compare(still, rows).pairs[0].interval, 3
    assert math.log(high / low) / 2 == pytest.approx(4.303 * 0.01 / math.sqrt(n), rel=1e-6)  # t with 2
    assert compare(still, still).pairs[0].interval == (1.0, 1.0)


def test_one_repetition_says_nothing_of_noise():
    rows = [{**row, "samples_ts": row["samples_ts"][:1]} for row in bench_rows(("exact",), (0,))]
    (pair, _) = compare(rows, faster(rows, 2)).pairs
    assert pair.interval is None and pair.verdict == "noise unknown" and pair.ratio == 2


def test_rows_that_repeat_are_one():
    rows = bench_rows(("exact",), (0,))
    found = compare([*rows, *faster(rows, 1.1)], rows)
    assert [pair.a.n_samples for pair in found.pairs] == [6, 6]
    assert found.pairs[0].a.speed == pytest.approx(1.05 * rows[0]["avg_ts"])


def test_what_stands_in_one_only():
    a, b = bench_rows(depths=(0, 4000)), bench_rows(("exact", "sparse"), depths=(4000, 8000))
    found = compare(a, b)
    assert {(pair.a.settings["test"], pair.a.settings["mode"]) for pair in found.pairs} == {
        (f"{test} @ d4000", mode) for test in ("pp512", "tg64") for mode in ("exact", "sparse")}
    assert len(found.only_a) == 8 + 4 and {one.settings["test"] for one in found.only_b} == {"pp512 @ d8000", "tg64 @ d8000"}
    assert [row["in"] for row in found.rows()] == ["both"] * 4 + ["A"] * 12 + ["B"] * 4


def test_what_differs_throughout_keeps_nothing_apart():
    """Another machine, model and number of threads: named, and the rows are pairs."""
    other = {**ENVIRONMENT, "cpu": "Intel Xeon", "family": "Intel Xeon, Ice Lake", "edgekv": "2"}
    rows = bench_rows(n_threads=8, model_filename="elsewhere/small.gguf", cpu_info="Intel Xeon", environment=other)
    found = compare(bench_rows(), rows)
    assert len(found.pairs) == len(rows) and not found.only_a
    assert found.differences == [("model", "tiny.gguf", "small.gguf"), ("threads", "2", "8"), ("processor", "AMD EPYC 9B14", "Intel Xeon"),
                                 ("family", "AMD EPYC, Zen 4, AVX-512", "Intel Xeon, Ice Lake"), ("EdgeKV", "1", "2")]
    mixed = compare(bench_rows(), [*rows, *bench_rows(depths=(0,))])
    assert len(mixed.pairs) == 8 and not mixed.only_a[0].settings["test"].endswith("512"), "rows of two threads: that setting counts"


def test_settings_that_tell_rows_of_a_file_apart():
    rows = [*bench_rows(("exact",), (0,), n_batch=256), *bench_rows(("exact",), (0,), n_batch=512)]
    found = compare(rows, rows)
    assert [(pair.a.settings["n_batch"], pair.b.settings["n_batch"]) for pair in found.pairs] == [(256, 256)] * 2 + [(512, 512)] * 2


def test_an_automatic_budget_keeps_nothing_apart(tmp_path):
    """It follows the context. Of several in a file each has its own pair."""
    a, b = (bench_rows(("sparse",), (4000,), kv_budget_mib=budget) for budget in (10.125, 24.0))
    assert [pair.row()["budget"] for pair in compare(a, b).pairs] == ["10.125 -> 24"] * 2
    assert "10.125 -> 24" in run(tmp_path, a=a, b=b).stdout
    both = compare([*a, *b], [*b, *a])
    assert [pair.row()["budget"] for pair in both.pairs] == [10.125] * 2 + [24.0] * 2


@pytest.mark.parametrize(("flash", "with_", "name"), [
    (-1, ["off-flash", "off-noflash", "exact", "sparse"], "llama-bench"), (0, ["off-noflash", "exact", "sparse"], "llama-bench, no flash"),
    (True, ["off-flash", "exact", "sparse"], "llama-bench, flash"),
])
def test_llama_benchs_own_rows(flash, with_, name):
    found = compare(llama_bench_rows(flash), bench_rows())
    assert [pair.row()["mode"] for pair in found.pairs if pair.a.settings["test"] == "tg64 @ d8000"] == [f"{name} -> {mode}" for mode in with_]
    assert not found.differences, "the same machine"
    back = compare(bench_rows(), llama_bench_rows(flash))
    assert len(back.pairs) == len(found.pairs) and not back.only_b
    assert {pair.row()["mode"] for pair in compare(llama_bench_rows(flash), llama_bench_rows(flash)).pairs} == {name}


def test_what_was_not_measured_says_why():
    rows = bench_rows(("exact",))
    without = [{**row, "avg_ts": None, "samples_ts": [], "note": "does not fit: 5 GiB of 4 free"} for row in rows]
    (pair, *_) = compare(rows, without).pairs
    assert pair.ratio is None and pair.verdict == "does not fit: 5 GiB of 4 free"


def test_texts_keep_rows_apart():
    both = [*bench_rows(("sparse",)), *bench_rows(("sparse",), text="code")]
    found = compare(both, both)
    assert {(pair.a.settings["text"], pair.b.settings["text"]) for pair in found.pairs} == {("prose", "prose"), ("code", "code")}
    assert {pair.verdict for pair in found.pairs} == {"within noise"}
    assert next(pair.a.speed for pair in found.pairs if pair.row()["test"] == "tg64 @ d8000") == pytest.approx(80)


def test_the_table(tmp_path):
    lines = "\n".join(json.dumps(row) for row in faster(bench_rows(), 1.05))
    done = run(tmp_path, a=bench_rows(), b=lines)
    assert done.exit_code == 0, done.output
    first, second, empty, head, *rows = done.stdout.splitlines()
    assert first.endswith("a.json") and second.endswith("b.json") and not empty
    assert head.split() == ["test", "mode", "A", "t/s", "±", "B", "t/s", "±", "B/A", "95", "%", "B", "is"]
    assert len(rows) == 24 and rows[0].split() == ["pp512", "off-flash", "1,000.00", "10.00", "1,050.00", "10.50", "1.050", "1.026", "to",
                                                   "1.074", "faster"]


def test_as_json_csv_and_markdown(tmp_path):
    files = {"a": bench_rows(depths=(0,)), "b": bench_rows(("exact",), n_threads=4)}
    document = json.loads(run(tmp_path, "-o", "json", **files).stdout)
    assert document["differences"] == [{"what": "threads", "a": "2", "b": "4"}] and len(document["rows"]) == 2 + 6 + 4
    assert document["rows"][0]["ratio"] == 1 and document["rows"][0]["in"] == "both"
    head, *rows = run(tmp_path, "-o", "csv", **files).stdout.splitlines()
    assert head.startswith("b,in,model,test,mode") and len(rows) == 12
    text = run(tmp_path, "-o", "md", **files).stdout
    assert "threads: 2 -> 4" in text and "| pp512 | exact |" in text and "only in" in text


def test_several_are_compared_with_the_first(tmp_path):
    files = {"a": bench_rows(), "b": faster(bench_rows(), 1.05), "c": faster(bench_rows(), 0.9)}
    documents = json.loads(run(tmp_path, "-o", "json", **files).stdout)
    assert [document["rows"][0]["verdict"] for document in documents] == ["faster", "slower"]
    assert run(tmp_path, **files).stdout.count("A: ") == 2


def test_fail_below(tmp_path):
    """Only what is below by more than its noise."""
    rows = bench_rows()
    assert run(tmp_path, "--fail-below", "1", a=rows, b=faster(rows, 0.99)).return_value == 0
    done = run(tmp_path, "--fail-below", "0.95", a=rows, b=faster(rows, 0.9))
    assert done.return_value == 1 and "24 of 24 pairs are below 0.95 by more than their noise" in done.stderr
    one = [{**row, "samples_ts": row["samples_ts"][:1]} for row in faster(rows, 0.5)]
    assert run(tmp_path, "--fail-below", "0.95", a=rows, b=one).return_value == 0


@pytest.mark.parametrize(("files", "says"), [
    ({"a": bench_rows()}, "name two files"), ({"a": bench_rows(), "b": "{"}, "is not JSON"), ({"a": bench_rows(), "b": "[]"}, "has no rows"),
    ({"a": bench_rows(), "b": [{"kind": "plan"}]}, "B has no rows of edgekv bench"),
    ({"a": bench_rows(depths=(0,)), "b": bench_rows(depths=(4000,))}, "no rows in common: A has tiny.gguf pp512, off-flash, threads 2, f16/f16 and 7 more"),
    ({"a": bench_rows(), "b": '{"a": 1}\n{"b"}\n'}, "line 2 of"),
], ids=str)
def test_refuses(tmp_path, files, says):
    done = run(tmp_path, **files)
    assert isinstance(done.exception, ConfigError) and says in str(done.exception) and done.exception.exit_code == 2
