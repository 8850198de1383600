"""What llama.cpp's server reads beside our command line: variables of its own, and its own files of options."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

OURS = {
    **{f"--{name}": f"LLAMA_ARG_{name.upper().replace('-', '_')}" for name in (
        "model", "host", "port", "ctx-size", "cache-type-k", "cache-type-v", "flash-attn", "fit", "cache-ram", "offline", "ui", "cors-origins", "timeout",
        "threads")},
    "--parallel": "LLAMA_ARG_N_PARALLEL", "--batch-size": "LLAMA_ARG_BATCH", "--metrics": "LLAMA_ARG_ENDPOINT_METRICS"}
"""Options that our command line always gives, and their variables: what else sets them has no effect. (--alias, which it gives too, adds a name.)"""

_OTHERS = ("LLAMA_API_KEY", "LLAMA_MEDIA_MARKER", "LLAMA_ATTN_ROT_DISABLE", "LLAMA_GRAPH_REUSE_DISABLE", "MTMD_BACKEND_DEVICE")
"""Variables that llama.cpp's server reads beside LLAMA_ARG_*."""
_SECRETS = ("LLAMA_API_KEY", "api-key", "LLAMA_ARG_MCP_SERVERS_JSON", "mcp-servers-json")
_SECTION = re.compile(r"\[\s*([^]]*?)\s*\]")
_ENTRY = re.compile(r"([A-Za-z_][\w.-]*)[ \t]*=[ \t]*(.*?)[ \t]*(?:[;#].*)?")


class LlamaSetting(Struct, frozen=True):
    """name: as it is written there. source: as `edgekv config show` names it."""

    name: str
    value: str
    source: str


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


def settings() -> list[LlamaSetting]:
    """What llama.cpp's server takes beside our command line, or is refused at the start. Variables go before files."""
    found = [(key, value, f"file {path}") for path in files() for key, value in entries(path)]
    found += [(name, value, f"variable {name}") for name, value in os.environ.items() if name.startswith("LLAMA_ARG_") or name in _OTHERS]
    return [LlamaSetting(name, "..." if name in _SECRETS else value, source) for name, value, source in found
            if f"--{name}" not in OURS and name not in OURS.values()]
