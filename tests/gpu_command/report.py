"""One json and one table of everything so far, written after each step: a kill costs nothing that was measured."""

import datetime
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .state import State
from .targets import MET, MISSED, UNKNOWN, judge, size

COLUMNS = (
    ("model", "model"), ("column", "column"), ("budget_bytes", "budget"), ("link", "link"), ("depth", "depth"),
    ("decode_ms_p50", "decode ms"), ("decode_ms_p99", "p99 ms"), ("prefill_tps", "prefill t/s"), ("hit_rate", "hits %"),
    ("rows_per_head", "rows/head"), ("error", "error %"), ("attended_fraction", "attended %"), ("link_bytes_per_step", "link MiB/step"),
    ("stall_ms", "stall ms"), ("overhead_fraction", "policy %"), ("vram_peak_bytes", "peak VRAM GiB"), ("note", "note"),
)
LEFT = ("model", "column", "link", "note")


def write(out: Path, state: State, facts: Mapping[str, Any]) -> None:
    """Write results.json, table.md and logs.tar.gz into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    rows, steps = state.rows(), list(state.entries().values())
    verdicts = judge(rows, (facts.get("rates") or {}).get("link_copy"))
    whole = {
        "about": {**facts, "written": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")},
        "steps": steps, "rows": rows, "reads": state.reads(),
        "targets": [{"target": one.target, "where": one.where, "value": one.value, "bound": one.bound, "answer": one.answer}
                    for one in verdicts],
    }
    _replace(out / "results.json", json.dumps(whole, indent=1) + "\n")
    _replace(out / "table.md", markdown(whole))
    logs = sorted(state.path("logs", "x").parent.glob("*.log"))
    if logs:
        partial = out / "logs.partial"
        with tarfile.open(partial, "w:gz") as archive:
            for log in logs:
                archive.add(log, log.name)
        partial.replace(out / "logs.tar.gz")


def markdown(whole: Mapping[str, Any]) -> str:
    """The table's text: heading with machine and sources, the steps, the reads of home, the rows, the targets."""
    about = whole["about"]
    cards = [f"{card['name']} ({card['memory_mib']} MiB, driver {card['driver']})" for card in about.get("cards", ())]
    text = [
        f"# {', '.join(cards) or 'no GPU'}", "",
        (f"{about.get('processor')}, {about.get('cores')} cores, {about.get('memory_gib')} GiB; {about.get('nvcc') or 'no nvcc'}; "
         f"Python {about.get('python')}; plane: {about.get('device')}."),
        f"Commit {about.get('commit')}, sources {about.get('sources')}; written {about['written']}.", ""]
    if about.get("rates"):
        rates = ", ".join(f"{name} {value:.3g}" for name, value in about["rates"].items())
        text += [f"Rates: {rates} (bytes per second; launch_us in microseconds).", ""]
    text += _table(("step", "status", "seconds", "note"), [
        (step["step"], step["status"], f"{step['seconds']:.0f}", step["note"]) for step in whole["steps"]], left=(0, 1, 3))
    if whole["reads"]:
        text += _table(("read from home", "by", "MiB", "asked", "GB/s", "rows/s"), [
            (row["what"], row["way"], row["mib"], row["asked_mib"] or "-", f"{row['gb_per_s']:.2f}", f"{row['rows_per_s']:.3g}")
            for row in whole["reads"]], left=(0, 1))
    if whole["rows"]:
        used = [(key, title) for key, title in COLUMNS if any(row.get(key) not in (None, "") for row in whole["rows"])]
        rows = sorted(whole["rows"], key=lambda row: (row["model"], row["depth"]))
        text += _table([title for _, title in used], [[cell(key, row.get(key)) for key, _ in used] for row in rows],
                       left=[i for i, (key, _) in enumerate(used) if key in LEFT])
    if whole["targets"]:
        text += _table(("target", "where", "value", "bound", "answer"), [
            (one["target"], one["where"], "-" if one["value"] is None else f"{one['value']:.3g}", f"{one['bound']:g}",
             one["answer"]) for one in whole["targets"]], left=(0, 1, 4))
        count = {answer: sum(one["answer"] == answer for one in whole["targets"]) for answer in (MET, MISSED, UNKNOWN)}
        text += [", ".join(f"{n} {answer}" for answer, n in count.items()) + ".", ""]
    return "\n".join(text)


def cell(key: str, value: Any) -> str:
    if value is None or value == "":
        return "-" if key != "note" else ""
    if key == "budget_bytes":
        return size(value)
    if key in ("hit_rate", "error", "attended_fraction", "overhead_fraction"):
        return f"{100 * value:.1f}"
    if key == "link_bytes_per_step":
        return f"{value / (1 << 20):.2f}"
    if key == "vram_peak_bytes":
        return f"{value / (1 << 30):.2f}"
    if key == "prefill_tps":
        return f"{value:.0f}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int]) -> list[str]:
    text = ["| " + " | ".join(titles) + " |", "|" + "|".join("---" if i in left else "---:" for i in range(len(titles))) + "|"]
    text += ["| " + " | ".join(str(value).replace("|", "\\|").replace("\n", " ") for value in row) + " |" for row in rows]
    return [*text, ""]


def _replace(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)
