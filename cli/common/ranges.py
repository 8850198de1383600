"""Numbers as llama-bench takes them: "512", "1,2,4", "0-8192+2048", "1-8*2"."""

import re

from edgekv.common.errors import ConfigError

MOST = 1000
"""Numbers of one list."""

_PART = re.compile(r"(\d+)(?:-(\d+)(?:([+*])(\d+))?)?")


def numbers(text: str) -> tuple[int, ...]:
    """The numbers that `text` names, in its order. Raises ConfigError."""
    found: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"{part.strip()!r} is not a number or range; write 512, or 0-8192+2048, or 1-8*2, with commas between them")
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if last < first:
            raise ConfigError(f"the range {part.strip()!r} ends before it begins")
        step = int(match[4]) if match[4] else 1
        while first <= last:
            found.append(first)
            if len(found) > MOST:
                raise ConfigError(f"{text!r} names more than {MOST} numbers; take a larger step")
            following = first * step if match[3] == "*" else first + step
            if following <= first:
                raise ConfigError(f"the range {part.strip()!r} never ends: {first} {match[3]} {step} is not more than {first}")
            first = following
    return tuple(found)


def pair(text: str) -> tuple[int, int]:
    """Tokens of a prompt and of what is generated after it, "512,128". Raises ConfigError."""
    match = re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*", text)
    if match is None:
        raise ConfigError(f"{text!r} is not a pair of numbers; write tokens of the prompt, a comma, tokens after it: 512,128")
    return int(match[1]), int(match[2])
