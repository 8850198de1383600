"""Images and sound that requests name by address. The server would fetch with its own place in the network, so it fetches only from hosts that
its options name; everything else comes as data URLs."""

import base64
import socket
import time
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from edgekv.common.errors import ConfigError

MOST_BYTES = 10 << 20
_MOST_STEPS = 5  # addresses, each the redirect of the one before
_MOST_S = 30.0
_TRANSLATED = IPv6Network("64:ff9b::/96")  # NAT64: an IPv4 address within


class MediaHosts:
    """Fetches from `hosts`, as edgekv.server.sites.parse_hosts returns them. Any thread."""

    def __init__(self, hosts: tuple[str, ...]):
        self._hosts = frozenset(hosts)

    def answer(self, url: str) -> tuple[bool, str]:
        """Whether the content of an address was fetched; it as a data URL, or why not."""
        try:
            return True, "data:image/any;base64," + base64.b64encode(self.fetch(url)).decode()
        except ConfigError as error:
            return False, str(error)

    def fetch(self, url: str) -> bytes:
        """The content of an address. Raises ConfigError if the address, or one that it redirects to, may not be fetched, or does not answer."""
        import httpx2 as httpx

        end = time.monotonic() + _MOST_S
        # no proxy of the environment: it would resolve the name again
        with httpx.Client(trust_env=False, timeout=10.0, follow_redirects=False) as client:
            try:
                where = httpx.URL(url)
                for _ in range(_MOST_STEPS):
                    host = where.host.removesuffix(".")
                    if where.scheme not in ("http", "https") or not host:
                        raise ConfigError("media come as data URLs, or from an http or https address")
                    placed = where.copy_with(host=self._address(host, where.port or {"http": 80, "https": 443}[where.scheme]), userinfo=b"")
                    headers = {"Host": where.netloc.decode(), "Accept-Encoding": "identity"}
                    with client.stream("GET", placed, headers=headers, extensions={"sni_hostname": host}) as response:
                        if response.has_redirect_location:
                            where = where.join(response.headers["location"])
                            continue
                        if response.status_code != 200:
                            raise ConfigError(f"{host} answered {response.status_code}, and no image or sound; send it as a data URL")
                        return _content(response.iter_raw(), host, end)
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                raise ConfigError(f"the address of an image or a sound cannot be fetched ({error}); send it as a data URL") from None
        raise ConfigError(f"the address of an image or a sound leads on more than {_MOST_STEPS - 1} times; send it as a data URL")

    def _address(self, host: str, port: int) -> str:
        """The address to connect to: a name that is resolved twice can be two machines."""
        advice = "send the image or sound as a data URL (data:image/png;base64,...)"
        if _spelled(host) not in self._hosts:
            raise ConfigError(f"nothing is fetched from {host[:100]!r}; {advice}, or start the server with --allow-media-host and this name")
        try:
            found = [entry[4][0] for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        except (OSError, UnicodeError):
            raise ConfigError(f"the name {host[:100]!r} has no address; {advice}") from None
        for one in found:
            address = ip_address(str(one).partition("%")[0])
            if not (_is_public(address) or str(address) in self._hosts or (address.is_loopback and "localhost" in self._hosts)):
                raise ConfigError(f"{host!r} is at {address} within this network, from which nothing is fetched; {advice}, or start the server with "
                                  "--allow-media-host and this address too")
        return str(found[0])


def _content(pieces, host: str, end: float) -> bytes:
    content = bytearray()
    for piece in pieces:
        content += piece
        if len(content) > MOST_BYTES:
            raise ConfigError(f"{host} sends more than {MOST_BYTES >> 20} MiB; send a smaller image or sound")
        if time.monotonic() > end:
            raise ConfigError(f"{host} takes more than {_MOST_S:g} s; send the image or sound as a data URL")
    return bytes(content)


def _spelled(host: str) -> str:
    """As parse_hosts spells a host."""
    try:
        return str(ip_address(host))
    except ValueError:
        return host.lower()


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address) and (address.ipv4_mapped or address.sixtofour or address.teredo or address in _TRANSLATED):
        return False  # an IPv4 address within, of any range
    return address.is_global and not address.is_multicast
