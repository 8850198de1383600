"""One call of the command: the checkout, the state folder, the device, the environment that its programs get."""

import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from . import parcels
from .execute import Done, execute
from .machine import Card, cards, commit, facts, source_hash
from .state import FAILED, OK, UNFINISHED, State
from .steps import Outcome
from .toolkit import Toolkit, find

BUILD_SOURCES = ("native", "patches", "pyproject.toml")


@dataclass
class Session:
    """`device` is cuda, or in a rehearsal emulated or cpu. `began` is a time of the monotonic clock."""

    root: Path
    state: State
    out: Path
    device: str
    began: float = field(default_factory=time.monotonic)

    # ---- what there is ---------------------------------------------------------------------------------------------------------

    @cached_property
    def card(self) -> Card | None:
        found = cards()
        return found[0] if found else None

    @cached_property
    def toolkit(self) -> Toolkit:
        archive, carried = parcels.part(self.state, parcels.BASE, "cublas-include.tar.xz"), None
        if archive is not None:
            carried = self.state.path("cublas", "x").parent
            subprocess.run(["tar", "-C", str(carried), "-xJf", str(archive)], check=True)
        return find(self.state.path("toolkit", "x").parent, carried)

    @property
    def arch(self) -> int:
        if self.card is None:
            raise RuntimeError("no GPU, no architecture")
        return self.card.arch

    @cached_property
    def n_cores(self) -> int:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    @cached_property
    def sources(self) -> str:
        """Hash of everything that tests and benchmarks depend on."""
        return source_hash(self.root)

    @cached_property
    def build_sources(self) -> str:
        return source_hash(self.root, BUILD_SOURCES)

    @property
    def python(self) -> Path:
        return self.state.folder / "venv" / "bin" / "python"

    @property
    def emulator(self) -> Path:
        return self.state.folder / "emulated" / "libedgekv-emulated.so"

    @property
    def models(self) -> Path:
        return self.state.path("models", "x").parent

    def facts(self) -> dict[str, Any]:
        """The results' facts: machine, sources, and rates that were measured once."""
        about = parcels.manifest(self.state) or {}
        here = commit(self.root)
        # a copy of the checkout has no history: the commit is that of the pack, and "+" marks sources that have changed since
        packed = f"{about['commit']}{'' if about.get('sources') == self.sources or str(about['commit']).endswith('+') else '+'}" \
            if about.get("commit") else None
        rates = self.state.path("rates.json")
        return {**facts(), "device": self.device, "commit": here or packed, "sources": self.sources,
                "rates": json.loads(rates.read_text()) if rates.exists() else None,
                "build": self._build_facts()}

    def _build_facts(self) -> dict[str, Any] | None:
        path = self.state.path("build.json")
        return json.loads(path.read_text()) if path.exists() else None

    # ---- what it does ---------------------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Print a line with the time of day and the seconds since the call began: a log is read long after."""
        now = datetime.datetime.now().strftime("%H:%M:%S")
        print(f"[{now} +{time.monotonic() - self.began:4.0f}s] {text}", flush=True)

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a program that was made for it, outside the checkout."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EDGEKV", "PYTHON", "LLAMA_"))}
        # cmake may stand beside the Python that runs this, and nowhere else
        paths = [str(self.python.parent), kept.get("PATH", ""), str(Path(sys.executable).parent)]
        libraries = [kept.get("LD_LIBRARY_PATH", "")]
        if self.device == "cuda":
            libraries[:0] = map(str, self.toolkit.libraries)
            paths.append(str(self.toolkit.nvcc.parent))
        kept |= {"PATH": os.pathsep.join(filter(None, paths)), "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
                 "PYTHONUNBUFFERED": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "EDGEKV_ATTENTION_DEVICE": self.device,
                 "EDGEKV_GPU_MODELS": str(self.models)}
        if self.device == "emulated":
            kept["EDGEKV_EMULATOR"] = str(self.emulator)
        return kept | more

    def execute(
        self, name: str, command: Sequence[str | Path], seconds: float, env: Mapping[str, str] | None = None, quiet: bool = False,
    ) -> Done:
        """Run a program from an empty folder (in the checkout `import edgekv` would find the sources); log NAME.log."""
        work = self.state.path("work", "x").parent
        echo = None if quiet else lambda line: self.say(f"  {line}")
        return execute(command, self.state.path("logs", f"{name}.log"), seconds, env or self.environment(), work, echo)

    def outcome(self, name: str, done: Done) -> Outcome:
        """The result of a step that is one command. Its last words stand in the note; of a failed command the last lines are shown."""
        if done.code is None:
            return Outcome(UNFINISHED, f"stopped after {done.seconds:.0f} s; {done.last_line[:120]}")
        if done.code:
            for line in done.tail.splitlines()[-25:]:
                print(f"    {line}", flush=True)
            return Outcome(FAILED, f"exit code {done.code}: {done.last_line[:200]} (logs: {name}.log)")
        return Outcome(OK, done.last_line[:160])
