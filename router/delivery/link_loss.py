"""The end of connections, sessions, links and dynamic nodes, and of the deliveries on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.amqp.dismantling import dismantle_session
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.amqp.standard.messaging import DeleteOnClose, DeleteOnNoMessages, Source, Target
from amqpmesh.router.amqp.states import LinkEndpointState
from amqpmesh.router.credit.withdrawn import Withdrawn
from amqpmesh.router.delivery.left_unsettled import add_ended, end_all, end_backlog, end_deliveries
from amqpmesh.router.delivery.queueing import unqueue
from amqpmesh.router.delivery.sending import abort
from amqpmesh.router.delivery.settlement import receiver_gone, route_again, undelivered
from amqpmesh.router.kernel import disable_fast_path, end_link
from amqpmesh.router.memory.holders import forget_output
from amqpmesh.router.memory.retained import forget
from amqpmesh.router.model.lasting_termini import is_lasting
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.model.node import DynamicNode
from amqpmesh.router.model.usage import RECEIVER, SENDER

if TYPE_CHECKING:
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.context import Context
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.kernel import KernelLink
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.node import Node


def fail_link(context: Context, link: IncomingLink | OutgoingLink, error: Error) -> None:
    """Detach a link with an error, and end its deliveries."""
    close_link(context, link)
    endpoint = link.endpoint
    if endpoint.is_attached and endpoint.session.can_send:
        endpoint.detach(error=error)
    context.on_link_failed(endpoint, error)
    endpoint.let_go()
    context.dismantle(link)


def fail_links(context: Context) -> None:
    """Detach the links that `Context.fail_link` has noted, after the event that showed the fault."""
    while context.failed_links:
        failed, context.failed_links = context.failed_links, {}
        for link, error in failed.items():
            endpoint = link.endpoint
            # Without its session it ends already, or its sender is away.
            if not (endpoint.flow_state.ended or endpoint.session.flow_state.channel == -1):
                fail_link(context, link, error)


def close_connection(context: Context, record: ConnectionRecord, error: Error | None) -> None:
    """Close a connection, and end its links without waiting for the peer's `close`, which may never come."""
    if record.engine.can_send:
        record.engine.close(error)
    end_connection(context, record)
    context.set_timer(record, record.engine.next_timer())


def cut_connection(context: Context, record: ConnectionRecord) -> None:
    """End a connection whose peer does not read, and drop its output."""
    record.cut = record.engine.finished = True
    end_connection(context, record)
    forget_output(record)
    context.on_output(record)


def end_connection(context: Context, record: ConnectionRecord) -> None:
    """End all links of a connection that is closed or lost, though its transport may still be there."""
    if record.usage is not None:  # also of a connection that another worker has taken up
        record.usage.leave()
    if record.lost:
        return
    context.on_connection_lost(record)
    record.lost = True
    for session in record.engine.channels.sessions:
        session.flow_state.channel = -1  # so that no frame leaves by links that are yet to be ended
    context.leaving[record] = None
    context.termini.suspend_all(record)
    links = _stop_links(context, [*record.outgoing, *record.detached_unsettled, *record.incoming])
    context.chores.do(_leave(context, record, links))


def _leave(context: Context, record: ConnectionRecord, links: list[IncomingLink | OutgoingLink]) -> Steps[None]:
    yield from _end(context, links)
    for session in record.engine.channels.sessions:
        session.flow_state.compact()
    del context.leaving[record]
    if record not in context.connections:
        context.dismantle_connection(record)


def end_session(context: Context, record: ConnectionRecord, session: Session) -> None:
    """End all links of a session that has ended."""
    context.termini.suspend_all(record, session)
    # Outgoing links come first: else deliveries of the others would be sent on them again.
    tables = (record.outgoing, record.detached_unsettled, record.incoming)
    links = [each for table in tables for each in table if each.endpoint.session is session]
    for each in links:
        if isinstance(each, OutgoingLink) and each.lane is not None:
            context.routes.lane_refused(each)
    context.chores.do(_end_session(context, session, _stop_links(context, links)))


def _end_session(context: Context, session: Session, links: list[IncomingLink | OutgoingLink]) -> Steps[None]:
    yield from _end(context, links)
    dismantle_session(session)


