"""The style of every picture, and its output into a page or a file.

Colours of an SVG inside a page are CSS variables, so that one picture serves light and dark themes; a separate file is drawn on white.
matplotlib is an extra: it is imported when the first picture is drawn.
"""

from __future__ import annotations

import html
import importlib.util
import io
import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edgekv.common.errors import EXIT_LIBRARY, ConfigError, EdgeKVError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

F = TypeVar("F", bound=Callable[..., Any])

INK, MUTED, GRID, PAPER = "#1b1f24", "#5b6470", "#d5dae0", "#ffffff"
BLUE, RED, GREEN, ORANGE, PURPLE, VIOLET = "#0072b2", "#c25400", "#00805d", "#8f6200", "#b0518a", "#5b3fb5"
SERIES = (BLUE, RED, GREEN, PURPLE, VIOLET, ORANGE)
"""Colours of lines, bars and their names, distinct for any colour vision: after Okabe and Ito, darkened until names are legible on white."""

VARIABLES = {
    "ink": (INK, "#e8eaed"), "muted": (MUTED, "#a3abb5"), "grid": (GRID, "#3a4048"), "paper": (PAPER, "#16191d"),
    "blue": (BLUE, "#5ab4f0"), "red": (RED, "#ff8f4a"), "green": (GREEN, "#2fc79b"), "orange": (ORANGE, "#f0b840"),
    "purple": (PURPLE, "#e08abb"), "violet": (VIOLET, "#b3a1ff"),
}
"""For each CSS variable its light and its dark colour; pictures are drawn with the light ones."""

MAP_COLOURS = "viridis"
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


def check_picture(path: Path) -> None:
    """Check a picture's path before computing it. Raises ConfigError if a picture cannot be written there, MissingLibrary."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"the picture is {path.name}; its name must end in {' or '.join(FORMATS)}")
    if path.is_dir() or not path.parent.is_dir():
        why = "that is a folder" if path.is_dir() else "there is no such folder"
        raise ConfigError(f"the picture {path} cannot be written: {why}")
    require("matplotlib")


def drawn(function: F) -> F:
    """Make a drawing function use the style of all pictures, and restore the earlier style afterwards."""

    @wraps(function)
    def draw(*args: Any, **kwargs: Any) -> Any:
        require("matplotlib")
        import matplotlib

        with matplotlib.rc_context(_STYLE):
            return function(*args, **kwargs)

    return draw  # type: ignore[return-value]  # it takes the arguments of `function`


_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif", "font.size": 10,
    "axes.titlesize": 10.5, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.labelsize": 10, "xtick.labelsize": 9, "ytick.labelsize": 9, "legend.fontsize": 9, "legend.frameon": False,
    "text.color": INK, "axes.labelcolor": MUTED, "axes.titlecolor": INK, "xtick.color": MUTED, "ytick.color": MUTED,
    "axes.edgecolor": MUTED, "axes.linewidth": 0.8, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": False,
    "grid.color": GRID, "grid.linewidth": 0.7, "axes.axisbelow": True, "lines.linewidth": 1.8, "lines.markersize": 4.5,
    "figure.facecolor": PAPER, "axes.facecolor": "none", "savefig.facecolor": PAPER, "svg.fonttype": "none",
    "text.parse_math": False,  # a $ in a name is a $
}


def canvas(width: float, height: float, n_rows: int = 1, n_columns: int = 1, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure of that many inches and its axes, row by row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(n_rows, n_columns, squeeze=False, **options)
    return figure, list(axes.flat)


def percent_axis(axis: Any, digits: int = 6) -> None:
    """Label shares as percent, with no more digits than needed."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda share, _: f"{round(100 * share, digits):g} %"))


def plain_axis(axis: Any, most: int) -> None:
    """Label with numbers such as 16,384 and 0.25, at most `most` of them."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 4, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{round(value, 6):,.7g}"))


def plain_log_axis(axis: Any) -> None:
    """Label with numbers such as 0.02 instead of powers, at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a file. Raises ConfigError if that fails."""
    check_picture(path)
    import matplotlib

    try:
        with matplotlib.rc_context({**_STYLE, "svg.hashsalt": path.name}):
            if path.suffix.lower() == ".svg":
                path.write_text(_both_themes(figure), encoding="utf-8")
            else:
                figure.savefig(path, dpi=144)
    except OSError as error:
        raise ConfigError(f"the picture {path} cannot be written: {error.strerror}") from None


def _both_themes(figure: Figure) -> str:
    """The SVG of a file: light in every program, and dark in a browser set to dark. It uses no CSS variables, which many programs do not
    know."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    rules = "".join(f'[style*="{what}: {light}"]{{{what}:{dark}!important}}' for light, dark in VARIABLES.values() for what in ("fill", "stroke"))
    style = f"<style>@media (prefers-color-scheme: dark){{{rules}}}</style>"
    return re.sub(r"(<svg[^>]*>)", rf"\1\n {style}", buffer.getvalue(), count=1)


def svg(figure: Figure, name: str, title: str) -> str:
    """An <svg> element for a page, with the CSS variables of VARIABLES as colours. `name` keeps ids of several pictures apart; screen readers
    read `title`."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.S)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", text)
    text = re.sub(r'(href="#|url\(#)', rf"\1{name}-", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text))
    text = text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(title, quote=True)}" style="max-width:{figure.get_figwidth() * 100:.0f}px" ', 1)
    for variable, (light, _) in VARIABLES.items():
        text = text.replace(light, f"var(--{variable})")
    return text
