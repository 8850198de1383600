"""The options of the prefix store, which spares reading a conversation again."""

from typing import Any

import click
from click.core import ParameterSource

from edgekv.common.enums import CacheCodec
from edgekv.common.errors import ConfigError
from edgekv.common.units import size
from edgekv.prefix_cache.settings import StoreSettings


def split_cache_options(settings: dict[str, Any]) -> StoreSettings | None:
    """Take the settings of the prefix cache out of `settings`. None: nothing is kept. Raises ConfigError."""
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
