"""Redirects: the answer to an attach or to a connection, and the rules of a client that follows it.

The redirect of an address is that of its most specific pattern. It applies to each peer that names the address: as
target, as source, or in the `to` of a message (§2.8.16, §2.8.18).

A redirect lets a peer choose the host that a client connects to. So the client goes only to hosts that its user named,
follows a limited number of redirects in a row, never goes in circles, and never leaves TLS for a connection without it.
A redirect that it does not follow costs no octet: the client shows no password and no certificate, and opens no
connection.
"""

import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

MAX_REDIRECTS: Final = 5
"""Redirects that are followed in a row. A longer row is a circle, or an error of the peers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    """The place that a redirect names. A field that is None does not change."""

    hostname: str | None = None
    """The host to name in `open`, SASL and TLS."""
    network_host: str | None = None
    """The host to connect to: a DNS name or an IP address. None: `hostname`."""
    port: int | None = None
    address: str | None = None
    """The address to attach to."""

    def for_address(self, name: str) -> "Redirect":
        """Return this redirect for a peer that asked for `name`: its address is `name`, unless the redirect has one."""
        return self if self.address is not None else replace(self, address=name)


def comes_back(first: Redirect, rule: Callable[[str], Redirect | None], is_here: Callable[[Redirect], bool]) -> bool:
    """Tell whether a peer that follows a redirect, and further ones of this router, goes in a circle.

    Args: rule: the redirect of an address here. is_here: tells whether a redirect leads to this router. Redirects of
        other routers are not known here.
    """
    met: set[str] = set()
    redirect: Redirect | None = first
    while redirect is not None and is_here(redirect):
        # Without an address of its own it sends each peer to the address that the peer asked for.
        if redirect.address is None or redirect.address in met:
            return True
        met.add(redirect.address)
        redirect = rule(redirect.address)
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAddress:
    """The place that a connection goes to, and the hosts that it names there."""

    network_host: str
    port: int
    #: True if TLS comes first. Redirects do not change it.
    secure: bool
    #: The host to ask for, in `open` and SASL.
    hostname: str
    #: The name that the certificate there must have, in TLS.
    certified: str
    #: The path of the WebSocket that AMQP goes through; None: there is none. Redirects do not change it.
    websocket: str | None = None

    @classmethod
    def named(
        cls, host: str, port: int, *, secure: bool, hostname: str | None = None, websocket: str | None = None
    ) -> "PeerAddress":
        """Make the place that a user named. Args: hostname: the host to ask for there; None: `host`."""
        wanted = host if hostname is None else hostname
        return cls(network_host=host, port=port, secure=secure, hostname=wanted, certified=host, websocket=websocket)

    def moved(self, redirect: Redirect) -> "PeerAddress":
        """Return the place that a redirect leads to from here. Fields that the redirect does not set stay."""
        return PeerAddress(
            network_host=redirect.network_host or redirect.hostname or self.network_host,
            port=redirect.port or self.port,
            secure=self.secure,
            hostname=redirect.hostname or self.hostname,
            certified=redirect.hostname or self.certified,
            websocket=self.websocket,
        )

    def is_same(self, other: "PeerAddress") -> bool:
        """Tell whether connections to both places end at the same peer, as far as redirects can tell."""
        return self.secure == other.secure and _key(self, None) == _key(other, None)

    def __str__(self) -> str:
        """Return the URL, with its port."""
        host = f"[{self.network_host}]" if ":" in self.network_host else self.network_host
        return f"{self.scheme}://{host}:{self.port}{self.websocket or ''}"

    @property
    def scheme(self) -> str:
        """The scheme of its URL."""
        return f"{'amqp' if self.websocket is None else 'ws'}{'s' * self.secure}"

    @property
    def described(self) -> str:
        """Return the URL for people, and the host to ask for there if it is another one."""
        wants_other = _canonical(self.hostname) != _canonical(self.network_host)
        return f"{self} as {self.hostname}" if wants_other else str(self)


@dataclass(frozen=True, slots=True)
class RedirectChain:
    """Redirects that a client has followed in a row: the place where it is now, and the places before it.

    `RedirectChain(place)` is the start: no redirect was followed yet.
    """

    place: PeerAddress
    #: The address to attach to there; None: a whole connection is redirected.
    address: str | None = None
    before: tuple[tuple[str, str, int, str | None], ...] = ()

    @property
    def is_redirected(self) -> bool:
        """Tell whether a redirect led here."""
        return bool(self.before)


class NotFollowedError(Exception):
    """A redirect that is not followed; the message gives the reason for people."""


@dataclass(frozen=True, slots=True)
class RedirectPolicy:
    """The rules for redirects to follow.

    Args: own: hosts that the user named for connecting: they are allowed. allowed: further ones: `b.example`,
        `*.example` for all names that end so, `*` for any; IP addresses without brackets. limit: the most redirects in
        a row.
    """

    own: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    limit: int = MAX_REDIRECTS

    def allows(self, host: str) -> bool:
        """Tell whether the client may connect to a host, name it, and show it credentials."""
        if not _is_host(host):
            return False
        canonical = _canonical(host)
        return any(canonical == _canonical(own) for own in self.own) or any(
            _falls_under(canonical, pattern) for pattern in self.allowed
        )

    def follow(self, chain: RedirectChain, redirect: Redirect) -> RedirectChain:
        """Return the chain with one more redirect.

        Raises: NotFollowedError: the redirect names no place or a host that is not allowed; it leads back to a place of
            this row; or the row is longer than `limit`.
        """
        if redirect == Redirect():
            raise NotFollowedError("it names no place")
        for host in (redirect.hostname, redirect.network_host):
            if host is not None and not self.allows(host):
                raise NotFollowedError(f"the host {_shown(host)} is not allowed")
        place = chain.place.moved(redirect)
        address = chain.address if redirect.address is None else redirect.address
        before = (*chain.before, _key(chain.place, chain.address))
        if _key(place, address) in before:
            raise NotFollowedError(f"redirects lead in a circle, back to {place.described}")
        if len(before) > self.limit:
            raise NotFollowedError(f"it is more than the {self.limit} in a row that are followed")
        return RedirectChain(place, address, before)


def pattern_refusal(patterns: Iterable[str]) -> str | None:
    """Return the reason why these are no patterns of hosts as `RedirectPolicy` takes them; None: they are."""
    for pattern in patterns:
        host = pattern.removeprefix("*.")
        if pattern != "*" and not (_is_host(host) and "*" not in host):
            return f"{pattern!r} is no host: a name, an IP address, *.NAME or *"
    return None


def _falls_under(canonical: str, pattern: str) -> bool:
    if pattern == "*":
        return True
    if pattern.startswith("*."):
        return canonical.endswith(f".{_canonical(pattern[2:])}")
    return canonical == _canonical(pattern)


def _is_host(host: str) -> bool:
    """Tell whether a text can be a host name or an IP address that every program reads in the same way."""
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return False
        return True
    return host not in ("", ".") and all(character.isalnum() or character in "-_." for character in host)


def _canonical(host: str) -> str:
    """Return the normal spelling of a host."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower().removesuffix(".")


def _key(place: PeerAddress, address: str | None) -> tuple[str, str, int, str | None]:
    return _canonical(place.hostname), _canonical(place.network_host), place.port, address


def _shown(host: str) -> str:
    """Return a host that a peer named, cut, since it can be of any length."""
    text = repr(host)
    return text if len(text) <= 80 else f"{text[:77]}..."
