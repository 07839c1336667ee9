"""Links of lanes that leave this router. They are attached on demand, and detached once all on them is settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.states import LinkEndpointState
from amqpmesh.router.delivery.fast_routes import close
from amqpmesh.router.delivery.link_loss import link_over
from amqpmesh.router.small_set import without_item

if TYPE_CHECKING:
    from collections.abc import Collection

    from amqpmesh.router.core import Core
    from amqpmesh.router.mesh.neighbour import Neighbour
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.router.model.links import OutgoingLink
    from amqpmesh.router.model.node import Address

#: The cost of reaching a consumer at its own router. The cost of the path to that router is added.
LOCAL_COST: Final = 1

#: Seconds before a lane that a neighbour refused is attached again.
RETRY_TIME: Final = 0.1

NO_LIMIT: Final = 2**31 - 1


class LaneLinks:
    """The links by which deliveries leave to other routers."""

    def __init__(self, core: Core) -> None:
        self._core = core
        #: Lanes that a neighbour refused a moment ago.
        self._refused: set[tuple[Lane, ConnectionRecord]] = set()
        #: The number of lanes attached so far, for their names.
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
    ) -> OutgoingLink:
        """Attach a lane.

        Args: node: its deliveries leave by the lane. apart: use a session with few lanes, so that a large delivery
            stops few others. bulk: the lane carries large deliveries only, in a session apart. cost: of reaching the
            consumers at its end.
        Raises: CommandError: the neighbour takes no further session or link.
        """
        core, record = self._core, neighbour.record
        self._attached += 1
        # A retired lane keeps its name while a delivery on it is unsettled.
        name = f"{lane.target}#{record.number}.{self._attached}"
        session = neighbour.bulk_session(alone=not bulk) if apart or bulk else neighbour.session_with_room()
        outgoing = core.attaching.lane_out(record, session, node, lane, name, bulk=bulk, cost=cost)
        # A lane serves many receivers; the router that they are attached to bounds each of them.
        outgoing.max_unsettled = NO_LIMIT
        return outgoing

    def is_refused(self, lane: Lane, record: ConnectionRecord) -> bool:
        """Return True if a neighbour refused a lane a moment ago."""
        return (lane, record) in self._refused

    def refused(self, lane: Lane, record: ConnectionRecord) -> bool:
        """Note that a neighbour refused a lane. Returns: False: it had refused the lane before, a moment ago."""
        if (lane, record) in self._refused:
            return False
        self._refused.add((lane, record))
        return True

    def allow(self, lane: Lane, record: ConnectionRecord) -> None:
        """Let a lane that a neighbour refused be attached again."""
        self._refused.discard((lane, record))

    def retire(self, links: Collection[OutgoingLink]) -> None:
        """Send no new delivery on these links, and detach each of them once all on it is settled."""
        for outgoing in list(links):
            node = outgoing.address
            close(self._core, node)
            outgoing.retired = True
            outgoing.max_unsettled = 0  # it takes nothing, and the core looks at it after each settlement on it
            node.outgoing = without_item(node.outgoing, outgoing)
            node.creditors = without_item(node.creditors, outgoing)
            if outgoing.branch is not None:
                node.pool.remove_branch(outgoing.branch, self._core.now)
                outgoing.branch = None
            self.end_if_done(outgoing)

    def end_if_done(self, outgoing: OutgoingLink) -> None:
        """Detach a retired link if no delivery on it is unsettled."""
        if outgoing.outstanding or outgoing.current is not None or outgoing.gone:
            return
        link = outgoing.link
        link_over(self._core, outgoing)
        # A lane can be retired before the neighbour has answered its attach (§2.6.3).
        if link.state in (LinkEndpointState.ATTACH_SENT, LinkEndpointState.ATTACHED) and link.session.can_send:
            link.detach()
