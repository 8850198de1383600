"""Reading and printing of bytes, tokens, shares, durations and switches, everywhere alike."""

import re

from edgekv.common.errors import ConfigError

MIB = 1 << 20
GIB = 1 << 30
MOST_TOKENS = 1 << 30
"""Of a context, or of anything that is measured in tokens."""
_MOST_BYTES = 1 << 60

SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
"""The words for on and off, in lower case."""

# ---- reading --------------------------------------------------------------------------------------------------------------------


def parse_bytes(text: str, noun: str = "the size", such_as: str = "512MiB or 2GiB, or auto") -> int | None:
    """ "512MiB", "1.5G" (both powers of 1024), "4096" as bytes; "auto" is None. Raises ConfigError, with examples of what is taken."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text, re.IGNORECASE)
    if text.strip().lower() == "auto":
        return None
    if match is None:
        raise ConfigError(f"{noun} is {text!r}; write bytes such as {such_as}")
    if (n_bytes := float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " ")) >= _MOST_BYTES:
        raise ConfigError(f"{noun} is {text!r}, which is too large; write bytes such as {such_as}")
    return int(n_bytes)


def parse_tokens(text: str) -> int | None:
    """ "4096" as a number of tokens, from 1 to MOST_TOKENS; None for anything else."""
    try:
        return n if 1 <= (n := int(text)) <= MOST_TOKENS else None
    except ValueError:
        return None


def parse_share(text: str, noun: str = "the share") -> float:
    """ "95%" and "0.95" are the same share. Raises ConfigError."""
    number, percent_sign, rest = text.strip().partition("%")
    try:
        share = float(number) / (100 if percent_sign else 1)
        if not rest and 0 <= share <= 1:
            return share
    except ValueError:
        pass
    raise ConfigError(f"{noun} is {text!r}; it must be a share such as 95% or 0.95, or 0 for none")


def parse_duration(text: str, noun: str = "the time") -> float:
    """ "90s", "45min", "12h", "30d" as seconds. Raises ConfigError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h|d)\s*", text)
    if match is None:
        raise ConfigError(f"{noun} is {text!r}; write a number followed by s, min, h or d, such as 12h or 30d")
    return float(match[1]) * {"s": 1, "min": 60, "h": 3600, "d": 86400}[match[2]]


# ---- printing -------------------------------------------------------------------------------------------------------------------


def size(n_bytes: int) -> str:
    """Bytes in the unit that suits them: "27.0 MiB"."""
    value, unit = float(n_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}" if unit != "B" else f"{n_bytes} B"


def size_of(used: int, total: int) -> str:
    """ "22.5 of 45.0 MiB"; both with their units where these differ."""
    used_text, total_text = size(used), size(total)
    number, unit = used_text.split()
    return f"{number if unit == total_text.split()[1] else used_text} of {total_text}"


def mebibytes(n_bytes: float) -> str:
    """ "1.5", without the unit: for a column in MiB."""
    return f"{n_bytes / MIB:.1f}"


def gibibytes(n_bytes: float) -> str:
    """ "1.50", without the unit: for a column in GiB."""
    return f"{n_bytes / GIB:.2f}"


def counted(n: int, noun: str) -> str:
    """ "1 token", "2,000 tokens"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def tokens(n: int) -> str:
    """ "4,096": a count, of tokens or anything else."""
    return f"{n:,}"


def parameters(n: int) -> str:
    """ "35.1K", "135M", "8.03B": a model's numbers, with three digits."""
    return f"{n / 1e9:.3g}B" if n >= 999.5e6 else f"{n / 1e6:.3g}M" if n >= 999.5e3 else f"{n / 1e3:.3g}K"


def fixed(value: float, digits: int) -> str:
    """ "1,234.5": so many digits behind the point."""
    return f"{value:,.{digits}f}"


def percent(share: float, digits: int = 1) -> str:
    """ "12.3", without the sign: for a column in %."""
    return f"{100 * share:.{digits}f}"


def signed_percent(share: float, digits: int = 2) -> str:
    """ "+1.23": a difference, for a column in % or in percentage points."""
    return f"{100 * share:+.{digits}f}"


def rough_percent(share: float) -> str:
    """ "0.6 %", "12 %": one significant digit below ten, with the sign."""
    number = 100 * share
    return f"{number:.0f} %" if number >= 9.5 else f"{number:.1g} %" if number >= 0.001 else "0 %"


def duration(seconds: float) -> str:
    """ "45 s", "3 min"."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def long_duration(seconds: float) -> str:
    """As `duration`, from 90 min on "5 h", "3 d"."""
    if seconds < 5400:
        return duration(seconds)
    return f"{seconds / 3600:.0f} h" if seconds < 36 * 3600 else f"{seconds / 86400:.0f} d"
