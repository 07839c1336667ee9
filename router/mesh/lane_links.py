"""Links of lanes that leave this router: attached when a way needs them, detached once nothing on them is unsettled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.states import LinkEndpointState
from amqpmesh.router.delivery.fast_routes import close
from amqpmesh.router.delivery.link_loss import link_over
from amqpmesh.router.small_set import without_item

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from amqpmesh.router.core import Core
    from amqpmesh.router.mesh.neighbour import Neighbour
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.router.model.links import OutgoingLink
    from amqpmesh.router.model.node import Address

#: What reaching a consumer that is attached here costs; a path's cost comes on top.
LOCAL_COST: Final = 1

#: Seconds before a lane that a neighbour did not take is tried again.
RETRY_TIME: Final = 0.1

NO_LIMIT: Final = 2**31 - 1


class LaneLinks:
    """The links that deliveries leave by to other routers."""

    def __init__(self, core: Core, again: Callable[[Lane], None]) -> None:
        """Args: again: told of a lane that a neighbour did not take, once it may be tried again."""
        self._core = core
        self._again = again
        #: Lanes that a neighbour did not take: it is left alone with them for a while.
        self._refusals: set[tuple[Lane, ConnectionRecord]] = set()
        #: How many lanes were attached, for their names.
        self._attached = 0

    def attach(
        self,
        node: Address,
        lane: Lane,
        neighbour: Neighbour,
        *,
        apart: bool,
        bulk: bool = False,
        cost: int = LOCAL_COST,
    ) -> OutgoingLink | None:
        """Attach a lane, unless the neighbour is to be left alone with it.

        Args: node: what leaves by it. apart: in a session of few, so that what is large on it stops few others.
            bulk: it carries nothing else, and goes apart. cost: of reaching who is at its end.
        """
        core, record = self._core, neighbour.record
        if (lane, record) in self._refusals:
            return None
        self._attached += 1
        # A lane that is retired has its name as long as something on it is unsettled.
        name = f"{lane.target}#{record.number}.{self._attached}"
        try:
            session = neighbour.bulk_session(alone=not bulk) if apart or bulk else neighbour.session_with_room()
            outgoing = core.attaching.lane_out(record, session, node, lane, name, bulk=bulk, cost=cost)
        except CommandError as error:
            core.log.warning("lane refused", router=neighbour.router, lane=lane.target, reason=str(error))
            self.try_later(lane, record)
            return None
        # A lane is for many receivers, each of them bounded where it is attached.
        outgoing.max_unsettled = NO_LIMIT
        return outgoing

    def try_later(self, lane: Lane, record: ConnectionRecord) -> None:
        """Leave a neighbour alone with a lane for a while."""
        if (lane, record) in self._refusals:
            return
        self._refusals.add((lane, record))

        def try_again() -> None:
            self._refusals.discard((lane, record))
            self._again(lane)

        self._core.schedule(self._core.now + RETRY_TIME, try_again)

    def retire(self, links: Collection[OutgoingLink]) -> None:
        """Links that nothing new leaves by."""
        for outgoing in list(links):
            node = outgoing.address
            close(self._core, node)
            outgoing.retired = True
            outgoing.max_unsettled = 0  # it takes nothing, and the core looks at it whenever something on it is settled
            node.outgoing = without_item(node.outgoing, outgoing)
            node.creditors = without_item(node.creditors, outgoing)
            if outgoing.branch is not None:
                node.pool.remove_branch(outgoing.branch, self._core.now)
                outgoing.branch = None
            self.end_if_done(outgoing)

    def end_if_done(self, outgoing: OutgoingLink) -> None:
        """Detach a lane that is no longer used, once nothing on it is unsettled."""
        if outgoing.outstanding or outgoing.current is not None or outgoing.gone:
            return
        link = outgoing.link
        link_over(self._core, outgoing)
        # A lane may be of no use before the neighbour has answered our attach (§2.6.3).
        if link.state in (LinkEndpointState.ATTACH_SENT, LinkEndpointState.ATTACHED) and link.session.can_send:
            link.detach()
