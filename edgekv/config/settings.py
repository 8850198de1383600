"""The names of settings."""

from collections.abc import Callable, Iterable

from edgekv.common.errors import ConfigError

RENAMED = {
    "keep": "evict-to", "slots": "parallel", "device": "attention-device", "type-k": "cache-type-k", "type-v": "cache-type-v",
    "page-tokens": "page-size", "resolution": "sample-budget", "prompt-resolution": "prompt-sample-budget", "error": "target-error",
    "home": "kv-dir", "draft": "spec-type", "max-gap": "max-itl",
}
"""Old name: the new one. For one release an old name ends with a sentence."""
OLD_KEYWORDS = tuple(name.replace("-", "_") for name in RENAMED if not name.startswith("type"))  # llama_cpp.Llama has type_k and type_v


def variable_of(name: str) -> str:
    """The environment variable of a setting: "evict-to" has EDGEKV_EVICT_TO."""
    return f"EDGEKV_{name.replace('-', '_').upper()}"


def keyword_of(name: str) -> str:
    """Its keyword in Python."""
    return name.replace("-", "_")


def check_renamed(given: Iterable[str], spelled: Callable[[str], str], where: str = "") -> None:
    """Raise ConfigError, which begins with `where`, if one of the names that are `given`, as `spelled` spells a setting's name, is an old one."""
    old = {spelled(name): spelled(new) for name, new in RENAMED.items()}
    for name in given:
        if name in old:
            raise ConfigError(f"{where}{name} is now called {old[name]}")
