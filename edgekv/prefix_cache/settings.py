"""The places of kept prefixes, and their bounds in bytes."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from edgekv.common.enums import CacheCodec
from edgekv.common.errors import ConfigError
from edgekv.common.units import GIB

if TYPE_CHECKING:
    from edgekv.prefix_cache.identity import ModelIdentity
    from edgekv.prefix_cache.place import Place

SHARED = ("redis", "rediss")
"""The schemes of places that several machines share. Their `name` is remote."""


@dataclass(frozen=True)
class StoreSettings:
    """The places of a prefix store and their bounds. Without a folder and an address everything is in RAM, and gone at the end."""

    ram_bytes: int = GIB
    """0: nothing stays in RAM, except what is under way."""
    folder: Path | None = None
    folder_bytes: int = 10 * GIB
    url: str | None = None
    """redis://HOST:PORT/DB of a Redis-compatible server."""
    url_ttl_s: int = 24 * 3600
    """The server forgets unused blocks after this long."""
    url_timeout_s: float = 0.5
    """No call waits longer; later answers are a miss."""
    folder_ttl_s: float | None = None
    """What nobody used for so long leaves the folder; None: it stays as long as there is room."""
    codec: CacheCodec = CacheCodec.AUTO
    """The form of rows below RAM."""


class RecallSettings(Struct, frozen=True):
    """Where exchanges go that leave a full context: into the RAM of the prefix store, and into a folder of their own."""

    folder: Path | None = None
    """None: RAM alone."""


def check_shared(url: str) -> None:
    """Raises ConfigError if there is no shared place of this address's scheme."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in SHARED:
        raise ConfigError(f"the shared cache's address {url.split('@')[-1]!r} must begin with {' or '.join(f'{known}://' for known in SHARED)}, "
                          "such as redis://HOST:PORT/DB")


def open_places(identity: "ModelIdentity", settings: StoreSettings) -> "list[Place]":
    """The fastest first. A place that cannot be used now is there all the same, and tried again. Raises ConfigError for a bad address."""
    places: list[Place] = []
    if settings.folder is not None:
        from edgekv.prefix_cache.folder import FolderPlace

        places.append(FolderPlace(identity, settings.folder, settings.folder_bytes, settings.folder_ttl_s, settings.codec))
    if settings.url is not None:
        from edgekv.prefix_cache.remote import RedisPlace

        check_shared(settings.url)
        places.append(RedisPlace(identity, settings.url, settings.url_ttl_s, settings.url_timeout_s, codec=settings.codec))
    return places


def default_folder() -> Path:
    """The folder for prefixes unless another is named: in this user's cache."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("edgekv")) / "prefixes"
