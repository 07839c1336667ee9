"""URLs of listeners and connectors. The standard names the ports (part 2, §2.1; IANA) and leaves URLs to us."""

import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

DEFAULT_PORTS = {"amqp": 5672, "amqps": 5671}

WEBSOCKET_PORTS = {"ws": 80, "wss": 443}

CONNECTING_PORTS = {**DEFAULT_PORTS, **WEBSOCKET_PORTS}
"""The default ports of a client's peers."""

LISTENING_PORTS = {**CONNECTING_PORTS, "http": 80, "https": 443}
"""The default ports of listeners."""

UNIX = "amqp+unix"
"""The scheme of Unix sockets, by which the workers of one router, and no others, connect to each other."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address to listen at or connect to.

    `host` is a name or an address, an IPv6 one without brackets. `port` 0 lets the system choose. For a Unix socket
    (`is_unix`) the host is its path, and there is no port. `path` is that of a WebSocket's URL; empty: it has none.
    """

    scheme: str
    host: str
    port: int
    path: str = ""

    @classmethod
    def parse(cls, url: str, ports: Mapping[str, int] = DEFAULT_PORTS) -> "Endpoint":
        """Parse `amqp://HOST[:PORT]` or `amqps://...`; IPv6 addresses stand in brackets. `ws://...` and `wss://...` may
        have a path.

        Args: ports: the schemes, with their default ports.
        Raises: ValueError, with a reason for people: another scheme, no host, a port outside 0..65535, or anything
            besides host and port (credentials do not belong in URLs, which end up in logs).
        """
        parts, port = _parts(url, ports)
        path = "" if parts.path == "/" else parts.path
        if path and parts.scheme not in WEBSOCKET_PORTS:
            raise ValueError("takes a host and a port, nothing more")
        if not path.isascii():
            raise ValueError("has a path with characters that must be percent-encoded")
        assert parts.hostname is not None
        return cls(parts.scheme, parts.hostname, ports[parts.scheme] if port is None else port, path)

    @property
    def is_unix(self) -> bool:
        """True if it is a Unix socket."""
        return self.scheme == UNIX

    @property
    def secure(self) -> bool:
        """True if TLS comes first, before any AMQP (§5.2.1: a pure TLS port) or HTTP."""
        return self.scheme in ("amqps", "https", "wss")

    @property
    def is_http(self) -> bool:
        """True if it speaks HTTP."""
        return self.scheme in ("http", "https")

    @property
    def is_websocket(self) -> bool:
        """True if AMQP goes through a WebSocket."""
        return self.scheme in WEBSOCKET_PORTS

    @property
    def loopback(self) -> bool:
        """True if only this machine can reach it: an address of the loopback networks, `localhost`, a Unix socket."""
        return self.is_unix or is_loopback(self.host)

    def __str__(self) -> str:
        """Return the URL, with its port."""
        if self.is_unix:
            return f"{UNIX}://{self.host}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a host: an address of the loopback networks, or `localhost`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


SERVICES = {"amqp+srv": "amqp", "amqps+srv": "amqps"}


@dataclass(frozen=True, slots=True)
class Service:
    """A domain whose DNS names its AMQP servers, in SRV records (RFC 2782).

    `scheme` is that of the endpoints, `amqp` or `amqps`.
    """

    scheme: str
    domain: str

    @property
    def name(self) -> str:
        """The name to look up in DNS: `_amqps._tcp.example.org`."""
        return f"_{self.scheme}._tcp.{self.domain}"

    @property
    def host(self) -> str:
        """The name that certificates must have: the domain, since DNS answers can be forged (RFC 6125, 6.2.1)."""
        return self.domain

    @property
    def secure(self) -> bool:
        """True if TLS comes first."""
        return self.scheme == "amqps"

    @property
    def loopback(self) -> bool:
        """False: a domain can name any host."""
        return False

    def __str__(self) -> str:
        """Return the URL."""
        return f"{self.scheme}+srv://{self.domain}"


@lru_cache(maxsize=256)
def endpoint(url: str) -> Endpoint:
    """Parse the URL of a listener: as `Endpoint.parse`, `http://` and `https://` too, or a Unix socket,
    `amqp+unix:///PATH`. Raises: ValueError.
    """
    path = url.removeprefix(f"{UNIX}://")
    return Endpoint(UNIX, path, 0) if path != url and path.startswith("/") else Endpoint.parse(url, LISTENING_PORTS)


def place(url: str) -> Endpoint | Service:
    """Parse the URL of a connector: as `endpoint`, without HTTP, or `amqp+srv://DOMAIN` or `amqps+srv://DOMAIN`.

    Raises: ValueError: as `Endpoint.parse`; a domain has no port.
    """
    if url.startswith(f"{UNIX}:"):
        return endpoint(url)
    parts, port = _parts(url, (*CONNECTING_PORTS, *SERVICES))
    if parts.scheme not in SERVICES:
        return Endpoint.parse(url, CONNECTING_PORTS)
    if port is not None or parts.path not in ("", "/"):
        raise ValueError("takes a domain, nothing more: DNS knows the ports")
    assert parts.hostname is not None
    return Service(SERVICES[parts.scheme], parts.hostname)


def _parts(url: str, schemes: Collection[str]) -> tuple[SplitResult, int | None]:
    """Split a URL, and return its port. Raises: ValueError: another scheme, no host, or more than a host and a path."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"not a URL: {error}") from None
    if parts.scheme not in schemes:
        raise ValueError(f"must begin with {' or '.join(f'{scheme}://' for scheme in schemes)}")
    if parts.username is not None or parts.password is not None:
        raise ValueError("takes no user and no password")
    if parts.query or parts.fragment:
        raise ValueError("takes a host and a port, nothing more")
    if not parts.hostname:
        raise ValueError("names no host")
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("has spaces or control characters")
    return parts, port
