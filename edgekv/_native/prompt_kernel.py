"""The kernel for prompts that is fastest on this machine: measured once, in a few hundredths of a second, and kept beside its other rates.

Which one it is follows from the processor and not from the names of its instructions: of two that round differently, each is faster
somewhere. Kernels give other bits, so the choice is made once for a machine and a version of EdgeKV. Where it cannot be kept, the library's
own default is used, which is the same each time.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import platformdirs

from edgekv._native import kept_choice

TURNS = 5


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

    def times() -> dict[str, float]:
        least = {name: float("inf") for name in compared}
        for _ in range(TURNS):  # in turns, so that other work on the machine slows all of them
            for name in compared:
                least[name] = min(least[name], time(name))
        return least

    return kept_choice.choose(path or choice_file(), ", ".join(compared), default, compared, times)
