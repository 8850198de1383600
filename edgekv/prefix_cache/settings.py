"""The places of kept prefixes, and their bounds in bytes."""

from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from edgekv.common.enums import CacheCodec
from edgekv.common.units import GIB


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


def default_folder() -> Path:
    """The folder for prefixes unless another is named: in this user's cache."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("edgekv")) / "prefixes"
