"""The kernel for prompts that is fastest on this machine: measured once, in a few hundredths of a second, and kept beside its other rates.

Which one it is follows from the processor and not from the names of its instructions: of two that round differently, each is faster
somewhere. Kernels give other bits, so the choice is made once for a machine and a version of EdgeKV. Where it cannot be kept, the library's
own default is used, which is the same each time.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import platformdirs

from edgekv import __version__, json_file
from edgekv.machine import cpu_family

TURNS = 5
GAIN = 0.9
"""Another kernel than the default is chosen if it takes at most this part of the default's time: a smaller difference can be noise."""

log = logging.getLogger("edgekv")


def choice_file() -> Path:
    return Path(platformdirs.user_cache_dir("edgekv")) / "prompt-kernel.json"


def choose(default: str, available: Sequence[str], time: Callable[[str], float], path: Path | None = None) -> str:
    """The instruction set whose kernel reads prompts.

    Args:
        default: what serves where nothing better is known.
        available: names, of which those with a prompt kernel of their own above AVX-512 and AVX-512 itself are compared.
        time: seconds of a kernel for the same work.
        path: of the file that keeps the choice.
    """
    compared = [name for name in available if name in ("avx512", "avx512bf16", "amx")]
    if default not in compared or len(compared) < 2:
        return default
    path = path or choice_file()
    machine = f"{cpu_family()}; {', '.join(compared)}; EdgeKV {__version__}"
    kept = {name: isa for name, isa in json_file.read(path).items() if isinstance(isa, str)}
    if kept.get(machine) in compared:
        return kept[machine]
    times = {name: float("inf") for name in compared}
    for _ in range(TURNS):  # in turns, so that other work on the machine slows all of them
        for name in compared:
            times[name] = min(times[name], time(name))
    best = min(compared, key=times.__getitem__)
    chosen = best if times[best] < GAIN * times[default] else default
    return chosen if _keep(path, kept | {machine: chosen}) else default


def _keep(path: Path, choices: dict[str, str]) -> bool:
    try:
        json_file.replace(path, choices)
    except OSError as error:
        log.info("which prompt kernel is the fastest cannot be kept in %s (%s): the default is used", path, error.strerror)
        return False
    return True
