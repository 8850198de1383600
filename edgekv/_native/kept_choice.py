"""Choices that a machine makes once, by a measurement, and keeps in the user's cache folder."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from edgekv._native import core
from edgekv.common import json_file
from edgekv.common.machine import cpu_family

GAIN = 0.95
"""Another than the default is chosen if it takes less than this part of the default's time: a smaller difference can be noise."""

log = logging.getLogger("edgekv")


def choose(path: Path, what: str, default: str, names: list[str], times: Callable[[], Mapping[str, float]]) -> str:
    """The kept choice of `names`, or a new one. Where it cannot be kept, the default, so that it is the same each time.

    Args:
        path: of the file that keeps it, JSON.
        what: names the choice; the processor and the version of EdgeKV are added.
        times: measures the seconds of each name.
    """
    if (before := kept(path, what)) in names:
        return before
    seconds = times()
    best = min(names, key=seconds.__getitem__)
    chosen = best if seconds[best] < GAIN * seconds[default] else default
    if (before := kept(path, what)) in names:  # another process was faster: all use the same
        return before
    try:
        json_file.replace(path, _choices(path) | {_on_this_machine(what): chosen})
    except OSError as error:
        log.info("what is fastest here (%s) cannot be kept in %s (%s): the default is used", what, path, error.strerror)
        return default
    return chosen


def kept(path: Path, what: str) -> str | None:
    """The choice that was made, None: none was."""
    return _choices(path).get(_on_this_machine(what))


def _choices(path: Path) -> dict[str, str]:
    return {name: choice for name, choice in json_file.read(path).items() if isinstance(choice, str)}


def _on_this_machine(what: str) -> str:
    return f"{cpu_family()}; {what}; EdgeKV {core.version()}"