def stop_link(context: Context, link: IncomingLink | OutgoingLink) -> bool:
    """Have a link take and give nothing more, before it is detached (`fail_link`), which takes longer.

    The outcomes of its deliveries are passed on meanwhile. Those that still come are dropped, as behind our detach: the
    sender learns that they have no outcome.
    Returns: False: it is in the middle of a message, and does not stop.
    """
    if link.current is not None or link.endpoint.flow_state.current is not None:
        return False
    context.ended_links.stopped[link] = None
    if isinstance(link, OutgoingLink):
        retire_receiver(context, link)
    else:
        disable_fast_path(link.endpoint.flow_state)
        withdraw_sender(context, link)
    return True


def retire_receiver(context: Context, outgoing: OutgoingLink) -> None:
    """Send nothing new on a link."""
    node = outgoing.node
    context.forget_fast_routes(node)
    outgoing.retired = True
    outgoing.max_unsettled = 0
    outgoing.leave_node(context.now)
    outgoing.credit_source = None
    if not node.outgoing:
        find_other_route(context, node)
    elif node.config.redeliver or node.excludes:
        context.deserted[node] = None
    context.touch(node)


def withdraw_sender(context: Context, incoming: IncomingLink) -> None:
    """Give a link no more credit; what it has got, its peer may still use."""
    pool = incoming.pool
    incoming.pool = Withdrawn(pool)
    incoming.endpoint.flow_state.sink = None
    pool.remove_sink(incoming.credit_sink, context.now)


def _stop_links(context: Context, links: list[IncomingLink | OutgoingLink]) -> list[IncomingLink | OutgoingLink]:
    """Stop links from taking and sending deliveries, before they are ended in steps."""
    for each in links:
        _forget_name(context, each)
        state = each.endpoint.flow_state
        if _keeps(state):  # it ends once its deliveries are moved
            disable_fast_path(state)
        else:
            end_link(state)
    return links


def _keeps(state: KernelLink) -> bool:
    """Tell whether the deliveries of a link whose sender is away are yet to be moved: until then it has not ended."""
    return state.parked and not state.sender


def _end(context: Context, links: list[IncomingLink | OutgoingLink]) -> Steps[None]:
    """End links in steps, then their deliveries. Those of lasting termini are kept."""
    has_lasting = False
    for each in links:
        state = each.endpoint.flow_state
        if state.parked:
            has_lasting = True
            yield from context.termini.move(each)
            if _keeps(state):
                state.parked = False
                end_link(state)
        if _is_let_go(context, each):
            add_ended(context, each)
        yield
    if has_lasting:
        yield from context.termini.make_room()
    yield from end_all(context, links)
    if has_lasting:
        context.termini.ended(links)


def suspend(context: Context, link: IncomingLink | OutgoingLink) -> None:
    """Detach a link without closing it: its unsettled deliveries live until the session ends (§2.7.6), or longer."""
    if is_lasting(link):
        context.termini.suspend(link)
    _withdraw(context, link)
    if link.backlog:
        context.chores.do(end_backlog(context, link))
    if link.has_unsettled:
        link.suspend()
    else:
        context.keep_count(link)
        context.dismantle(link)


def close_link(context: Context, link: IncomingLink | OutgoingLink) -> None:
    """End a link and its deliveries, each with the outcome that is true of it."""
    end_link(link.endpoint.flow_state)
    end_deliveries(context, link, is_new=_is_let_go(context, link))


def _forget_name(context: Context, link: IncomingLink | OutgoingLink) -> None:
    """Forget the name of a link: no attach can steal the link now, and its name no longer counts against the peer."""
    usage = link.connection.usage
    if usage is not None and link.key is not None:
        if isinstance(link, OutgoingLink):
            usage.end_lease(link)
        usage.release_late(*(RECEIVER if isinstance(link, OutgoingLink) else SENDER))
    if link.remembered:
        forget(link.connection, link)
    context.link_names.remove(link)
    if link.grant is not None:
        context.termini.take_back(link.grant)
        link.grant = None


