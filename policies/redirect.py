"""Where instead: what an attach is answered with, or a whole connection, and where whoever is told so goes.

The rule of an address is the redirect that its most specific pattern says. It holds for whoever names the address, as
the target of what is sent, as the source of what is received, or in the `to` of one message (§2.8.16, §2.8.18).

Whoever follows redirects is led by its peers. So it goes only to hosts that its user named, and no more often in a row
than a limit; it never goes in circles, and never from TLS to a connection without. What it does not follow costs not
one octet: neither a password nor a certificate is shown, and no connection is opened.
"""

import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

MAX_REDIRECTS: Final = 5
"""Redirects that are followed in a row. Whoever needs more is led around, or by somebody who does not know the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    """A place elsewhere. What is None is not said: for who follows it stays as it is."""

    hostname: str | None = None
    """What `open`, SASL and TLS are to name there."""
    network_host: str | None = None
    """Where to connect: a name of DNS, or an IP address. None: to `hostname`."""
    port: int | None = None
    address: str | None = None
    """What to attach to there."""

    def for_address(self, name: str) -> "Redirect":
        """The same, for who asked for `name`: that is its address there, too, unless another is said."""
        return self if self.address is not None else replace(self, address=name)


def comes_back(first: Redirect, rule: Callable[[str], Redirect | None], is_here: Callable[[Redirect], bool]) -> bool:
    """Whether who follows a redirect, and those that it meets here, never arrives.

    Args: rule: the redirect of an address here. is_here: whether a redirect leads to this router. What others do with
        who comes to them is theirs.
    """
    met: set[str] = set()
    redirect: Redirect | None = first
    while redirect is not None and is_here(redirect):
        # Without an address of its own it sends whoever comes to the address that it was asked for.
        if redirect.address is None or redirect.address in met:
            return True
        met.add(redirect.address)
        redirect = rule(redirect.address)
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a connection goes, and what is named there."""

    network_host: str
    port: int
    #: Whether TLS comes first. No redirect says so: it stays as it is.
    secure: bool
    #: Which host is wanted, in `open` and SASL.
    hostname: str
    #: Whom the certificate there has to name, in TLS.
    certified: str

    @classmethod
    def named(cls, host: str, port: int, *, secure: bool, hostname: str | None = None) -> "Place":
        """A place that the user named. Args: hostname: which host is wanted there; None: that one."""
        wanted = host if hostname is None else hostname
        return cls(network_host=host, port=port, secure=secure, hostname=wanted, certified=host)

    def moved(self, redirect: Redirect) -> "Place":
        """Where a redirect leads from here. What it does not say stays as it is."""
        return Place(
            network_host=redirect.network_host or redirect.hostname or self.network_host,
            port=redirect.port or self.port,
            secure=self.secure,
            hostname=redirect.hostname or self.hostname,
            certified=redirect.hostname or self.certified,
        )

    def is_same(self, other: "Place") -> bool:
        """Whether connections to both end at the same peer, as far as redirects say where."""
        return self.secure == other.secure and _key(self, None) == _key(other, None)

    def __str__(self) -> str:
        """The URL, with its port."""
        host = f"[{self.network_host}]" if ":" in self.network_host else self.network_host
        return f"{'amqps' if self.secure else 'amqp'}://{host}:{self.port}"

    @property
    def described(self) -> str:
        """The URL, and which host is wanted there if it is another one, for people."""
        wants_other = _canonical(self.hostname) != _canonical(self.network_host)
        return f"{self} as {self.hostname}" if wants_other else str(self)


@dataclass(frozen=True, slots=True)
class Stop:
    """Where who follows redirects is now, and where it came by: `Stop(place)` is where a row of them begins."""

    place: Place
    #: What it attaches to there; None: it is a whole connection that is redirected.
    address: str | None = None
    before: tuple[tuple[str, str, int, str | None], ...] = ()

    @property
    def is_redirected(self) -> bool:
        """Whether a redirect led here."""
        return bool(self.before)


class NotFollowedError(Exception):
    """A redirect is not followed; the message says why, for people."""


@dataclass(frozen=True, slots=True)
class Following:
    """Which redirects are followed.

    Args: own: hosts that the user named for connecting: they are allowed. allowed: further ones: `b.example`,
        `*.example` for all names that end so, `*` for any; IP addresses without brackets. limit: of them in a row.
    """

    own: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    limit: int = MAX_REDIRECTS

    def allows(self, host: str) -> bool:
        """Whether to connect to a host, or to name it, and to show it who we are."""
        if not _is_host(host):
            return False
        canonical = _canonical(host)
        return any(canonical == _canonical(own) for own in self.own) or any(
            _falls_under(canonical, pattern) for pattern in self.allowed
        )

    def follow(self, stop: Stop, redirect: Redirect) -> Stop:
        """Where to go from `stop`.

        Raises: NotFollowedError: a host is not allowed, the same place was met before in this row, or it is too long.
        """
        if redirect == Redirect():
            raise NotFollowedError("it does not say where")
        for host in (redirect.hostname, redirect.network_host):
            if host is not None and not self.allows(host):
                raise NotFollowedError(f"the host {_shown(host)} is not allowed")
        place = stop.place.moved(redirect)
        address = stop.address if redirect.address is None else redirect.address
        before = (*stop.before, _key(stop.place, stop.address))
        if _key(place, address) in before:
            raise NotFollowedError(f"redirects lead in a circle, back to {place.described}")
        if len(before) > self.limit:
            raise NotFollowedError(f"it is one more than the {self.limit} in a row that are followed")
        return Stop(place, address, before)


def pattern_refusal(patterns: Iterable[str]) -> str | None:
    """Why these are no patterns of hosts, as `Following` takes them; None: they are."""
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
    """Whether it may be the name of a host, or an IP address: nothing that is read as more than one by anybody."""
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return False
        return True
    return host not in ("", ".") and all(character.isalnum() or character in "-_." for character in host)


def _canonical(host: str) -> str:
    """One spelling of a host."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower().removesuffix(".")


def _key(place: Place, address: str | None) -> tuple[str, str, int, str | None]:
    return _canonical(place.hostname), _canonical(place.network_host), place.port, address


def _shown(host: str) -> str:
    """A host that a peer named: cut, as it can be of any length."""
    text = repr(host)
    return text if len(text) <= 80 else f"{text[:77]}..."
