"""Groups of peers, and what a group may do."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from amqpmesh.policies import variables
from amqpmesh.policies.access import Peer, is_reserved
from amqpmesh.policies.claims import ClaimMatch
from amqpmesh.policies.limits import UNLIMITED, Allowance
from amqpmesh.policies.managing import Managed
from amqpmesh.policies.names import NamePattern
from amqpmesh.policies.peer_index import CLAIM, Condition, Network, host_address, names, networks
from amqpmesh.policies.user_ids import UserId

LONGEST: Final = 1_024
"""Characters of a name or a pattern in a group at most: each is compared with each peer, or with each address."""


class May(StrEnum):
    """The rights that are no matter of a single address."""

    DYNAMIC = "dynamic"
    """Links with a dynamic source or target (§3.5.3, §3.5.4)."""
    ANONYMOUS = "anonymous"
    """Links without an address in the target. The address of each message is judged, too."""
    COPY = "copy"
    """Receivers of copies (§3.5.3, distribution-mode)."""
    CONTAINER = "container"
    """Addresses at a certain router or container: `name@container`."""
    TELEMETRY = "telemetry"
    """All that routers record, or a tenant's own part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Peers, by what they show, and their rights. A condition that is empty holds for each peer."""

    name: str
    key: str
    """The place of the group in the policy: `group[0]`."""
    tenant: str = ""
    """The key of its tenant."""
    users: tuple[NamePattern, ...] = ()
    certificates: tuple[NamePattern, ...] = ()
    networks: tuple[Network, ...] = ()
    groups: tuple[NamePattern, ...] = ()
    """Patterns of the groups that a token names."""
    claims: tuple[ClaimMatch, ...] = ()
    """Conditions on the claims of a token; each of them has to be met."""
    send: tuple[str, ...] = ()
    """Patterns of addresses; they may have variables."""
    receive: tuple[str, ...] = ()
    may: frozenset[May] = frozenset()
    manage: frozenset[Managed] = frozenset()
    """At the management node of a router, for what the tenant may see there."""
    user_id: UserId | None = None
    """The user-ids of messages; None: the group says nothing of them."""
    limits: Allowance = UNLIMITED
    """Of each of its users, not of all together."""

    def has(self, peer: Peer) -> bool:
        """Tell whether a peer, whose tenant is known, is in the group."""
        return (
            peer.tenant == self.tenant
            and (not self.users or _any(self.users, peer.user))
            and (not self.certificates or _any(self.certificates, peer.certificate_subject))
            and (not self.networks or _is_within(self.networks, peer.host))
            and (not self.groups or any(_any(self.groups, name) for name in peer.groups))
            and all(each.fits(peer.claims) for each in self.claims)
        )

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions on a peer of its tenant, to find the group by."""
        return (
            names("user", self.users),
            names("certificate_subject", self.certificates),
            networks(self.networks),
            names("groups", self.groups),
            *(names(CLAIM + each.name, each.patterns) for each in self.claims),
        )


def _any(patterns: tuple[NamePattern, ...], name: str | None) -> bool:
    return name is not None and any(each.matches(name) for each in patterns)


def _is_within(networks: tuple[Network, ...], host: str) -> bool:
    address = host_address(host)
    return address is not None and any(address in each for each in networks)


def pattern_fault(pattern: str) -> str | None:
    """Return the reason to refuse a pattern of addresses in a group; None: there is none."""
    faults: tuple[Callable[[str], str | None], ...] = (name_fault, variables.fault, _reservation)
    return next((fault for check in faults if (fault := check(pattern)) is not None), None)


def name_fault(name: str) -> str | None:
    """Return the reason to refuse a name, or a pattern of names, in a group; None: there is none."""
    if len(name) > LONGEST:
        return f"must be at most {LONGEST} characters"
    return None if name else "must not be empty"


def _reservation(pattern: str) -> str | None:
    fixed = variables.with_placeholders(pattern)  # the `$` of a variable is none of the address
    return "is a router's own address, which no pattern gives: see manage" if is_reserved(fixed) else None
