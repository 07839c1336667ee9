"""The end of connections, sessions, links and dynamic nodes, and of the deliveries on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.amqp.standard.messaging import DeleteOnClose, DeleteOnNoMessages, Source, Target
from amqpmesh.router.amqp.states import LinkEndpointState
from amqpmesh.router.context import has_unsettled
from amqpmesh.router.delivery.left_unsettled import add_ended, end_all, end_backlog
from amqpmesh.router.delivery.lifetime import recount
from amqpmesh.router.delivery.queueing import unqueue
from amqpmesh.router.delivery.sending import abort
from amqpmesh.router.delivery.settlement import hop_lost, route_again, undelivered
from amqpmesh.router.kernel import disable_fast_path, end_link
from amqpmesh.router.memory.holders import forget_output
from amqpmesh.router.memory.retained import forget
from amqpmesh.router.model.links import OutgoingLink
from amqpmesh.router.small_set import without_item

if TYPE_CHECKING:
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.context import Context
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.links import IncomingLink
    from amqpmesh.router.model.node import Address


def fail_link(context: Context, taken: IncomingLink | OutgoingLink, error: Error) -> None:
    """Detach a link with an error, and end its deliveries."""
    link_over(context, taken)
    link = taken.link
    if link.is_attached and link.session.can_send:
        link.detach(error=error)
    context.on_link_failed(link, error)
    link.let_go()


def fail_links(context: Context) -> None:
    """Detach the links that `Context.fail_link` has noted, after the event that showed the fault."""
    while context.failed_links:
        failed, context.failed_links = context.failed_links, {}
        for taken, error in failed.items():
            if not taken.link.flow_state.ended:
                fail_link(context, taken, error)


def close_connection(context: Context, record: ConnectionRecord, error: Error | None) -> None:
    """Close a connection, and end its links without waiting for the peer's `close`, which may never come."""
    if record.engine.can_send:
        record.engine.close(error)
    connection_gone(context, record)
    context.set_timer(record, record.engine.next_timer())


def cut_connection(context: Context, record: ConnectionRecord) -> None:
    """End a connection whose peer does not read, and drop its output."""
    record.cut = record.engine.finished = True
    connection_gone(context, record)
    forget_output(record)
    context.on_output(record)


def connection_gone(context: Context, record: ConnectionRecord) -> None:
    """End all links of a connection that is closed or lost, though its transport may still be there."""
    if record.lost:
        return
    context.on_connection_lost(record)
    record.lost = True
    for session in record.engine.channels.sessions:
        session.flow_state.channel = -1  # so that no frame leaves by links that are yet to be ended
    context.leaving[record] = None
    links = _over(context, [*record.outgoing, *record.detached_unsettled, *record.incoming])
    context.chores.do(_leave(context, record, links))


def _leave(context: Context, record: ConnectionRecord, links: list[IncomingLink | OutgoingLink]) -> Steps[None]:
    yield from _end(context, links)
    for session in record.engine.channels.sessions:
        session.flow_state.compact()
    del context.leaving[record]


def session_over(context: Context, record: ConnectionRecord, session: Session) -> None:
    """End all links of a session that has ended."""
    # Outgoing links come first: else deliveries of the others would be sent on them again.
    tables = (record.outgoing, record.detached_unsettled, record.incoming)
    links = [each for table in tables for each in table if each.link.session is session]
    for each in links:
        if isinstance(each, OutgoingLink) and each.lane is not None:
            context.routes.lane_refused(each)
    context.chores.do(_end(context, _over(context, links)))


def _over(context: Context, links: list[IncomingLink | OutgoingLink]) -> list[IncomingLink | OutgoingLink]:
    """Stop links from taking and sending deliveries, before they are ended in steps."""
    for each in links:
        _forget_name(context, each)
        end_link(each.link.flow_state)
    return links


def _end(context: Context, links: list[IncomingLink | OutgoingLink]) -> Steps[None]:
    """End links in steps, then their deliveries."""
    for each in links:
        _let_go(context, each)
        yield
    yield from end_all(context, links)


def suspend(context: Context, record: ConnectionRecord, taken: IncomingLink | OutgoingLink) -> None:
    """Detach a link without closing it: its unsettled deliveries live until the session ends (§2.7.6)."""
    _withdraw(context, taken)
    if isinstance(taken, OutgoingLink):
        context.chores.do(end_backlog(context, taken))
    if has_unsettled(taken):
        record.detached_unsettled[taken] = 0
        if isinstance(taken, OutgoingLink):
            taken.max_unsettled = 0  # so that each settlement on it touches the link
            recount(context, taken)
    else:
        context.keep_count(taken)


