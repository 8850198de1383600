"""The parts of a report about the measuring machine and the plan."""

from collections.abc import Sequence
from typing import Any

from edgekv.common.units import size
from edgekv.lab.report.charts import Line, Panel
from edgekv.lab.report.sections import DEPTH, MODE_COLOURS, MODE_NAMES, Row, Section, Table, number

_FACTS = (
    ("processor", "cpu_name", "{}"), ("family", "cpu", "{}"), ("cores", "cores", "{}"), ("instruction set", "isa", "{}"),
    ("memory", "ram_bytes", "size"), ("memory rate, measured", "memory_gb_s", "{:.1f} GB/s"), ("GPU", "gpu", "{}"), ("driver", "driver", "{}"),
    ("link", "link", "{} GB/s"), ("EdgeKV", "version", "{}"), ("commit", "commit", "{}"), ("llama.cpp", "llama_cpp", "{}"), ("Python", "python", "{}"),
    ("measured on", "date", "{}"),
)
"""Title, key of the row, form."""


def machine(rows: Sequence[Row]) -> Section:
    """The section with a column for each machine that measured rows."""
    section = Section("machine", "Where this was measured")
    facts: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        if row.get("cpu"):
            of = facts.setdefault(str(row["cpu"]), {})
            for _, key, form in _FACTS:
                if row.get(key) not in (None, ""):
                    said = _written(row[key], form)
                    if said not in of.setdefault(key, []):
                        of[key].append(said)
    if not facts:
        section.missing = "rows of a measurement, which name their machine"
        return section
    names = list(facts)
    section.text = "Figures mean something only beside the machine and the day they come from. Those of two machines are never set in one ratio here."
    section.tables.append(Table.without_empty(("", *(f"machine {i + 1}" if len(names) > 1 else "" for i in range(len(names)))), [
        (title, *(", ".join(facts[name].get(key, ())) or "–" for name in names)) for title, key, _ in _FACTS
        if any(facts[name].get(key) for name in names)], words=True))
    return section


def _written(value: Any, form: str) -> str:
    if form == "size":
        return size(int(value))
    return form.format(value) if isinstance(value, (int, float)) or form == "{}" else str(value)


def planned(plans: Sequence[Row]) -> Section:
    """The section of documents of `edgekv plan --json`."""
    section = Section("plan", "The plan")
    if not plans:
        section.missing = "the document of edgekv plan --json, or the option --model"
        return section
    for plan in plans:
        free = plan.get("free") or {}
        about = f"{plan.get('model')}: {number(plan.get('n_ctx'), ',d')} tokens, mode {plan.get('mode')}"
        section.text += (f"{about}. {_sentence(plan.get('sentence'))} Recommended is {_mode(str(plan.get('recommended')))}: {plan.get('why')}. "
                         f"Flags: {' '.join(map(str, plan.get('flags') or ()))}. ")
        if plan.get("problem"):
            section.text += f"It does not fit: {plan['problem']} "
        if lines := _speed_panels(plan):
            section.curves(lines, DEPTH, f"By estimate, from this model's header and the measured rates of the machine: {about}",
                           percent_x=False)
        section.tables.append(Table.without_empty(("what", "where", "bytes", "how it is known", "note"), [
            *((str(part.get("name")), str(part.get("place")), size(int(part.get("bytes") or 0)), str(part.get("how")), str(part.get("note") or "–"))
              for part in plan.get("parts") or ()),
            *(("all", place, size(int(n)), "–", f"of {size(int(free.get(place) or 0))} free") for place, n in (plan.get("total") or {}).items() if n)],
            f"Memory, {about}"))
        section.tables.append(Table.without_empty(("mode", "context that fits, tokens", "5 tokens/s up to, tokens"), [
            (_mode(str(limit.get("mode"))), number(limit.get("fits_tokens"), ",d"), number(limit.get("readable_tokens"), ",d"))
            for limit in plan.get("limits") or ()], f"Limits, {about}"))
    return section


def _sentence(text: Any) -> str:
    said = str(text or "")
    return f"{said[:1].upper()}{said[1:].rstrip('.')}." if said else ""


def _mode(name: str) -> str:
    return MODE_NAMES.get(name, name)


def _speed_panels(plan: Row) -> list[Panel]:
    panels = []
    for title, figure in (("answers", "decode"), ("prompts", "prompt")):
        lines: dict[str, list[tuple[int, float]]] = {}
        for speed in plan.get("speeds") or ():
            if speed.get(figure):
                lines.setdefault(str(speed["mode"]), []).append((speed["depth"], speed[figure]))
        if lines and all(len(points) > 1 for points in lines.values()):
            panels.append(Panel(title, [Line(_mode(name), [depth for depth, _ in sorted(points)], [rate for _, rate in sorted(points)],
                                             colour=MODE_COLOURS.get(name)) for name, points in lines.items()], "tokens/s", "log"))
    return panels
