"""Clients of other routers, and what they may do here, as far as their routers are believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amqpmesh.policies.access import Peer
from amqpmesh.policies.managing import CONFIDENTIAL, Manage
from amqpmesh.policies.scopes import managing
from amqpmesh.router.access.needs import is_of_dynamic_node
from amqpmesh.router.access.rights import is_of_mesh, lack
from amqpmesh.router.delivery.vouches import VOUCH, digest
from amqpmesh.router.kernel import read_head

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from amqpmesh.policies.rights import Rights
    from amqpmesh.router.context import Context


@dataclass(frozen=True, slots=True)
class VouchedPeer:
    """A client of another router, which has signed for it."""

    router: str
    peer: Peer
    rights: Rights | None
    """None: a policy rules it neither there nor here."""
    may_change: bool
    """True if its router is believed in that, and its listener or its groups permit changes."""
    is_manager: bool = False
    """True if its listener permits all changes."""

    @property
    def may_read(self) -> bool:
        """True if it may read at the management node."""
        return self.rights is None or self.rights.management is not None

    def may_read_kind(self, kind: str) -> bool:
        """Tell whether it may read entities of a type, as far as its tenant has any."""
        if kind in CONFIDENTIAL and (self.rights is None or self.may_change_kind(kind)):
            return self.may_change_kind(kind)
        return self.rights is None or self.rights.manage(Manage.READ, kind) is not None

    def may_change_kind(self, kind: str) -> bool:
        """Tell whether it may change entities of a type."""
        by_groups = self.rights is not None and self.rights.manage(Manage.WRITE, kind) is not None
        return self.may_change and (self.is_manager or by_groups)

    @property
    def may_change_all(self) -> bool:
        """True if it may change entities of all types."""
        by_groups = self.rights is not None and self.rights.manage(Manage.WRITE, None) is not None
        return self.may_change and (self.is_manager or by_groups)

    def may_send(self, context: Context, name: str, container: str | None) -> bool:
        """Tell whether an answer to it may go to an address."""
        if self.rights is None or self.peer.tenant:
            return may_answer_unknown(context, name, container)
        return lack(context, self.rights, name, container, sends=True) is None


def may_answer_unknown(context: Context, name: str, container: str | None) -> bool:
    """Tell whether an answer may go to an address for a client of another router, whose rights are not known here.

    A dynamic node of a router is in order. Another container is not to be reached by an invented name.
    """
    return is_of_dynamic_node(name) and is_of_mesh(context, container)


def vouched_peer(context: Context, annotations: Mapping[Any, Any], request: bytes) -> VouchedPeer | None:
    """Return the client of another router that a request comes from; None: no router vouches for it.

    Args: annotations: the delivery annotations of the request. Those of the mesh come by lanes only. request: all its
        octets.
    """
    data = annotations.get(VOUCH)
    head = read_head(request, complete=True)
    if data is None or head is None or context.vouching is None:
        return None
    from amqpmesh.topology.signing import UntrustedError  # a router of no mesh does not load the topology
    from amqpmesh.topology.workers import covers

    try:
        if not isinstance(data, bytes):
            raise UntrustedError("no octets")
        vouch = context.vouching.believe(data, digest(request, head.bare_at))
    except UntrustedError as error:
        context.denied += 1
        context.log.warning("vouch not believed", reason=error.reason)
        if context.audit is not None:
            context.audit.of_host("vouch not believed", "", reason=error.reason)
        return None
    peer = Peer(
        container_id=vouch.container_id,
        user=vouch.user,
        host=vouch.host,
        tenant=vouch.tenant,
        scopes=managing(vouch.scopes),  # of a newer router there may be others
    )
    policy, config = context.policy, context.config.policy
    rights = None if policy is None or vouch.groups is None else policy.vouched(peer, vouch.groups)
    permitted = vouch.manage or (rights is not None and rights.may_change_something)
    is_believed = config is not None and any(covers(each, vouch.router) for each in config.vouch)
    return VouchedPeer(vouch.router, peer, rights, permitted and is_believed, vouch.manage)
