"""The time that links are granted beyond their sessions and connections, within the limits of `[resumption]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.standard.definitions import SENDER
from amqpmesh.router.amqp.standard.messaging import TerminusExpiryPolicy
from amqpmesh.router.config.address import Resumption
from amqpmesh.router.config.urls import is_loopback
from amqpmesh.router.model.connections import MESH
from amqpmesh.router.model.lasting_termini import Grant
from amqpmesh.router.model.node import DynamicNode

if TYPE_CHECKING:
    from amqpmesh.router.amqp.link import Receiver, Sender
    from amqpmesh.router.amqp.standard.messaging import Source, Target
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.lasting_termini import SuspendedTerminus
    from amqpmesh.router.model.node import Node

_NEVER: Final = TerminusExpiryPolicy.NEVER
_CONNECTION_CLOSE: Final = TerminusExpiryPolicy.CONNECTION_CLOSE


class Grants:
    """The links of a router that are granted some time, attached ones and suspended ones."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.keeps = True
        #: The links that have a grant, by holder.
        self._granted: dict[tuple[str, str], int] = {}
        #: The latest grant of each: most of its links are granted the same, and share it.
        self._latest: dict[tuple[str, str], Grant] = {}
        self._granted_in_all = 0

    @property
    def granted(self) -> int:
        """The links that are granted some time, and the termini that are kept without a link."""
        return self._granted_in_all

    def grant(
        self,
        record: ConnectionRecord,
        endpoint: Receiver | Sender,
        terminus: Target | Source,
        node: Node | None,
        known: SuspendedTerminus | None,
    ) -> Grant | None:
        """Return the time that our end of a link is kept; None: it goes with its link.

        `never` asks for it only together with an unsettled map: programs write it that never come back with one. While
        the memory is used up, nothing new is granted if the connection and what is kept for its holder have more than a
        share of it together; other connections of the holder do not count.

        Args: terminus: as the peer asks for it. known: the one that it had before, whose grant ends once it has this
            one.
        """
        context = self._context
        limits = context.config.resumption
        asked = float(terminus.timeout)
        policy = terminus.expiry_policy
        if policy is _NEVER:
            remote = endpoint.remote
            asked = limits.timeout if remote is not None and remote.unsettled is not None else 0.0
            policy = _CONNECTION_CLOSE
        seconds = int(min(asked, limits.timeout))
        if seconds <= 0 or terminus.dynamic or record.listener is None or record.inside or not self.keeps:
            return None
        if node is not None and node.config.resumption is Resumption.OFF:
            return None
        if endpoint.role is SENDER and isinstance(node, DynamicNode):
            return None
        if record.peer.user is None and not (limits.anonymous or is_loopback(record.host)):
            return None
        holder = record.peer.tenant, record.principal
        back = 0 if known is None else 1
        of_holder = self._granted.get(holder, 0)
        if self._granted_in_all - back >= limits.links or of_holder - back >= limits.links_per_user:
            return None
        memory = context.memory
        if known is None and memory.used_up and record.held + context.termini.octets_of(holder) > memory.share:
            return None
        self._granted[holder] = of_holder + 1
        self._granted_in_all += 1
        grant = Grant(policy, seconds, holder, terminus.address)
        latest = self._latest.get(holder)
        if grant != latest:
            self._latest[holder] = latest = grant
        return latest

    def grant_lane(self, router: str, address: str, seconds: int) -> Grant:
        """Return the time that this router's end of a lane is kept, as `LastingTermini.grant_lane` does.

        Lanes do not count among the links of clients.
        """
        holder = MESH, router
        self._granted[holder] = self._granted.get(holder, 0) + 1
        return Grant(_CONNECTION_CLOSE, seconds, holder, address)

    def take_back(self, grant: Grant) -> None:
        """Note that a link with a grant has ended for good."""
        if grant.holder[0] != MESH:
            self._granted_in_all -= 1
        left = self._granted[grant.holder] - 1
        if left:
            self._granted[grant.holder] = left
        else:
            del self._granted[grant.holder]
            self._latest.pop(grant.holder, None)
