"""Compares servers under the same load, in turns: EdgeKV's modes and stock llama.cpp, each a process of its own.

All servers run during the whole measurement, and one at a time gets requests. Stock is the same build with EDGEKV=0, with and without flash
attention; each figure is compared with the faster of the two.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from msgspec import Struct

from edgekv.bench.clients import Endpoint, Load, LoadPart, prompts_for
from edgekv.common.enums import STOCK_KERNELS, KvMode
from edgekv.common.errors import EdgeKVError
from edgekv.common.machine import n_cores, stamp
from edgekv.measure import interrupts

PARTS = ("read", "decode")
SERVERS = (*STOCK_KERNELS, KvMode.EXACT.value, KvMode.SPARSE.value)
ENDPOINT = "endpoint"
"""The name of a server that runs elsewhere, in its rows."""

_READY = re.compile(r"^ +API +(http://\S+)/v1")
Progress = Callable[[str, int, int], None]


class ServeBench(Struct, frozen=True):
    """The request: some of SERVERS with one model, or the server at `url`."""

    model: Path | None
    load: Load
    servers: tuple[str, ...] = SERVERS
    n_turns: int = 2
    n_threads: int | None = None
    arguments: tuple[str, ...] = ()
    """More options of `edgekv serve`, for all servers."""
    url: str | None = None
    key: str | None = None


def run(bench: ServeBench, text: str, progress: Progress = lambda what, done, total: None) -> Iterator[list[dict[str, Any]]]:
    """A row for each server and part, after each server's turn again. Raises EdgeKVError if a server does not start or breaks off, and
    KeyboardInterrupt after Ctrl-C (`edgekv.measure.interrupts`)."""
    with _endpoints(bench) as endpoints:
        seen: dict[tuple[str, str], list[LoadPart]] = {(name, part): [] for name in endpoints for part in PARTS}
        total = bench.n_turns * len(endpoints)
        for turn in range(bench.n_turns):
            for number, (name, endpoint) in enumerate(endpoints.items()):
                progress(f"{name}: turn {turn + 1}", turn * len(endpoints) + number, total)
                prompts = [endpoint.cut(one, bench.load.n_prompt) for one in prompts_for(text, bench.load, turn)]
                for part in PARTS:
                    seen[name, part].append(endpoint.together(prompts, bench.load.n_answer, name))
                yield _rows(bench, {key: turns for key, turns in seen.items() if turns})


def _rows(bench: ServeBench, seen: dict[tuple[str, str], list[LoadPart]]) -> list[dict[str, Any]]:
    seconds = {key: median(turn.seconds for turn in turns) for key, turns in seen.items()}
    speeds: dict[tuple[str, str], float | None] = {}
    for key, turns in seen.items():
        together = [speed for turn in turns if (speed := turn.tokens_per_second) is not None]
        speeds[key] = median(together) if together else None
    rows: list[dict[str, Any]] = []
    for (name, part), turns in seen.items():
        gaps = np.concatenate([turn.gaps for turn in turns])
        firsts = np.concatenate([turn.first_tokens for turn in turns])
        stock = [(kernel, part) for kernel in STOCK_KERNELS if (kernel, part) in seen]
        speed, of_stock = speeds[name, part], max((found for key in stock if (found := speeds[key]) is not None), default=None)
        rows.append({
            "server": name, "part": part, "clients": bench.load.n_clients, "n_prompt": bench.load.n_prompt,
            "n_answer": bench.load.n_answer, "seconds": seconds[name, part],
            "seconds_vs_stock": min(seconds[key] for key in stock) / seconds[name, part] if stock else None,
            "tokens_per_second": speed, "speed_vs_stock": speed / of_stock if speed is not None and of_stock is not None else None,
            "ttft_p50_s": float(np.median(firsts)), "ttft_max_s": float(firsts.max()),
            "gap_p50_ms": 1e3 * float(np.median(gaps)), "gap_p99_ms": 1e3 * float(np.quantile(gaps, 0.99)),
            "gap_max_ms": 1e3 * float(gaps.max()), "turns": len(turns), **stamp(), "cores": n_cores(),
            "model": bench.model.name if bench.model is not None else None,
        })
    return rows


@contextmanager
def _endpoints(bench: ServeBench) -> Iterator[dict[str, Endpoint]]:
    if bench.url is not None:
        yield {ENDPOINT: Endpoint(bench.url, bench.key)}
        return
    processes: list[subprocess.Popen[str]] = []
    try:
        found = {}
        for name in bench.servers:
            processes.append(_start(bench, name))
            found[name] = Endpoint(_address(processes[-1], name))
        yield found
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=60)


def _start(bench: ServeBench, name: str) -> subprocess.Popen[str]:
    stock = name in STOCK_KERNELS
    n_ctx = bench.load.n_prompt + bench.load.n_answer + 32
    command = [sys.executable, "-c", "from edgekv.cli.main import main; main()", "serve", str(bench.model), "--port", "0",
               "--kv", "off" if stock else name, "--parallel", str(min(16, bench.load.n_clients)), "--ctx", str(-(-n_ctx // 256) * 256)]
    command += ["--threads", str(bench.n_threads)] if bench.n_threads else []
    command += ["--max-itl", "0", "--cache-ram", "0"] if stock else []  # switches our defaults off
    command += [*bench.arguments, *(("--", "--flash-attn", "off") if name == STOCK_KERNELS[1] else ())]
    environment = {**os.environ, **({"EDGEKV": "0"} if stock else {})}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def _address(process: subprocess.Popen[str], name: str) -> str:
    said: list[str] = []
    for line in process.stderr or ():
        if match := _READY.search(line):
            return match[1]
        said.append(line.strip())
    interrupts.check()  # the server may have received the signal too
    raise EdgeKVError(f"the server {name} did not start: {' '.join(said[-2:]) or 'it says nothing'}")
