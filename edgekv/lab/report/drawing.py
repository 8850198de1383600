"""The style of every picture, and its output into a page or a file. A style sheet inside each picture makes it dark in a dark browser.
matplotlib is the laboratory's own dependency: it is imported when the first picture is drawn."""

from __future__ import annotations

import importlib.util
import io
import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekv.common.errors import EXIT_LIBRARY, ConfigError, EdgeKVError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#1b1f24", "#5b6470", "#d5dae0", "#ffffff"
BLUE, RED, GREEN, ORANGE, PURPLE, VIOLET = "#0072b2", "#c25400", "#00805d", "#8f6200", "#b0518a", "#5b3fb5"
SERIES = (BLUE, RED, GREEN, PURPLE, VIOLET, ORANGE)
"""Colours of lines, bars and their names, distinct for any colour vision: after Okabe and Ito, darkened until names are legible on white."""

VARIABLES = {
    "ink": (INK, "#e8eaed"), "muted": (MUTED, "#a3abb5"), "grid": (GRID, "#3a4048"), "paper": (PAPER, "#16191d"),
    "blue": (BLUE, "#5ab4f0"), "red": (RED, "#ff8f4a"), "green": (GREEN, "#2fc79b"), "orange": (ORANGE, "#f0b840"),
    "purple": (PURPLE, "#e08abb"), "violet": (VIOLET, "#b3a1ff"),
}
"""For each CSS variable of the page its light and its dark colour; pictures are drawn with the light ones."""

FORMATS = (".png", ".svg")
WIDTH = 9.0
"""Inches of a picture across the page; the page scales it down on narrow screens."""


class MissingLibrary(EdgeKVError):
    """A Python library of an extra is not installed."""

    exit_code = EXIT_LIBRARY


def require(*libraries: str) -> None:
    """Check that libraries of an extra are installed. Raises MissingLibrary."""
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            raise MissingLibrary(f"pictures and reports need {library}, which is not installed; pip install ./edgekv/lab")


def style(**changes: Any) -> AbstractContextManager[Any]:
    """What is drawn and written within it has the style of all pictures."""
    import matplotlib

    settings: Any = {**_STYLE, **changes}
    return matplotlib.rc_context(settings)


_STYLE: dict[str, Any] = {
    "font.family": "sans-serif", "font.size": 10,
    "axes.titlesize": 10.5, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.labelsize": 10, "xtick.labelsize": 9, "ytick.labelsize": 9, "legend.fontsize": 9, "legend.frameon": False,
    "text.color": INK, "axes.labelcolor": MUTED, "axes.titlecolor": INK, "xtick.color": MUTED, "ytick.color": MUTED,
    "axes.edgecolor": MUTED, "axes.linewidth": 0.8, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": False,
    "grid.color": GRID, "grid.linewidth": 0.7, "axes.axisbelow": True, "lines.linewidth": 1.8, "lines.markersize": 4.5,
    "figure.facecolor": PAPER, "axes.facecolor": "none", "savefig.facecolor": PAPER, "svg.fonttype": "none",
    "text.parse_math": False,  # a $ in a name is a $
}


def canvas(height: float, n_rows: int = 1, n_columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure of that many inches and its axes, row by row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(n_rows, n_columns, squeeze=False).flat)


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a file. Raises ConfigError if that fails."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"the picture is {path.name}; its name must end in {' or '.join(FORMATS)}")
    if path.is_dir() or not path.parent.is_dir():
        why = "that is a folder" if path.is_dir() else "there is no such folder"
        raise ConfigError(f"the picture {path} cannot be written: {why}")
    try:
        if path.suffix.lower() == ".svg":
            path.write_text(f'<?xml version="1.0" encoding="utf-8"?>\n{svg(figure, path.stem)}', encoding="utf-8")
        else:
            with style():
                figure.savefig(path, dpi=144)
    except OSError as error:
        raise ConfigError(f"the picture {path} cannot be written: {error.strerror}") from None


def svg(figure: Figure, name: str) -> str:
    """An <svg> element, for a page or a file: light in every program, and dark in a browser set to dark. It uses no CSS variables, which many
    programs do not know. `name` keeps ids of several pictures apart."""
    buffer = io.StringIO()
    with style(**{"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.S)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
    rules = "".join(f'[style*="{what}: {light}"]{{{what}:{dark}!important}}' for light, dark in VARIABLES.values() for what in ("fill", "stroke"))
    return text.replace(">", f"><style>@media screen and (prefers-color-scheme: dark){{{rules}}}</style>", 1)