def detach_if_done(context: Context, outgoing: OutgoingLink) -> None:
    """Detach a lane that another has replaced, once nothing on it is unsettled."""
    if outgoing.lane is None:
        return  # of a client that is being moved: its connection is closed
    if outgoing.outstanding or outgoing.current is not None or outgoing.gone:
        return
    if context.termini.sources.is_returning(outgoing):
        return
    endpoint = outgoing.endpoint
    close_link(context, outgoing)
    # A lane can be replaced before the neighbour has answered its attach (§2.6.3).
    if endpoint.state in (LinkEndpointState.ATTACH_SENT, LinkEndpointState.ATTACHED) and endpoint.session.can_send:
        endpoint.detach()
    context.dismantle(outgoing)


def _is_let_go(context: Context, link: IncomingLink | OutgoingLink) -> bool:
    """Take a link from its connection and node. Its deliveries stay, and still count as the link's.

    Returns: False: it was taken from them before.
    """
    is_new = _withdraw(context, link)
    return (bool(link.connection.detached_unsettled) and context.forget_detached(link)) or is_new


def _withdraw(context: Context, link: IncomingLink | OutgoingLink) -> bool:
    """Take a link from its connection and node, and abort the delivery that is in the middle of its frames.

    Returns: False: the link was withdrawn before.
    """
    _forget_name(context, link)
    if not link.leave_connection():
        return False
    disable_fast_path(link.endpoint.flow_state)
    if context.recording is not None:
        context.recording.down(link)
    if isinstance(link, OutgoingLink):
        _withdraw_outgoing(context, link)
    else:
        _withdraw_incoming(context, link)
    node = link.node
    if node is not None:
        context.touch(node)
        if isinstance(node, DynamicNode) and node.maker is link.connection and _made_its_node(link):
            _maker_gone(context, node)
    return True


def _withdraw_outgoing(context: Context, link: OutgoingLink) -> None:
    # First the node: else the current delivery could choose this link again.
    link.leave_node(context.now)
    context.termini.sources.left(link)
    node = link.node
    if node.fast_route is not None or node.borrowers:
        context.forget_fast_routes(node)
    elif node.made_pool is not None:
        node.made_pool.is_open = False
    current, link.current = link.current, None
    if current is not None:
        receiver_gone(context, current)
    if not node.outgoing:
        if not link.retired:
            find_other_route(context, node)
    elif node.config.redeliver or node.excludes:
        context.deserted[node] = None


def _withdraw_incoming(context: Context, link: IncomingLink) -> None:
    # First the delivery: it counts in the link's pool until it is aborted.
    current, link.current = link.current, None
    if current is not None:
        abort(context, current)
    link.leave_node(context.now)


def find_other_route(context: Context, node: Node) -> None:
    """Find another route for a node that has lost its last receiver or lane, or release what waits there (§3.4.4)."""
    context.routes.lost_last_link(node)
    if not node.outgoing and node.waiting.size:
        release_queued(context, node)


def release_queued(context: Context, node: Node) -> None:
    """Release the deliveries that wait at a node without outgoing links, or queue them for another route."""
    waiting = node.waiting
    while (relay := waiting.first()) is not None:
        if relay.share is not None:
            unqueue(context, relay)
            route_again(context, relay)
            continue
        undelivered(context, relay, node)


def _made_its_node(link: IncomingLink | OutgoingLink) -> bool:
    """Tell whether a link has made its dynamic node."""
    terminus = link.peer_terminus
    return isinstance(terminus, Source | Target) and terminus.dynamic


def _maker_gone(context: Context, node: DynamicNode) -> None:
    """Remove a dynamic node whose maker is gone, if its lifetime policy says so.

    A node whose policy is about links goes with its last link (`NodeTable.drop_if_idle`).
    """
    lifetime = node.lifetime
    if isinstance(lifetime, DeleteOnClose) or (isinstance(lifetime, DeleteOnNoMessages) and not node.waiting.size):
        _remove_dynamic(context, node)


def _remove_dynamic(context: Context, node: Node) -> None:
    """Remove a dynamic node, and detach the other links to it (§3.5.10)."""
    context.nodes.remove(node)
    error = Error(condition=AmqpCondition.RESOURCE_DELETED, description="the dynamic node is gone")
    attached: list[IncomingLink | OutgoingLink] = [*node.incoming, *node.outgoing, *node.copies]
    for each in attached:
        fail_link(context, each, error)
