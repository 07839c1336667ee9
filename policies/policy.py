"""The policy of a mesh: its tenants, and the groups of peers with their rights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from amqpmesh.policies import variables
from amqpmesh.policies.exports import NO_EXPORTS
from amqpmesh.policies.limits import UNLIMITED
from amqpmesh.policies.peer_index import PeerIndex
from amqpmesh.policies.rights import Rights
from amqpmesh.policies.scopes import ScopeRights

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from amqpmesh.policies.access import Peer
    from amqpmesh.policies.exports import Exports
    from amqpmesh.policies.groups import Group
    from amqpmesh.policies.limits import Allowance
    from amqpmesh.policies.tenants import Tenant


class Admitted(NamedTuple):
    """A peer that the policy admits: with its tenant and its rights."""

    peer: Peer
    rights: Rights


class Policy:
    """The tenants and groups of a policy. Immutable: a changed policy is a new object.

    Rights of all groups of a peer add up. There are no refusals, so the order of groups does not matter.
    """

    def __init__(
        self,
        tenants: Sequence[Tenant],
        groups: Sequence[Group],
        exports: Exports = NO_EXPORTS,
        secret: bytes = b"",
    ) -> None:
        """Args: tenants: in the order in which they are tried; none: each peer is in the operator's.
        secret: made of the policy's text: all routers that have it have the same one, and no tenant knows it.
        """
        self.tenants = tuple(tenants)
        self.groups = tuple(groups)
        self.exports = exports
        self.secret = secret
        self._ways = PeerIndex(((tenant, match), match.conditions) for tenant in self.tenants for match in tenant.match)
        self._by_name = {(each.tenant, each.name): each for each in self.groups}
        self._by_key = {each.key: each for each in self.tenants}
        self._default = next((each for each in self.tenants if each.default), None)
        self._sharers = len({"", *self._by_key})
        #: Whether any limit is one of frames or of session windows.
        limits = (*(each.limits for each in self.tenants), *(each.limits for each in self.groups))
        self.limits_frames = any((each.frame or each.session_window) is not None for each in limits)
        by_tenant: dict[str, list[Group]] = {}
        for group in self.groups:
            by_tenant.setdefault(group.tenant, []).append(group)
        self._groups = {
            tenant: PeerIndex((each, each.conditions) for each in groups) for tenant, groups in by_tenant.items()
        }
        #: The variables of all patterns: peers with the same values, groups and scopes have the same rights.
        self._variables = frozenset(
            name for each in self.groups for pattern in (*each.send, *each.receive) for name in variables.names(pattern)
        )
        self._rights: WeakValueDictionary[tuple[object, ...], Rights] = WeakValueDictionary()

    def group(self, tenant: str, name: str) -> Group | None:
        """Return a group of a tenant by its name. Args: tenant: as of `Tenant.key`."""
        return self._by_name.get((tenant, name))

    def has_tenant(self, key: str) -> bool:
        """Tell whether there is a tenant. Args: key: as of `Tenant.key`."""
        return key in self._by_key

    def tenant(self, key: str) -> Tenant | None:
        """Return a tenant. Args: key: as of `Tenant.key`."""
        return self._by_key.get(key)

    def part(self, whole: int) -> int:
        """Return what each tenant, the operator as well, has of a limit: equal parts, at least 1.

        A part is the same, whatever the others use: so none of them learns it.
        """
        return max(1, whole // self._sharers)

    def limits_of(self, key: str) -> Allowance:
        """Return the limits of a tenant. Args: key: as of `Tenant.key`."""
        tenant = self._by_key.get(key)
        return UNLIMITED if tenant is None else tenant.limits

    def admit(self, peer: Peer) -> Admitted | None:
        """Return a peer with its tenant and its rights; None: it is in no tenant.

        Args: peer: its `tenant` is ignored.
        """
        tenant = self.tenant_of(peer)
        if self.tenants and tenant is None:
            return None
        peer = replace(peer, tenant="" if tenant is None else tenant.key)
        index = self._groups.get(peer.tenant)
        groups = () if index is None else tuple(each for each in index.candidates(peer) if each.has(peer))
        return Admitted(peer, self._rights_of(peer, tenant, groups))

    def vouched(self, peer: Peer, names: Iterable[str]) -> Rights:
        """Return the rights of a peer whose tenant and groups another router has found by the same policy.

        Args: peer: with its tenant. names: of its groups; those that this policy does not have give nothing.
        """
        found = (self._by_name.get((peer.tenant, name)) for name in names)
        groups = tuple(each for each in found if each is not None)
        return self._rights_of(peer, self._by_key.get(peer.tenant), groups)

    def _rights_of(self, peer: Peer, tenant: Tenant | None, groups: tuple[Group, ...]) -> Rights:
        values = self._values(peer, "" if tenant is None else tenant.name)
        key = tuple(each.key for each in groups), peer.tenant, tuple(values.items()), peer.scopes
        rights = self._rights.get(key)
        if rights is None:
            scopes = ScopeRights(peer.scopes, peer.tenant) if peer.scopes else None
            rights = self._rights[key] = Rights(self, groups, values, tenant, scopes)
        return rights

    def tenant_of(self, peer: Peer) -> Tenant | None:
        """Return the tenant that the peer's token names, else the first that it comes into, else the default.

        Returns: None: the peer comes into none, or its token names one that there is not.
        """
        if peer.token_tenant is not None:
            return next((tenant for tenant in self.tenants if tenant.name == peer.token_tenant), None)
        ways = (tenant for tenant, match in self._ways.candidates(peer) if match.fits(peer))
        return next(ways, self._default)

    def _values(self, peer: Peer, tenant: str) -> dict[str, tuple[str, ...]]:
        """Return the values of the variables that the policy has. Args: tenant: the name of the peer's tenant."""
        values: dict[str, tuple[str, ...]] = {}
        for name in self._variables:
            if name == "user":
                values[name] = () if peer.user is None else (peer.user,)
            elif name == "tenant":
                values[name] = (tenant,)
            else:
                values[name] = peer.claims.get(variables.claim_in(name), ())
        return values
