"""The options of the prefix store, which spares reading a conversation again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from edgekv.cli.common.shared_options import Parsed, option
from edgekv.common.enums import CacheCodec
from edgekv.common.errors import ConfigError
from edgekv.common.units import parse_bytes, parse_duration, size
from edgekv.prefix_cache.settings import StoreSettings

F = TypeVar("F", bound=Callable[..., Any])


def _size(noun: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        n_bytes = parse_bytes(text, noun)
        if n_bytes is None:
            raise ConfigError(f"{noun} is {text!r}; write bytes such as 512MiB or 2GiB")
        return n_bytes

    return parse


def parse_address(text: str) -> str:
    """The address of a shared server. Raises ConfigError."""
    from edgekv.prefix_cache.places import shared_scheme

    shared_scheme(text)
    return text


def _ram(text: str) -> int:
    """As llama.cpp's --cache-ram: a number without a unit is in MiB."""
    return _size("the cache in RAM")(f"{text}MiB" if text.strip().isdigit() else text)


ram_option = option("-cram", "--cache-ram", type=Parsed("cache_ram", _ram), metavar="MIB|SIZE",
                    help="Host memory for K and V of conversations, so that a returning conversation is not read again, in MiB or with a unit, "
                         "e.g. 2GiB; 0 for none. "
                         f"It is lost when the server ends.  [default: {size(StoreSettings.ram_bytes)}]")

_OPTIONS = [
    ram_option,
    option("--cache-dir", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
           help="Folder for the same, which outlives the server. Its files reveal conversations: keep it private.  [default: none]"),
    option("--cache-disk", type=Parsed("cache_disk", _size("the cache on disk")), metavar="SIZE",
           help=f"Maximum size of the folder of --cache-dir; the least recently used blocks go first.  [default: {size(StoreSettings.folder_bytes)}]"),
    option("--cache-ttl", type=Parsed("cache_ttl", lambda text: parse_duration(text, "--cache-ttl")), metavar="TIME",
           help="What nobody used for so long leaves the folder of --cache-dir, e.g. 12h or 30d, unless it is pinned.  "
                "[default: it stays as long as there is room]"),
    option("--cache-url", type=Parsed("cache_url", parse_address), metavar="URL",
           help="A Redis-compatible server that several EdgeKV servers share, redis://HOST:PORT/DB. Others can see an address on the "
                "command line: put one with a password into the variable.  [default: none]"),
    option("--cache-codec", type=click.Choice([codec.value for codec in CacheCodec]),
           help="Form of the rows of --cache-dir and --cache-url. " + "; ".join(f"{codec.value}: {codec.description}" for codec in CacheCodec)
                + f".  [default: {StoreSettings.codec.value}]"),
]


def cache_options(function: F) -> F:
    """Add --cache-ram and its companions as parameters: see `split_cache_options()`."""
    for one in reversed(_OPTIONS):
        function = one(function)
    return function


def split_cache_options(settings: dict[str, Any]) -> StoreSettings | None:
    """Take the values of `cache_options()` out of `settings`. None: nothing is kept. Raises ConfigError."""
    names = ("cache_ram", "cache_dir", "cache_disk", "cache_ttl", "cache_url", "cache_codec")
    ram, folder, disk, ttl, url, codec = (settings.pop(name) for name in names)
    if disk is not None and folder is None and _on_command_line("cache_disk"):
        raise ConfigError("--cache-disk bounds the folder of --cache-dir, and there is none; add --cache-dir DIR")
    if ttl is not None and folder is None and _on_command_line("cache_ttl"):
        raise ConfigError("--cache-ttl is for the folder of --cache-dir, and there is none; add --cache-dir DIR")
    if ram == 0 and folder is None and url is None:
        return None
    given = {"ram_bytes": ram, "folder": folder, "folder_bytes": disk, "folder_ttl_s": ttl, "url": url,
             "codec": None if codec is None else CacheCodec(codec)}
    return StoreSettings(**{name: value for name, value in given.items() if value is not None})


def _on_command_line(name: str) -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def without_password(url: str) -> str:
    """An address without its password, to be shown."""
    scheme, _, rest = url.partition("://")
    user, at, place = rest.rpartition("@")
    return f"{scheme}://{'...@' if at and user else ''}{place}"


def caches_text(store: StoreSettings | None) -> str:
    """The prefix store in words, for a line that says what was started."""
    if store is None:
        return "none"
    parts = [f"{size(store.ram_bytes)} of RAM"] if store.ram_bytes else []
    if store.folder is not None:
        parts.append(f"{size(store.folder_bytes)} in {store.folder}")
    if store.url is not None:
        parts.append(without_password(store.url))
    return ", ".join(parts)
