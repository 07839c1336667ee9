"""The policy of a mesh: its tenants, and the groups of peers with their rights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from amqpmesh.policies import variables
from amqpmesh.policies.rights import Rights
from amqpmesh.policies.tenants import tenant_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqpmesh.policies.access import Peer
    from amqpmesh.policies.groups import Group
    from amqpmesh.policies.tenants import Tenant


class Admitted(NamedTuple):
    """A peer that the policy admits: with its tenant and its rights."""

    peer: Peer
    rights: Rights


class Policy:
    """The tenants and groups of a policy. Immutable: a changed policy is a new object.

    Rights of all groups of a peer add up. There are no refusals, so the order of groups does not matter.
    """

    def __init__(self, tenants: Sequence[Tenant], groups: Sequence[Group]) -> None:
        """Args: tenants: in the order in which they are tried; none: each peer is in the operator's."""
        self.tenants = tuple(tenants)
        self.groups = tuple(groups)
        self._by_tenant: dict[str, list[Group]] = {}
        for group in self.groups:
            self._by_tenant.setdefault(group.tenant, []).append(group)
        #: Whether any pattern has the variable of the user: else peers of the same groups have the same rights.
        self._names_users = any(
            "user" in variables.names(pattern) for each in self.groups for pattern in (*each.send, *each.receive)
        )
        self._rights: WeakValueDictionary[tuple[tuple[str, ...], str, str], Rights] = WeakValueDictionary()

    def admit(self, peer: Peer) -> Admitted | None:
        """Return a peer with its tenant and its rights; None: it is in no tenant.

        Args: peer: its `tenant` is ignored.
        """
        tenant = tenant_of(self.tenants, peer) if self.tenants else None
        if self.tenants and tenant is None:
            return None
        peer = replace(peer, tenant="" if tenant is None else tenant.key)
        groups = tuple(each for each in self._by_tenant.get(peer.tenant, ()) if each.has(peer))
        user = (peer.user or "") if self._names_users else ""
        key = tuple(each.key for each in groups), peer.tenant, user
        rights = self._rights.get(key)
        if rights is None:
            name = "" if tenant is None else tenant.name
            rights = self._rights[key] = Rights(self, groups, {"user": user, "tenant": name})
        return Admitted(peer, rights)
