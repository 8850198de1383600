"""A picture of a terminal in which a command runs: `python tests/pictures.py FILE.svg COLUMNS 'edgekv plan'`. Each further argument is a line that a
person types into a chat; it is typed when the prompt stands there."""

import io
import os
import re
import sys
import time
from itertools import groupby
from pathlib import Path

import pexpect
import pyte
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

LINES = 90
PROMPT, SILENT_S, LONGEST_S = "(/help for commands)", 1.5, 300.0
DIM = re.compile(r"(?<=\[)2(?=[;m])|(?<=\[0;)2(?=[;m])")
"""The code for dim text, which pyte does not know: grey stands for it."""
THEME = TerminalTheme((24, 26, 31), (222, 224, 228), [(24, 26, 31), (235, 100, 100), (120, 200, 120), (225, 190, 90), (110, 160, 240), (200, 130, 220),
                      (90, 195, 205), (222, 224, 228)], [(140, 146, 156), *[(240, 240, 240)] * 7])
NAMES = {"brown": "yellow", "brightbrown": "bright_yellow"}
"""pyte's names that rich does not know, but for `bright`, which rich parts from the colour."""


def recorded(command: str, n_columns: int, said: list[str]) -> pyte.Screen:
    """The screen when the command has ended, or when it waits for a line after all that is said."""
    screen = pyte.Screen(n_columns, LINES)
    stream, left = pyte.Stream(screen), list(said)
    child = pexpect.spawn("/bin/sh", ["-c", command], encoding="utf-8", dimensions=(LINES, n_columns), env=os.environ | {"PROMPT_TOOLKIT_NO_CPR": "1"})
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < LONGEST_S:
        try:
            stream.feed(DIM.sub("90", child.read_nonblocking(65536, timeout=0.2)))
            quiet_since = time.monotonic()
        except pexpect.EOF:
            break
        except pexpect.TIMEOUT:
            if time.monotonic() - quiet_since < SILENT_S or not any(PROMPT in line for line in screen.display):
                continue
            if not left:
                break
            child.send(f"{left.pop(0)}\r")
            quiet_since = time.monotonic() + SILENT_S
    child.close(force=True)
    return screen


def style_of(cell: pyte.screens.Char) -> Style:
    fg, bg = (NAMES.get(name, f"#{name}" if re.fullmatch("[0-9a-f]{6}", name) else re.sub("^bright", "bright_", name)) for name in (cell.fg, cell.bg))
    return Style(color=None if fg == "default" else fg, bgcolor=None if bg == "default" else bg, bold=cell.bold or None, italic=cell.italics or None,
                 underline=cell.underscore or None, reverse=cell.reverse or None)


def styled(screen: pyte.Screen, prompt: str) -> list[Text]:
    lines: list[Text] = []
    for row in (screen.buffer[y] for y in range(screen.lines)):
        cells = [row[x] for x in range(screen.columns)]
        line = Text.assemble(*(("".join(cell.data for cell in run), style) for style, run in groupby(cells, key=style_of)))
        line.rstrip()
        lines.append(line)
    n_lines = max((number for number, line in enumerate(lines, 1) if line.plain), default=0)
    return [Text(f"$ {prompt}", "bold"), *lines[:n_lines]]


def main() -> None:
    file, n_columns, command, *said = sys.argv[1:]
    console = Console(record=True, width=int(n_columns), file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in styled(recorded(command, int(n_columns), said), command):
        console.print(line)
    form = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.S).replace(  # a reader's own font, from nowhere else
        "Fira Code, monospace", "DejaVu Sans Mono, Menlo, Consolas, monospace")
    Path(file).write_text(console.export_svg(title="", theme=THEME, code_format=form), encoding="utf-8")


if __name__ == "__main__":
    main()
