"""Makes one self-contained HTML page of a folder of results."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekv import __version__
from edgekv.common.errors import ConfigError
from edgekv.lab.report.drawing import FORMATS, VARIABLES, require, save, svg
from edgekv.lab.report.inputs import WANTED, Cache, Folder, read
from edgekv.lab.report.machines import machine, planned
from edgekv.lab.report.sections import Section
from edgekv.lab.report.servers import clients
from edgekv.lab.report.simulated import budget_curves, head_roles, hits_by_head, reads
from edgekv.lab.report.speeds import answers, hits, memory, prompts, speed_picture
from edgekv.lab.report.studies import ladder, quality, retention
from edgekv.lab.report.study import STEPS, Study

Progress = Callable[[str, int, int], None]

PAGE_FILE = "report.html"
_TEMPLATE = Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class Written:
    path: Path
    missing: list[Section]
    """Parts that were left out."""


@dataclass(frozen=True)
class ReportRequest:
    """Requested files besides the page."""

    speed: Path | None = None
    """A file for the plot of ms per token against depth."""
    plots: Path | None = None
    """A folder for every picture, as SVG and PNG."""
    plan: dict[str, Any] | None = None
    """A document of `edgekv plan --json`, beside those in the folder."""


def write(
    folder: Path, out: Path | None = None, progress: Progress = lambda what, done, total: None, n_steps: int = STEPS,
    request: ReportRequest = ReportRequest(),
) -> Written:
    """Write the page of `folder` to `out`, or to `PAGE_FILE` in the folder, and the requested files. Simulates the first `n_steps` steps of
    each trace. Raises ConfigError if nothing can be shown, a file is broken, or the page or a plot cannot be written, and
    MissingLibrary if an extra is not installed."""
    require("matplotlib", "jinja2")
    found = read(folder)
    if request.plan is not None:
        found.add(request.plan)
    if found.empty:
        raise ConfigError(f"there is nothing to report on in {folder}; it should hold {WANTED}")
    out = folder / PAGE_FILE if out is None else out
    _check(out)
    if request.plots is not None:
        _make(request.plots)
    if request.speed is not None:
        speed_picture(found.speeds, request.speed)
    cache = Cache(folder)
    studies = []
    for i, (text, path) in enumerate(found.traces.items()):
        progress(f"read {path.name}", i, len(found.traces))
        studies.append(Study(text, path, cache, progress, n_steps))
    sections = all_sections(found, studies)
    cache.write()
    if request.plots is not None:
        for picture in (picture for section in sections for picture in section.pictures):
            for ending in FORMATS:
                save(picture.figure, request.plots / f"{picture.name}{ending}")
    try:
        out.write_text(render(found, sections), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}; choose another file with -o") from None
    return Written(out, [section for section in sections if section.missing])


def all_sections(folder: Folder, studies: list[Study]) -> list[Section]:
    """All sections in the page's order. Sections about single heads or steps show the first trace."""
    first = studies[0] if studies else None
    plan = folder.plans[-1] if folder.plans else None
    return [
        machine(folder.rows), planned(folder.plans), answers(folder.speeds, plan), prompts(folder.speeds, plan),
        quality(folder.ladder, folder.quality), retention(folder.quality), hits(folder.speeds),
        memory(folder.speeds), clients(folder.serves), ladder(folder.ladder),
        budget_curves(studies, folder.sims), hits_by_head(first), reads(first), head_roles(first, first.profile() if first else None),
    ]


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the plots cannot be written to {folder}: {error.strerror}; name another folder") from None


def _check(out: Path) -> None:
    """Raise ConfigError if the page cannot be written, before minutes of simulation."""
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
    """The page as HTML: every name and figure is escaped, pictures are inline SVG."""
    from jinja2 import Environment
    from markupsafe import Markup

    def drawn(section: Section) -> list[dict[str, Any]]:
        return [{"svg": Markup(svg(picture.figure, picture.name, picture.title)), "caption": picture.caption} for picture in section.pictures]

    models = ", ".join(dict.fromkeys(str(row["model"]).removesuffix(".gguf") for row in (*folder.rows, *folder.plans) if row.get("model")))
    environment = Environment(autoescape=True, trim_blocks=True)
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        title=f"EdgeKV{f': {models}' if models else ''}",
        subtitle=f"Made by EdgeKV {__version__} from {', '.join(_sources(folder))}",
        shown=[(section, drawn(section)) for section in sections if not section.missing],
        missing=[section for section in sections if section.missing],
        ignored=folder.ignored, variables=VARIABLES)


def _sources(folder: Folder) -> list[str]:
    counts = ((folder.plans, "plans"), (folder.speeds, "rows of speeds"),
              (folder.ladder, "rungs"), (folder.sims, "simulated rows"), (folder.quality, "quality rows"), (folder.serves, "rows of servers"),
              (folder.traces, "traces"))
    return [f"{what}: {len(of)}" for of, what in counts if of]
