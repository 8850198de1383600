"""A folder of results as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgekv import __version__
from edgekv.errors import ConfigError
from edgekv.lab.report.drawing import VARIABLES, require
from edgekv.lab.report.folder import Cache, Folder, read
from edgekv.lab.report.results import decode_time, ladder, prompt_time, quality, retention, speed_picture
from edgekv.lab.report.sections import Section
from edgekv.lab.report.simulated import budget_curves, head_roles, hits_by_head, popularity, reads
from edgekv.lab.report.study import STEPS, Study

Progress = Callable[[str, int, int], None]

PAGE_FILE = "report.html"
_TEMPLATE = Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class Written:
    path: Path
    missing: list[Section]
    """Parts that were left out."""


def write(
    folder: Path, out: Path | None = None, progress: Progress = lambda what, done, total: None, n_steps: int = STEPS,
    speed: Path | None = None,
) -> Written:
    """Write the page of what is in `folder` to `out`, or to `PAGE_FILE` in it, and the plot of its speed to `speed`. Simulates what the
    traces are needed for, the first `n_steps` steps of each. Raises ConfigError where there is nothing to show, a file is broken, or the
    page or the plot cannot be written, MissingLibrary where an extra is not installed."""
    require("matplotlib", "jinja2")
    found = read(folder)
    out = folder / PAGE_FILE if out is None else out
    _check(out)
    if speed is not None:
        speed_picture(found.times, speed)
    cache = Cache(folder)
    studies = []
    for i, (text, path) in enumerate(found.traces.items()):
        progress(f"read {path.name}", i, len(found.traces))
        studies.append(Study(text, path, cache, progress, n_steps))
    sections = all_sections(found, studies)
    cache.write()
    try:
        out.write_text(render(found, sections), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}; choose another file with -o") from None
    return Written(out, [section for section in sections if section.missing])


def all_sections(folder: Folder, studies: list[Study]) -> list[Section]:
    """In the order of the page. What shows single heads or steps is of the first trace."""
    first = studies[0] if studies else None
    profile = first.profile() if first else None
    return [
        decode_time(folder.times), prompt_time(folder.prompts), ladder(folder.ladder), budget_curves(studies, folder.sims),
        hits_by_head(first), popularity(first, profile), reads(first), quality(folder.ladder, folder.quality), retention(folder.quality),
        head_roles(first, profile),
    ]


def _check(out: Path) -> None:
    """Before minutes of simulation."""
    if out.is_dir():
        raise ConfigError(f"{out} is a folder; name a file for the page")
    try:
        with out.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}; choose another file with -o") from None
    if out.stat().st_size == 0:
        out.unlink()


def render(folder: Folder, sections: list[Section]) -> str:
    """HTML; every name and figure in it is escaped, pictures are inline SVG."""
    from jinja2 import Environment
    from markupsafe import Markup

    for section in sections:
        section.pictures = [(Markup(picture), caption) for picture, caption in section.pictures]
    models = ", ".join(dict.fromkeys(str(row["model"]) for row in folder.rows if row.get("model")))
    environment = Environment(autoescape=True, trim_blocks=True)
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        title=f"What each policy keeps{f': {models}' if models else ''}",
        subtitle=f"EdgeKV {__version__}, from {', '.join(_sources(folder))}",
        shown=[section for section in sections if not section.missing],
        missing=[section for section in sections if section.missing],
        ignored=folder.ignored, variables=VARIABLES)


def _sources(folder: Folder) -> list[str]:
    counts = ((len(folder.times) + len(folder.prompts), "rows of times"), (len(folder.ladder), "rungs"), (len(folder.sims), "simulated rows"),
              (len(folder.quality), "quality rows"), (len(folder.traces), "traces"))
    return [f"{n} {what}" for n, what in counts if n]
