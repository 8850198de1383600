"""The part of a report about servers under several clients."""

from collections.abc import Sequence

from edgekv.lab.report.charts import Line, Panel
from edgekv.lab.report.drawing import PURPLE, RED, VIOLET
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


