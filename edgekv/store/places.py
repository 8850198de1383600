"""The places below RAM that the settings name."""

from __future__ import annotations

from edgekv.store.folder import FolderPlace
from edgekv.store.identity import ModelIdentity
from edgekv.store.place import Place
from edgekv.store.settings import StoreSettings


def open_places(identity: ModelIdentity, settings: StoreSettings) -> list[Place]:
    """The fastest first. A place that cannot be used now is there all the same, and tried again. Raises ConfigError for a bad address."""
    places: list[Place] = []
    if settings.folder is not None:
        places.append(FolderPlace(identity, settings.folder, settings.folder_bytes))
    if settings.url is not None:
        from edgekv.store.remote import RedisPlace

        places.append(RedisPlace(identity, settings.url, settings.url_ttl_s, settings.url_timeout_s))
    return places
