"""A server at an address: EdgeKV's, llama.cpp's, or any other OpenAI-compatible one. Nothing is loaded here."""

from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx

from edgekv.cli.chat.client import ChatClient
from edgekv.cli.chat.kv_status import KvStatus, Row, size_column
from edgekv.cli.chat.views import ServerView
from edgekv.common.errors import ConfigError, EdgeKVError, ModelError
from edgekv.common.units import size
from edgekv.prefix_cache import conversations
from edgekv.prefix_cache.settings import default_folder

_PROPS_S = 5.0  # only the footer needs /props: an answer must not wait for it
_MOST_NAMES = 12


def base_url(url: str) -> str:
    """The address without /v1 and a slash at its end. Raises ConfigError if it is not a server's address."""
    try:
        parts = urlsplit(url)
        well_formed = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        well_formed = False
    if not well_formed:
        raise ConfigError(f"{url!r} is not the address of a server; it must be like http://127.0.0.1:8080")
    return url.rstrip("/").removesuffix("/v1")


class RemoteServer(ServerView):
    """The facts about a server at an address: its models by /v1/models, a llama.cpp server's context by /props, and the KV cache by the
    `edgekv` part of /props."""

    def __init__(self, client: ChatClient, model: str | None = None):
        """model: its name on the server; None: the only one. Raises EdgeKVError with a sentence where nothing answers, ModelError if the
        server does not have the model."""
        self._client = client
        self.name = self._choose(self._models(), model)
        client.sampling = {"model": self.name, **client.sampling}
        self._props = self._read_props()
        client.is_llama = "default_generation_settings" in self._props

    # ---- as a ServerView ------------------------------------------------------------------------------------------------------

    @property
    def n_ctx(self) -> int | None:
        settings = self._props.get("default_generation_settings")
        return _count(settings, "n_ctx")

    def summary(self) -> str:
        context = f", context {self.n_ctx:,}" if self.n_ctx else ""
        mode = f", KV {kv}" if (kv := _text(self._edgekv, "mode")) else ""
        return f"{self.name} at {self._client.url}{context}{mode}"

    def forget(self, conversation: str) -> None:
        conversations.forget(default_folder(), conversation)

    def status(self, n_used: int) -> KvStatus:
        return KvStatus(_text(self._edgekv, "mode"), None, None, self.n_ctx)

    def model_rows(self) -> list[Row]:
        return [("model", self.name), ("server", self._client.url)]

    def attention_rows(self) -> list[Row]:
        mode, description = _text(self._edgekv, "mode"), _text(self._edgekv, "mode_description")
        return [("mode", f"{mode}: {description}" if description else mode)] if mode else []

    def memory_rows(self) -> list[Row]:
        self._props = self._read_props() or self._props
        rows = [*_tier_rows(self._edgekv.get("tiers")), *_rows({"store": self._edgekv.get("store")})]
        if not rows:
            raise EdgeKVError(f"the server at {self._client.url} does not say what its memory holds")
        return rows

    # ---- what it is asked -----------------------------------------------------------------------------------------------------

    @property
    def _edgekv(self) -> dict[str, Any]:
        found = self._props.get("edgekv")
        return found if isinstance(found, dict) else {}

    def _models(self) -> list[str]:
        status, body = self._get("/v1/models")
        listed = body.get("data") if isinstance(body, dict) else None
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise EdgeKVError(f"the server at {self._client.url} does not let you in (HTTP {status}); name its key with --api-key-file FILE "
                              "or the variable EDGEKV_API_KEY")
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise EdgeKVError(f"the server at {self._client.url} is not ready yet; try again in a moment")
        if status != HTTPStatus.OK or not isinstance(listed, list):
            what = f"HTTP {status}" if status != HTTPStatus.OK else "something else"
            raise EdgeKVError(f"{self._client.url} is not an OpenAI-compatible endpoint: it answers {what} where the list of models belongs "
                              "(/v1/models)")
        return [entry["id"] for entry in listed if isinstance(entry, dict) and isinstance(entry.get("id"), str)]

    def _choose(self, models: list[str], wanted: str | None) -> str:
        if not models:
            raise ModelError(f"the server at {self._client.url} has no model")
        names = ", ".join(models[:_MOST_NAMES]) + (f" and {len(models) - _MOST_NAMES} others" if len(models) > _MOST_NAMES else "")
        if wanted is None and len(models) > 1:
            raise ModelError(f"the server at {self._client.url} has several models; put one in the place of MODEL: {names}")
        if wanted is not None and wanted not in models:
            raise ModelError(f"the server at {self._client.url} has no model {wanted}; it has {names}")
        return wanted or models[0]

    def _read_props(self) -> dict[str, Any]:
        """The server's /props; empty if it does not tell."""
        try:
            status, body = self._client.get("/props", timeout=_PROPS_S)
        except httpx.HTTPError:
            return {}
        return body if status == HTTPStatus.OK and isinstance(body, dict) else {}

    def _get(self, path: str) -> tuple[int, Any]:
        try:
            return self._client.get(path)
        except httpx.TimeoutException:
            raise EdgeKVError(f"the server at {self._client.url} does not answer in time") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EdgeKVError(f"there is no server at {self._client.url} ({error or type(error).__name__}); `edgekv serve` starts one") from None


# ---- figures whose names may change: what is not understood is left out ---------------------------------------------------------


def _text(where: Any, key: str) -> str | None:
    value = where.get(key) if isinstance(where, dict) else None
    return value if isinstance(value, str) else None


def _count(where: Any, key: str) -> int | None:
    value = where.get(key) if isinstance(where, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _tier_rows(tiers: Any) -> list[Row]:
    """Name and bytes of each tier, and how many of them are in use."""
    rows: list[Row] = []
    for tier in tiers if isinstance(tiers, list) else []:
        name, n_bytes, used = _text(tier, "tier"), _count(tier, "bytes"), _count(tier, "used_bytes")
        if name and n_bytes:
            rows.append((name.replace("_", " "), size_column(n_bytes) + (f"  {size(used)} used" if used else "")))
    return rows


def _rows(figures: dict[str, Any], before: str = "") -> list[Row]:
    """Figures as lines; members of a group have its name in front, *_bytes are shown as sizes. Lists are left out."""
    rows: list[Row] = []
    for key, value in figures.items():
        name = f"{before}{key}".replace("_", " ")
        if isinstance(value, dict):
            rows += _rows(value, f"{name} ")
        elif isinstance(value, str) and value:
            rows.append((name, value))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            is_bytes = key == "bytes" or key.endswith("_bytes")
            rows.append((name.removesuffix(" bytes"), size(int(value))) if is_bytes else (name, f"{value:,.6g}"))
    return rows
