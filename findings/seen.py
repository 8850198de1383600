"""What a script of this folder saw, against what it expects."""

import sys
from collections.abc import Callable
from typing import Any


def check(what: str, found: Any, expected: Any) -> None:
    """Print what was found; end with exit code 1 where it is something else now."""
    print(f"{what}: {found}" if found == expected else f"{what}: {found}, CHANGED, was {expected}", flush=True)
    if found != expected:
        sys.exit(1)


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the name of what it raises."""
    try:
        return call()
    except Exception as error:
        return type(error).__name__