def link_over(context: Context, taken: IncomingLink | OutgoingLink) -> None:
    """End a link and its deliveries, each with the outcome that is true of it."""
    end_link(taken.link.flow_state)
    _let_go(context, taken)
    context.chores.do(end_all(context, [taken]))


def _forget_name(context: Context, taken: IncomingLink | OutgoingLink) -> None:
    """Forget the name of a link: no attach can steal the link now, and its name no longer counts against the peer."""
    forget(taken.connection, taken)
    context.link_names.remove(taken)


def detach_if_done(context: Context, outgoing: OutgoingLink) -> None:
    """Detach a lane that another has replaced, once nothing on it is unsettled."""
    if outgoing.outstanding or outgoing.current is not None or outgoing.gone:
        return
    link = outgoing.link
    link_over(context, outgoing)
    # A lane can be replaced before the neighbour has answered its attach (§2.6.3).
    if link.state in (LinkEndpointState.ATTACH_SENT, LinkEndpointState.ATTACHED) and link.session.can_send:
        link.detach()


def _let_go(context: Context, taken: IncomingLink | OutgoingLink) -> None:
    """Take a link from its connection and node. Its deliveries stay, and still count as the link's."""
    if _withdraw(context, taken) | context.forget_detached(taken):
        add_ended(context, taken)


def _withdraw(context: Context, taken: IncomingLink | OutgoingLink) -> bool:
    """Take a link from its node, and abort the delivery that is in the middle of its frames.

    Returns: whether it took part in something.
    """
    _forget_name(context, taken)
    disable_fast_path(taken.link.flow_state)
    record = taken.connection
    if isinstance(taken, OutgoingLink):
        if taken.gone:
            return False
        taken.gone = True
        record.outgoing.pop(taken, None)
        if context.recording is not None:
            context.recording.down(taken)
        address = taken.address
        address.copies = without_item(address.copies, taken)
        address.outgoing = without_item(address.outgoing, taken)
        address.draining = without_item(address.draining, taken)
        address.creditors = without_item(address.creditors, taken)
        if taken.branch is not None:
            address.pool.remove_branch(taken.branch, context.now)
        current, taken.current = taken.current, None
        if current is not None:
            hop_lost(context, current)
        if not address.outgoing:
            if not taken.retired:
                nobody_left(context, address)
        elif address.config.redeliver or address.excludes:
            context.deserted[address] = None
    else:
        if record.incoming.pop(taken, 0) == 0:
            return False
        if context.recording is not None:
            context.recording.down(taken)
        if taken.current is not None:
            relay, taken.current = taken.current, None
            abort(context, relay)
        taken.pool.remove_input(taken.input, context.now)
        if taken.address is not None:
            taken.address.incoming = without_item(taken.address.incoming, taken)
        address = taken.address  # type: ignore[assignment]  # None for an anonymous terminus
    if address is not None:
        context.touch(address)
        if address.maker is record and _made(taken):
            _maker_gone(context, address)
    return True


def nobody_left(context: Context, address: Address) -> None:
    """Find another route for a node that has lost its last receiver or lane, or release what waits there (§3.4.4)."""
    context.routes.lost_last_link(address)
    if not address.outgoing:
        send_back(context, address)


def send_back(context: Context, address: Address) -> None:
    """Release the deliveries that wait at a node without outgoing links, or queue them for another route."""
    waiting = address.waiting
    while (relay := waiting.first()) is not None:
        if relay.share is not None:
            unqueue(context, relay)
            route_again(context, relay)
            continue
        undelivered(context, relay, address)


def _made(taken: IncomingLink | OutgoingLink) -> bool:
    """Tell whether a link has made its dynamic node."""
    remote = taken.link.remote
    if remote is None:
        return False
    terminus = remote.source if isinstance(taken, OutgoingLink) else remote.target
    return isinstance(terminus, Source | Target) and terminus.dynamic


def _maker_gone(context: Context, address: Address) -> None:
    """Remove a dynamic node whose maker is gone, if its lifetime policy says so.

    A node whose policy is about links goes with its last link (`AddressTable.drop_if_idle`).
    """
    lifetime = address.lifetime
    if isinstance(lifetime, DeleteOnClose) or (isinstance(lifetime, DeleteOnNoMessages) and not address.waiting.size):
        _remove_dynamic(context, address)


def _remove_dynamic(context: Context, address: Address) -> None:
    """Remove a dynamic node, and detach the other links to it (§3.5.10)."""
    context.addresses.remove(address)
    error = Error(condition=AmqpCondition.RESOURCE_DELETED, description="the dynamic node is gone")
    attached: list[IncomingLink | OutgoingLink] = [*address.incoming, *address.outgoing, *address.copies]
    for each in attached:
        fail_link(context, each, error)
