"""The places below RAM that the settings name."""

from collections.abc import Callable, Sequence

from edgekv.common.enums import MissReason
from edgekv.common.errors import ConfigError
from edgekv.prefix_cache.folder import FolderPlace
from edgekv.prefix_cache.identity import ModelIdentity
from edgekv.prefix_cache.place import Place
from edgekv.prefix_cache.results import Miss
from edgekv.prefix_cache.settings import StoreSettings


def _redis(identity: ModelIdentity, settings: StoreSettings) -> Place:
    from edgekv.prefix_cache.remote import RedisPlace

    assert settings.url is not None
    return RedisPlace(identity, settings.url, settings.url_ttl_s, settings.url_timeout_s, codec=settings.codec)


SHARED: dict[str, Callable[[ModelIdentity, StoreSettings], Place]] = {"redis": _redis, "rediss": _redis}
"""Places that several machines share, by the scheme of their address. Their `name` is remote."""


def shared_scheme(url: str) -> str:
    """The scheme of a shared place's address. Raises ConfigError if there is no such place."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in SHARED:
        raise ConfigError(f"the shared cache's address {url.split('@')[-1]!r} must begin with {' or '.join(f'{known}://' for known in SHARED)}, "
                          "such as redis://HOST:PORT/DB")
    return scheme


def open_places(identity: ModelIdentity, settings: StoreSettings) -> list[Place]:
    """The fastest first. A place that cannot be used now is there all the same, and tried again. Raises ConfigError for a bad address."""
    places: list[Place] = []
    if settings.folder is not None:
        places.append(FolderPlace(identity, settings.folder, settings.folder_bytes, ttl_s=settings.folder_ttl_s, codec=settings.codec))
    if settings.url is not None:
        places.append(SHARED[shared_scheme(settings.url)](identity, settings))
    return places


def unreadable(places: Sequence[Place]) -> MissReason:
    """Why rows cannot be read: they are damaged, or a place cannot be used now."""
    return MissReason.DAMAGED if all(place.working for place in places) else MissReason.TIER_DOWN


def told(places: Sequence[Place], missed: Miss | None) -> Miss | None:
    """A search's miss; what no place has may be in one that cannot be used now."""
    down = missed is not None and missed.reason is MissReason.COLD and not all(place.working for place in places)
    return Miss(MissReason.TIER_DOWN, missed.at) if missed is not None and down else missed
