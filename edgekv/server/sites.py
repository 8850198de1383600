"""The names under which a server answers. Another site can give its own name our address (DNS rebinding): then the browser takes
our server for that site's, and only the name in the Host header tells them apart."""

import ipaddress
import re
import socket
from urllib.parse import urlsplit

from msgspec import Struct

from edgekv.common.errors import ConfigError

_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_ORIGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*):(?://(?P<host>\*|[^\s/,*]+)?/?)?", re.IGNORECASE)
_PORTS = {"http": ":80", "https": ":443"}
"""Ports that browsers leave out of an origin."""
_EVERYWHERE = ("0.0.0.0", "::")


class Admitted(Struct, frozen=True):
    """The hosts that requests may name besides localhost and the loopback's addresses."""

    names: tuple[str, ...] = ()
    """Names and addresses, in lower case; an IPv6 address without brackets."""
    any_address: bool = False
    """Every IP address: unlike a name, it cannot be pointed elsewhere."""


def parse_hosts(text: str) -> tuple[str, ...]:
    """The names of a list with commas, as in `Admitted`. Raises ConfigError for an entry that is neither a name nor an address."""
    return tuple(_parse_host(part.strip()) for part in text.split(",") if part.strip())


def _parse_host(text: str) -> str:
    name = text.lower().removesuffix(".").strip("[]")
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        if len(name) > 253 or not _NAME.fullmatch(name):
            raise ConfigError(f"{text!r} is not a host; write a name such as chat.example.org, or an address, without a port") from None
        return name


def parse_origin(text: str) -> str:
    """The origin whose pages may send requests, as the server compares it: localhost, *, an origin as browsers send it, or "app://" for every page of
    programs with this scheme. Raises ConfigError."""
    if text in ("localhost", "*"):
        return text
    match = _ORIGIN.fullmatch(text.strip())
    is_web = match is not None and match["scheme"].lower() in _PORTS
    if match is None or (is_web and match["host"] in (None, "*")):
        raise ConfigError(f"{text!r} is not an origin; write one such as https://example.org, without a path, app:// for programs, or * for any")
    host = "" if match["host"] in (None, "*") else match["host"]
    return f"{match['scheme']}://{host.removesuffix(_PORTS[match['scheme'].lower()]) if is_web else host}"


def is_public(host: str) -> bool:
    """Whether other machines can reach a server that listens on `host`."""
    try:
        return not ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    except (OSError, ValueError):  # an IPv6 address
        return host not in ("::1", "[::1]")


def is_here(url: str) -> bool:
    """Whether a server is one of this machine, which no proxy stands before, whatever the variables for proxies say."""
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


def admitted(host: str, allowed: tuple[str, ...], is_public: bool) -> Admitted:
    """The admitted hosts of a server that listens on `host`. If other machines can reach it, any address and the machine's own name are
    admitted too."""
    names = {*allowed} if host in _EVERYWHERE else {*allowed, *parse_hosts(host)}
    if is_public:
        own = socket.gethostname().lower()
        names |= {own, f"{own.split('.')[0]}.local"}
    return Admitted(tuple(sorted(names)), is_public)
