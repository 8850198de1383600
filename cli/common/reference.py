"""The reference of settings in cli/README.md: `python -m edgekv.cli.common.reference` prints it."""

from collections.abc import Iterator
from itertools import groupby

from edgekv.config.setting_table import SETTINGS, Number, Setting


def reference() -> str:
    """A table for each group of settings, in Markdown."""
    return "\n\n".join("\n".join([f"*{group}*", "", "| setting | value | default | commands | |", "|---|---|---|---|---|", *map(_row, settings)])
                       for group, settings in groupby(SETTINGS, key=lambda setting: setting.group)) + "\n"


def _row(setting: Setting) -> str:
    names = [*setting.short, f"--{setting.name}"] if setting.where else [setting.variable]
    cells = (", ".join(f"`{name}`" for name in names), ", ".join(f"`{value}`" for value in values(setting)), setting.default_text or "",
             ", ".join(setting.where) or "variable alone", setting.help)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def values(setting: Setting) -> Iterator[str]:
    """What can be given: words, a range of numbers, or a placeholder."""
    kind = setting.kind
    if setting.words:
        yield from setting.words
    elif isinstance(kind, Number):
        yield f"{kind.least:g}..." if kind.most is None else f"{kind.least:g}...{kind.most:.10g}"
    elif kind is not bool:
        yield setting.unit or "TEXT"


if __name__ == "__main__":
    print(reference(), end="")
