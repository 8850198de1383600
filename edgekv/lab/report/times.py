"""The parts of a report that show rows of `edgekv bench kv`: times of decode steps and of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgekv.errors import ConfigError
from edgekv.lab.report import charts, drawing
from edgekv.lab.report.charts import Line, Panel
from edgekv.lab.report.sections import (
    DEPTH,
    LIMIT,
    MODE_COLOURS,
    MODE_NAMES,
    Row,
    Section,
    divergence,
    number,
    of_threads,
    percent,
    runs_of,
    where,
)
from edgekv.vocab import STOCK_KERNELS


def decode_time(rows: Sequence[Row]) -> Section:
    """The section of rows of `edgekv bench kv`. Each run stands by itself, since times of two runs do not compare."""
    section = Section("decode", "Time of a decode step")
    runs = runs_of(rows, "decode_ms_p50")
    if not runs:
        section.missing = "rows of edgekv bench kv -o json"
        return section
    section.text = ("Medians in ms per token, measured in turns. Stock llama.cpp is measured with flash attention and without; off is the "
                    "faster of the two, and what every ratio is to. The limit is a step with an empty cache, on as many threads: what the "
                    "weights alone cost.")
    section.text += _not_measured(rows, "decode_ms_p50")
    for run in runs:
        if panels := _by_depth(run, "decode_ms_p50", "ms per token"):
            section.curves(panels, DEPTH, where(run), percent_x=False)
        section.table(_TIME_COLUMNS, [_time_line(row) for row in run], f"Medians, and what they are compared with. {where(run)}")
    return section


def speed_picture(rows: Sequence[Row], path: Path) -> None:
    """Write the plot of ms per token against depth, of the first run of `edgekv bench kv` that has two depths, as SVG or PNG. Raises
    ConfigError where there is none, or where `path` cannot be written."""
    for run in runs_of(rows, "decode_ms_p50"):
        if panels := _by_depth(run, "decode_ms_p50", "ms per token"):
            drawing.save(charts.line_chart(panels, DEPTH, percent_x=False), path)
            return
    raise ConfigError("the plot needs rows of two depths; measure with `edgekv bench kv -d 512,7680 -o json`")


def _by_depth(run: Sequence[Row], figure: str, y_label: str) -> list[Panel]:
    """One for each text, cache types and threads that were measured at more than one depth."""
    panels: dict[tuple, dict[str, dict[int, float]]] = {}
    for row in run:
        if row.get("mode") not in STOCK_KERNELS:  # off is the faster of them
            modes = panels.setdefault(tuple(row.get(name) for name in ("text", "type_k", "type_v", "threads")), {})
            modes.setdefault(str(row.get("mode")), {})[row["depth"]] = row[figure]
            if row.get("limit_ms_p50") is not None:
                modes.setdefault(LIMIT, {}).setdefault(row["depth"], row["limit_ms_p50"])
    several = len({key[1:3] for key in panels}) > 1
    return [Panel(", ".join((str(key[0]), of_threads(key[3]), *((f"{key[1]}/{key[2]}",) if several else ()))),
                  [Line(MODE_NAMES.get(mode, mode), sorted(points), [points[depth] for depth in sorted(points)],
                        colour=MODE_COLOURS.get(mode), ceiling=mode == LIMIT) for mode, points in modes.items() if len(points) > 1], y_label, "from zero")
            for key, modes in panels.items() if all(len(points) > 1 for mode, points in modes.items() if mode != LIMIT)]


def prompt_time(rows: Sequence[Row]) -> Section:
    """The section of rows of `edgekv bench kv --prefill`, by run."""
    section = Section("prompts", "Time of prompts")
    runs = runs_of(rows, "ms_p50")
    if not runs:
        section.missing = "rows of edgekv bench kv --prefill -o json"
        return section
    section.text = ("Medians, measured in turns: a chunk of a prompt behind each depth, and whole prompts from an empty cache. Attention is "
                    "what the chunk takes longer than in an empty cache; a pair is one query, key and query head. Ratios are to off, the "
                    "faster of stock llama.cpp with flash attention and without.")
    section.text += _not_measured(rows, "ms_p50")
    for run in runs:
        if panels := _by_depth([row for row in run if row.get("kind") == "prefill"], "tokens_per_second", "tokens/s"):
            section.curves(panels, "tokens before the chunk", where(run), percent_x=False)
        section.table(_PROMPT_COLUMNS, [_prompt_line(row) for row in run], f"Medians, and what they are compared with. {where(run)}")
    return section


def _not_measured(rows: Sequence[Row], figure: str) -> str:
    missing = dict.fromkeys(f"{row.get('mode')}: {row['note']}" for row in rows
                            if row.get("mode") in STOCK_KERNELS and row.get(figure) is None and row.get("note"))
    return f" Not measured: {'; '.join(missing)}." if missing else ""


_TIME_COLUMNS = ("mode", "text", "depth", "threads", "K/V", "ms/token", "x stock", "best stock", "limit ms", "x limit", "KLD exact")


def _time_line(row: Row) -> tuple[str, ...]:
    return (str(row.get("mode")), str(row.get("text")), number(row.get("depth"), ",d"), number(row.get("threads"), "d"),
            f"{row.get('type_k')}/{row.get('type_v')}", number(row["decode_ms_p50"], ".2f"), number(row.get("ratio_vs_stock"), ".2f"),
            str(row.get("stock") or "–"), number(row.get("limit_ms_p50"), ".2f"), number(row.get("ratio_vs_limit"), ".2f"),
            divergence(row.get("kld_exact")))


_PROMPT_COLUMNS = ("mode", "text", "tokens", "behind", "threads", "K/V", "tokens/s", "x stock", "best stock", "attention %", "ns/pair")


def _prompt_line(row: Row) -> tuple[str, ...]:
    return (str(row.get("mode")), str(row.get("text")), number(row.get("n_tokens"), ",d"), number(row.get("depth"), ",d"),
            number(row.get("threads"), "d"), f"{row.get('type_k')}/{row.get('type_v')}", number(row.get("tokens_per_second"), ",.0f"),
            number(row.get("ratio_vs_stock"), ".2f"), str(row.get("stock") or "–"), percent(row.get("attention_fraction"), 0),
            number(row.get("pair_ns"), ".2f"))
