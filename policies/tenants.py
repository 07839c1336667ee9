"""Tenants: whose addresses a peer names.

A tenant is chosen by what the connection shows, never by what a message says. A peer of one tenant cannot name an
address of another.
"""

from dataclasses import dataclass
from typing import Final

from amqpmesh.policies.access import Peer
from amqpmesh.policies.claims import ClaimMatch
from amqpmesh.policies.limits import UNLIMITED, Allowance
from amqpmesh.policies.names import NamePattern
from amqpmesh.policies.peer_index import CLAIM, Condition, names

OPERATOR: Final = "operator"
"""The reserved name of the tenant that has the routers' own nodes, and the links that routers attach themselves."""

LONGEST: Final = 64
"""Characters of the longest name: it is a part of the key of each address, also between routers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """One way into a tenant: all that is given has to match."""

    listener: NamePattern | None = None
    hostname: NamePattern | None = None
    """Of the hostname in the peer's `open` (§2.7.1), which the peer chooses freely."""
    user: NamePattern | None = None
    """Of the user that was proved."""
    certificate: NamePattern | None = None
    """Of the subject of the client certificate, as RFC 4514 writes it: `CN=alice,O=Example`."""
    claim: ClaimMatch | None = None
    """Of a claim of the peer's token."""

    def fits(self, peer: Peer) -> bool:
        """Tell whether a peer comes in this way. What the peer does not show matches no pattern, not even `*`."""
        return (self.claim is None or self.claim.fits(peer.claims)) and all(
            pattern is None or (shown is not None and pattern.matches(shown))
            for pattern, shown in (
                (self.listener, peer.listener or None),
                (self.hostname, peer.hostname),
                (self.user, peer.user),
                (self.certificate, peer.certificate_subject),
            )
        )

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions on a peer, to find the way by."""
        shown = ("listener", self.listener), ("hostname", self.hostname), ("user", self.user)
        found = tuple(
            names(attribute, () if pattern is None else (pattern,))
            for attribute, pattern in (*shown, ("certificate_subject", self.certificate))
        )
        return found if self.claim is None else (*found, names(CLAIM + self.claim.name, self.claim.patterns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant, and the ways into it."""

    name: str
    match: tuple[Match, ...] = ()
    default: bool = False
    """A peer that comes into no other tenant is in this one."""
    weight: float = 1.0
    """Its part of what tenants contend for, next to the weights of others."""
    limits: Allowance = UNLIMITED

    @property
    def key(self) -> str:
        """The first part of the keys of its addresses: the operator's is empty, as without tenants."""
        return "" if self.name == OPERATOR else self.name


def fault(name: str) -> str | None:
    """Return the reason to refuse the name of a tenant; None: there is none."""
    if not name:
        return "must not be empty"
    if len(name) > LONGEST:
        return f"must be at most {LONGEST} characters"
    # Names appear in addresses of entities, in file names of records, and on terminals.
    if not (name.isascii() and all(each.isalnum() or each in "-_" for each in name)):
        return "must be letters and digits of ASCII, - and _"
    return None
