"""The parts of a report about servers: under several clients, and over time."""

from collections.abc import Mapping, Sequence
from typing import Any

from edgekv.common.units import MIB
from edgekv.lab.report.charts import Line, Panel
from edgekv.lab.report.drawing import BLUE, GREEN, ORANGE, PURPLE, RED, VIOLET
from edgekv.lab.report.sections import MODE_COLOURS, Row, Section, Table, number, runs_of, where

_COLOURS = {**MODE_COLOURS, "off-flash": RED, "off-noflash": PURPLE, "endpoint": VIOLET}


def clients(rows: Sequence[Row]) -> Section:
    """The section of rows of `edgekv bench serve`: throughput and waiting times against the number of clients."""
    section = Section("serve", "Servers under several clients")
    runs = runs_of(rows, "tokens_per_second")
    if not runs:
        section.missing = "rows of edgekv bench serve -o json"
        return section
    section.text = ("Servers are asked in turns. Read: prompts that they have never seen; decode: the same prompts again, which they hold. Throughput "
                    "is of all clients together, while all of them answer. The gap is the time between two tokens of an answer.")
    for run in runs:
        panels = [panel for panel in (_panel(run, "decode", "tokens_per_second", "all answers together", "tokens/s"),
                                      _panel(run, "read", "ttft_p50_s", "first token of a new prompt", "s, the median client")) if panel]
        if panels:
            section.curves(panels, "clients at the same time", where(run), percent_x=False)
        order = sorted(run, key=lambda row: (row["clients"], row.get("n_prompt") or 0, str(row.get("part")) == "decode"))
        section.tables.append(Table.without_empty(_COLUMNS, [_line(row) for row in order], f"{_answers(run)}. {where(run)}"))
    return section


def _answers(run: Sequence[Row]) -> str:
    lengths = dict.fromkeys(number(row.get("n_answer"), ",d") for row in run)
    return f"Medians of the turns; answers of {', '.join(lengths)} tokens"


def _panel(run: Sequence[Row], part: str, figure: str, title: str, y_label: str) -> Panel | None:
    """A panel of one figure; None if only one number of clients was measured."""
    lines: dict[str, dict[int, float]] = {}
    for row in run:
        if row.get("part") == part and row.get(figure) is not None:
            lines.setdefault(str(row["server"]), {})[row["clients"]] = row[figure]
    lines = {name: by for name, by in lines.items() if len(by) > 1}
    return Panel(title, [Line(name, sorted(by), [by[n] for n in sorted(by)], colour=_COLOURS.get(name)) for name, by in lines.items()],
                 y_label, "from zero") if lines else None


_COLUMNS = ("server", "part", "clients", "prompt", "all after s", "x stock", "tokens/s", "speed x stock", "first token s", "latest s", "gap ms",
            "gap p99 ms", "worst gap ms")


def _line(row: Row) -> tuple[str, ...]:
    return (str(row.get("server")), str(row.get("part")), number(row.get("clients"), "d"), number(row.get("n_prompt"), ",d"),
            number(row.get("seconds"), ",.1f"), number(row.get("seconds_vs_stock"), ".2f"),
            number(row.get("tokens_per_second"), ",.1f"), number(row.get("speed_vs_stock"), ".2f"), number(row.get("ttft_p50_s"), ",.2f"),
            number(row.get("ttft_max_s"), ",.2f"), number(row.get("gap_p50_ms"), ",.0f"), number(row.get("gap_p99_ms"), ",.0f"),
            number(row.get("gap_max_ms"), ",.0f"))


def over_time(histories: Sequence[Mapping[str, Any]]) -> Section:
    """The section of documents of a server's /edgekv/history: lists by figure."""
    section = Section("history", "A server over time")
    shown = [history for history in histories if len(history.get("at") or ()) > 1]
    if not shown:
        section.missing = "the document /edgekv/history of a server"
        return section
    section.text = ("What a server says of its last minutes of decoding: the speed of prompts and answers together, what mode sparse read and found in "
                    "the arena, and what was copied there.")
    for history in shown:
        seconds = [at - history["at"][0] for at in history["at"]]
        panels = [panel for panel in (
            _over(seconds, history, "speed", "tokens/s", "from zero", {"tokens_per_second": ("speed", BLUE)}, 1),
            _over(seconds, history, "hits and reads", "share", "percent from zero", {
                "hit_rate": ("hits, by row", BLUE), "hit_rate_mass": ("hits, by mass", GREEN), "read": ("read", RED)}, 1),
            _over(seconds, history, "error of a head's output", "estimated", "percent from zero", {"error": ("error", ORANGE)}, 1),
            _over(seconds, history, "copied into the arena", "MiB/s", "from zero", {"moved_per_second": ("copied", GREEN)}, MIB)) if panel]
        section.curves(panels, "seconds", f"{len(seconds)} points of {seconds[-1]:,.0f} seconds.", percent_x=False, height=2.9)
    return section


def _over(
    seconds: Sequence[float], values: Mapping[str, Any], title: str, y_label: str, scale: str, figures: Mapping[str, tuple[str, str]], unit: float
) -> Panel | None:
    """A panel; None without values at two times."""
    lines = []
    for key, (name, colour) in figures.items():
        known = [(second, value / unit) for second, value in zip(seconds, values.get(key) or ()) if value is not None]
        if len(known) > 1:
            lines.append(Line(name, [second for second, _ in known], [value for _, value in known], colour=colour))
    return Panel(title, lines, y_label, scale) if lines else None


def memory_over_time(states: Sequence[Mapping[str, Any]]) -> Section:
    """The section of documents of a server's /edgekv/state, each of one moment: bytes by tier."""
    section = Section("tiers", "Memory over time")
    known = sorted((state for state in states if state.get("taken") is not None), key=lambda state: state["taken"])
    if not known:
        section.missing = "documents /edgekv/state of a server, one a line in a .jsonl file"
        return section
    first, last = known[0], known[-1]
    seconds = [state["taken"] - first["taken"] for state in known]
    used: dict[str, list[float | None]] = {}
    for i, state in enumerate(known):
        for tier in state["tiers"]:
            used.setdefault(str(tier["tier"]), [None] * len(known))[i] = tier.get("used_bytes")
    lines = [Line(name, [second for second, n in zip(seconds, values) if n is not None], [n / MIB for n in values if n is not None])
             for name, values in used.items() if sum(n is not None for n in values) > 1]
    if lines and seconds[-1] > 0:
        section.curves([Panel("in use, by tier", lines, "MiB", "from zero")], "seconds", f"{len(known)} moments of {last.get('model')}, mode "
                       f"{last.get('mode')}.", percent_x=False)
    section.text = ("Bytes that hold something, of a server, by tier. Home has all K and V; the arena has copies of hot pages, and what is allocated "
                    "for it does not change.")
    section.table(("tier", "allocated MiB", "in use MiB, first", "in use MiB, last"), [
        (str(tier["tier"]), number(tier["bytes"] / MIB, ",.1f"), *(number(None if n is None else n / MIB, ",.1f") for n in
                                                                   (used[str(tier["tier"])][0], used[str(tier["tier"])][-1])))
        for tier in last["tiers"]], f"{last.get('model')}, mode {last.get('mode')}")
    return section
