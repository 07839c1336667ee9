"""`amqp://host:port` taken apart; the standard names the ports (part 2, §2.1; IANA) and leaves URLs to us."""

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

DEFAULT_PORTS = {"amqp": 5672, "amqps": 5671}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to listen or to connect.

    `host` is a name or an address, an IPv6 one without brackets; `port` 0 lets the system choose.
    """

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> "Endpoint":
        """Read `amqp://HOST[:PORT]` or `amqps://...`; IPv6 addresses stand in brackets.

        Raises: ValueError, with a reason that can be shown: another scheme, no host, a port outside 0..65535, or
        anything besides host and port (credentials do not belong into URLs: they end up in logs).
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ValueError(f"not a URL: {error}") from None
        if parts.scheme not in DEFAULT_PORTS:
            raise ValueError(f"must begin with {' or '.join(f'{scheme}://' for scheme in DEFAULT_PORTS)}")
        if parts.username is not None or parts.password is not None:
            raise ValueError("takes no user and no password")
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ValueError("takes a host and a port, nothing more")
        if not parts.hostname:
            raise ValueError("names no host")
        if any(character.isspace() or not character.isprintable() for character in url):
            raise ValueError("has spaces or control characters")
        return cls(parts.scheme, parts.hostname, DEFAULT_PORTS[parts.scheme] if port is None else port)

    @property
    def secure(self) -> bool:
        """Whether TLS comes first, before any AMQP (§5.2.1: a pure TLS port)."""
        return self.scheme == "amqps"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it: an address of the loopback networks, or `localhost`."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        """The URL, with its port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"
