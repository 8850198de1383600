"""Makes one self-contained HTML page of a folder of results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgekv import __version__
from edgekv.bench.environment import in_words
from edgekv.common.errors import ConfigError
from edgekv.lab.report.drawing import FORMATS, VARIABLES, require, save, style, svg
from edgekv.lab.report.inputs import WANTED, Folder, read
from edgekv.lab.report.sections import Section
from edgekv.lab.report.speeds import answers_or_prompts, clients, hits, memory, planned, speed_picture
from edgekv.lab.report.studies import budgets, ladder, quality, retention

PAGE_FILE = "report.html"
_TEMPLATE = Path(__file__).with_name("page.html")


def write(
    folder: Path, columns: Mapping[str, Sequence[Any]], out: Path | None = None, *, speed: Path | None = None, plots: Path | None = None,
    plan: dict[str, Any] | None = None,
) -> tuple[Path, list[Section]]:
    """Write the page of `folder` to `out`, or to `PAGE_FILE` in the folder: its path, and the parts that were left out. Raises ConfigError if
    nothing can be shown, a file is broken, or the page or a plot cannot be written, and MissingLibrary if an extra is not installed.

    columns: of the commands whose rows are shown: serve, ladder, sim, task. speed: a file for the plot of ms per token against depth. plots: a
    folder for every picture, as SVG and PNG. plan: a document of `edgekv plan --json`, beside those in the folder."""
    require("matplotlib", "jinja2")
    found = read(folder)
    if plan is not None:
        found.add([plan], "the plan")
    if not found.all_rows:
        raise ConfigError(f"there is nothing to report on in {folder}; it should hold {WANTED}")
    out = folder / PAGE_FILE if out is None else out
    with style():
        if speed is not None:
            speed_picture(found.rows["bench"], speed)
        sections = all_sections(found, columns)
        try:
            if plots is not None:
                plots.mkdir(parents=True, exist_ok=True)
                for picture in (picture for section in sections for picture in section.pictures):
                    for ending in FORMATS:
                        save(picture.figure, plots / f"{picture.name}{ending}")
            out.write_text(render(found, sections), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be written: {error.strerror}; choose another file with -o, another folder with --plots") from None
    return out, [section for section in sections if section.missing]


def all_sections(folder: Folder, columns: Mapping[str, Sequence[Any]]) -> list[Section]:
    """All sections in the page's order, what it says first first."""
    of = folder.rows
    plan = of["plan"][-1] if of["plan"] else None
    return [
        answers_or_prompts(of["bench"], plan, prompts=False), quality(of["text"]), answers_or_prompts(of["bench"], plan, prompts=True),
        retention(of["task"], columns["task"]), hits(of["bench"]), memory(of["bench"]), clients(of["serve"], columns["serve"]),
        planned(of["plan"]), ladder(of["ladder"], columns["ladder"]), budgets(of["sim"], columns["sim"]),
    ]


def render(folder: Folder, sections: list[Section]) -> str:
    """The page as HTML: every name and figure is escaped, pictures are inline SVG. It begins with what the sections conclude and the first picture."""
    from jinja2 import Environment
    from markupsafe import Markup

    shown = [section for section in sections if not section.missing]
    drawn = {picture.name: Markup(svg(picture.figure, picture.name)) for section in shown for picture in section.pictures}
    models = ", ".join(dict.fromkeys(str(row["model"]).removesuffix(".gguf") for row in folder.all_rows if row.get("model")))
    template = Environment(autoescape=True, trim_blocks=True).from_string(_TEMPLATE.read_text(encoding="utf-8"))
    machines = dict.fromkeys(in_words(row["environment"]) for row in folder.all_rows if isinstance(row.get("environment"), dict))
    return template.render(
        title=f"EdgeKV{f': {models}' if models else ''}", version=__version__, machines=machines, shown=shown, drawn=drawn, first=next(iter(drawn), None),
        sources={kind: len(rows) for kind, rows in folder.rows.items() if rows},
        missing=[section for section in sections if section.missing], ignored=folder.ignored, variables=VARIABLES)
