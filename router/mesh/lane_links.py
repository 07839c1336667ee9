"""Links of lanes that leave this router. They are attached on demand, and detached once all on them is settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.link import Sender, Terminus
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.messaging import Source
from amqpmesh.router.credit.fixed_credit import FixedCredit
from amqpmesh.router.delivery.link_loss import detach_if_done
from amqpmesh.router.endpoint_setup import LARGE, WHOLE_MAP
from amqpmesh.router.mesh.resumed_lanes import ResumedLanes, keep_lane, lane_target, seconds_kept
from amqpmesh.router.model.credit_share import LOCAL_COST
from amqpmesh.router.model.lane import LaneKind
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.small_set import with_item, without_item

if TYPE_CHECKING:
    from collections.abc import Collection

    from amqpmesh.router.amqp.link import Receiver
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import Pool
    from amqpmesh.router.mesh.lane_connection import LaneConnection
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.router.model.node import Node
    from amqpmesh.topology.linkstate import Topology

#: Seconds before a lane that a neighbour refused is attached again.
RETRY_TIME: Final = 0.1

NO_LIMIT: Final = 2**31 - 1


class LaneLinks:
    """The links by which deliveries leave to other routers."""

    def __init__(self, context: Context, topology: Topology) -> None:
        self._context = context
        #: It differs from those of earlier and later processes with this router's id.
        self._life = topology.epoch
        #: Lanes that a neighbour refused a moment ago.
        self._refused: set[tuple[Lane, ConnectionRecord]] = set()
        #: The number of lanes attached so far, for their names.
        self._attached = 0
        #: Those that have lost their connection.
        self.resumed = ResumedLanes(context, topology.life_of)

    def attach(
        self,
        node: Node,
        lane: Lane,
        neighbour: LaneConnection,
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
        context, record = self._context, neighbour.record
        self._attached += 1
        # A retired lane keeps its name while a delivery on it is unsettled. A neighbour may still keep lanes of the
        # process before this one, which counted as well: the life tells them apart.
        name = f"{lane.target}#{self._life:x}.{self._attached}"
        session = neighbour.bulk_session(alone=not bulk) if apart or bulk else neighbour.session_with_room()
        outgoing = _attach_out(context, record, session, node, lane, name, bulk=bulk, cost=cost)
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
            node = outgoing.node
            self._context.close_fast_route(node)
            outgoing.retired = True
            outgoing.max_unsettled = 0  # it takes nothing, and the core looks at it after each settlement on it
            node.outgoing = without_item(node.outgoing, outgoing)
            node.creditors = without_item(node.creditors, outgoing)
            if outgoing.credit_source is not None:
                node.pool.remove_source(outgoing.credit_source, self._context.now)
                outgoing.credit_source = None
            detach_if_done(self._context, outgoing)


def _attach_out(
    context: Context,
    record: ConnectionRecord,
    session: Session,
    node: Node,
    lane: Lane,
    name: str,
    *,
    bulk: bool,
    cost: int,
) -> OutgoingLink:
    """Attach a lane of a node to a neighbour. Args: as of `LaneLinks.attach`.

    Raises: CommandError: the neighbour takes no more links in this session.
    """
    endpoint = session.attach(
        Terminus(name, Role.SENDER),
        source=Source(address=context.id),
        target=lane_target(lane.target, 0 if context.config.mesh is None else context.config.mesh.resume),
        rcv_settle_mode=ReceiverSettleMode.SECOND,
        desired_capabilities=(LARGE,) if bulk else (),
    )
    assert isinstance(endpoint, Sender)
    outgoing = OutgoingLink(
        record,
        endpoint,
        node,
        copy=False,
        default_outcome=None,
        max_unsettled=node.config.max_unsettled,
        number=context.next_link_number(),
        now=context.now,
        lane=lane,
        cost=cost,
    )
    endpoint.context = outgoing
    record.outgoing[outgoing] = None
    node.outgoing = with_item(node.outgoing, outgoing)
    outgoing.join_pool()
    context.touch_outgoing(outgoing)
    if context.recording is not None:
        context.recording.up(outgoing)
    return outgoing


def take_lane(
    context: Context, neighbour: LaneConnection, endpoint: Receiver, attach: Attach, lane: Lane, node: Node | None
) -> IncomingLink:
    """Answer a neighbour's attach of a lane. Args: node: of its deliveries; None: each of them has its own address."""
    record = neighbour.record
    large = LARGE in attach.desired_capabilities
    seconds = seconds_kept(context.config.mesh, attach.target)
    pool: Pool | FixedCredit
    if node is None or lane.kind is LaneKind.TRANSIT:
        pool = FixedCredit(neighbour.transit_window)
        pool.set_suspended(context.draining)
    else:
        pool = node.pool
    endpoint.attach(
        source=attach.source,
        target=lane_target(lane.target, seconds),
        rcv_settle_mode=ReceiverSettleMode.SECOND,
        offered_capabilities=(*((LARGE,) if large else ()), *((WHOLE_MAP,) if seconds else ())),
    )
    incoming = IncomingLink(
        record, endpoint, node, pool, number=context.next_link_number(), now=context.now, lane=lane, large=large
    )
    endpoint.context = incoming
    record.incoming[incoming] = None
    if node is not None:
        node.incoming = with_item(node.incoming, incoming)
    if seconds:
        keep_lane(context, incoming, seconds)
    context.touch_input(incoming)
    if context.recording is not None:
        context.recording.up(incoming)
    return incoming
