"""What llama.cpp's server reads beside our command line: variables of its own, and its own files of options."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

OURS = frozenset(("--model", "--host", "--port", "--parallel", "--ctx-size", "--batch-size", "--cache-type-k", "--cache-type-v", "--flash-attn", "--fit",
                  "--cache-ram", "--offline", "--ui", "--cors-origins", "--metrics", "--timeout", "--threads"))
"""Options that our command line always gives: what else sets them has no effect. (--alias, which it gives too, adds a name.)"""

_WITHOUT_OPTION = ("LLAMA_MEDIA_MARKER", "LLAMA_ATTN_ROT_DISABLE", "LLAMA_GRAPH_REUSE_DISABLE")
_SECRETS = ("--api-key", "--mcp-servers-json")
_PREFIXES = ("LLAMA_", "MTMD_")
_SECTION = re.compile(r"\[\s*([^]]*?)\s*\]")
_ENTRY = re.compile(r"([A-Za-z_][\w.-]*)[ \t]*=[ \t]*(.*?)[ \t]*(?:[;#].*)?")


class LlamaSetting(Struct, frozen=True):
    """option: its long name, or the variable's where there is no option. source: as `edgekv config show` names it."""

    option: str
    value: str
    source: str


class _Option(Struct, frozen=True):
    names: tuple[str, ...]
    variable: str

    def name(self, is_off: bool = False) -> str:
        """The first long name, or that which switches it off."""
        return next(name for name in self.names if name.startswith("--no-" if is_off else "--"))


def files() -> list[Path]:
    """The files of options that llama.cpp's programs read, those that exist."""
    user = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return [path for folder in (Path("/etc"), user) if (path := folder / "llama.cpp/config.ini").is_file()]


def entries(path: Path) -> Iterator[tuple[str, str]]:
    """(key, value) of a file's parts that are for every program. A file that cannot be read has none: llama.cpp's server says so."""
    counts = True
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in map(str.strip, lines):
        if section := _SECTION.match(line):
            counts = section[1] in ("*", "default")
        elif counts and (entry := _ENTRY.fullmatch(line)) and entry[1] != "version":
            yield entry[1], entry[2]


def any_set() -> bool:
    """Whether there may be a setting."""
    return bool(files()) or any(name.startswith(_PREFIXES) for name in os.environ)


def settings(option_help: str) -> list[LlamaSetting]:
    """The settings that have an effect, or are refused at the start. option_help: the help of llama.cpp's server. Variables go before files."""
    options = [option for option in _options(option_help) if not OURS & set(option.names)]
    found = {name: (os.environ[name], f"variable {name}") for name in _WITHOUT_OPTION if name in os.environ}
    for path in files():
        said = dict(entries(path))
        for option in options:
            for key in said.keys() & {option.variable, *(name.lstrip("-") for name in option.names)}:
                found[f"--{key}" if f"--{key}" in option.names else option.name()] = said[key], f"file {path}"
    for option in options:
        negation = option.variable.replace("LLAMA_ARG_", "LLAMA_ARG_NO_") if any(name.startswith("--no-") for name in option.names) else ""
        variable = next((name for name in (negation, option.variable) if name in os.environ), None)
        if variable is not None:
            found[option.name(is_off=variable == negation)] = os.environ[variable], f"variable {variable}"
    return [LlamaSetting(name, "..." if name in _SECRETS else value, source) for name, (value, source) in found.items()]


def _options(text: str) -> Iterator[_Option]:
    """Options that have a variable of llama.cpp's own. The help has an option's names at the beginning of its first line, and its variable last."""
    names: tuple[str, ...] = ()
    for line in text.splitlines():
        if line.startswith("-") and (said := re.match(r"(?:-[\w-]+,? *)+", line)):
            names = tuple(name.rstrip(",") for name in said[0].split())
        if (variable := re.search(r"\(env: (\w+)\)", line)) and variable[1].startswith(_PREFIXES):
            yield _Option(names, variable[1])
