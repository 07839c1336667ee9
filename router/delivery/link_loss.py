"""Connections, links and dynamic nodes that go: what was on them ends with what is true of it."""

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
    """Detach a link of ours with an error, and let go of what was on it."""
    link_over(context, taken)
    link = taken.link
    if link.is_attached and link.session.can_send:
        link.detach(error=error)
    context.on_link_failed(link, error)
    link.let_go()


def fail_links(context: Context) -> None:
    """Detach the links that `fail_link` is to be called for, now that their deliveries are settled."""
    while context.failed_links:
        failed, context.failed_links = context.failed_links, {}
        for taken, error in failed.items():
            if not taken.link.flow_state.ended:
                fail_link(context, taken, error)


def close_connection(context: Context, record: ConnectionRecord, error: Error | None) -> None:
    """Close a connection, and let go of all that was on it: its peer may never answer."""
    if record.engine.can_send:
        record.engine.close(error)
    connection_gone(context, record)
    context.set_timer(record, record.engine.next_timer())


def cut_connection(context: Context, record: ConnectionRecord) -> None:
    """End a connection whose peer does not read: what it was to be sent is dropped, and nothing is waited for."""
    record.cut = record.engine.finished = True
    connection_gone(context, record)
    forget_output(record)
    context.on_output(record)


def connection_gone(context: Context, record: ConnectionRecord) -> None:
    """A connection carries nothing any more, even if its transport is still there: all links on it are over."""
    if record.lost:
        return
    context.on_connection_lost(record)
    record.lost = True
    for session in record.engine.channels.sessions:
        session.flow_state.channel = -1  # nothing leaves by its links, though they are not all let go of at once
    context.leaving[record] = None
    links = _over(context, [*record.outgoing, *record.detached_unsettled, *record.incoming])
    context.chores.do(_leave(context, record, links))


def _leave(context: Context, record: ConnectionRecord, links: list[IncomingLink | OutgoingLink]) -> Steps[None]:
    yield from _end(context, links)
    for session in record.engine.channels.sessions:
        session.flow_state.compact()
    del context.leaving[record]


def session_over(context: Context, record: ConnectionRecord, session: Session) -> None:
    """A session is over, and with it all links in it."""
    # Those that we send on first: then nothing tries to send on them what others leave behind.
    tables = (record.outgoing, record.detached_unsettled, record.incoming)
    links = [each for table in tables for each in table if each.link.session is session]
    for each in links:
        if isinstance(each, OutgoingLink) and each.lane is not None:
            context.routes.lane_refused(each)
    context.chores.do(_end(context, _over(context, links)))


def _over(context: Context, links: list[IncomingLink | OutgoingLink]) -> list[IncomingLink | OutgoingLink]:
    """Links take and give nothing from here on, though they are not all let go of at once."""
    for each in links:
        _forget_name(context, each)
        end_link(each.link.flow_state)
    return links


def _end(context: Context, links: list[IncomingLink | OutgoingLink]) -> Steps[None]:
    """Let go of links that are over, then of what was on them."""
    for each in links:
        _let_go(context, each)
        yield
    yield from end_all(context, links)


def suspend(context: Context, record: ConnectionRecord, taken: IncomingLink | OutgoingLink) -> None:
    """Detached, not closed: nothing more is sent, but what was sent lives until the session ends (§2.7.6)."""
    _withdraw(context, taken)
    if isinstance(taken, OutgoingLink):
        context.chores.do(end_backlog(context, taken))
    if has_unsettled(taken):
        record.detached_unsettled[taken] = 0
        if isinstance(taken, OutgoingLink):
            taken.max_unsettled = 0  # the core looks at it whenever something on it is settled
            recount(context, taken)
    else:
        context.keep_count(taken)


def link_over(context: Context, taken: IncomingLink | OutgoingLink) -> None:
    """A link is over: each of its deliveries ends with what is true of it."""
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
    # A lane may be of no use before the neighbour has answered our attach (§2.6.3).
    if link.state in (LinkEndpointState.ATTACH_SENT, LinkEndpointState.ATTACHED) and link.session.can_send:
        link.detach()


def _let_go(context: Context, taken: IncomingLink | OutgoingLink) -> None:
    """A link is none of this router's any more; its deliveries still are, and count as the link's."""
    if _withdraw(context, taken) | context.forget_detached(taken):
        add_ended(context, taken)


def _withdraw(context: Context, taken: IncomingLink | OutgoingLink) -> bool:
    """A link takes part in nothing new, and what is in the middle of its frames is given up.

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
    """The last receiver is gone, or the last lane: what waits goes back (§3.4.4), or another way."""
    context.routes.lost_last_link(address)
    if not address.outgoing:
        send_back(context, address)


def send_back(context: Context, address: Address) -> None:
    """What waits at an address that leads nowhere any more has its outcome, or looks for another way."""
    waiting = address.waiting
    while (relay := waiting.first()) is not None:
        if relay.share is not None:
            unqueue(context, relay)
            route_again(context, relay)
            continue
        undelivered(context, relay, address)


def _made(taken: IncomingLink | OutgoingLink) -> bool:
    """Whether the dynamic node at the other end of this link was made by it."""
    remote = taken.link.remote
    if remote is None:
        return False
    terminus = remote.source if isinstance(taken, OutgoingLink) else remote.target
    return isinstance(terminus, Source | Target) and terminus.dynamic


def _maker_gone(context: Context, address: Address) -> None:
    """The link that made a dynamic node is gone. With links as the condition it goes with the last of them."""
    lifetime = address.lifetime
    if isinstance(lifetime, DeleteOnClose) or (isinstance(lifetime, DeleteOnNoMessages) and not address.waiting.size):
        _remove_dynamic(context, address)


def _remove_dynamic(context: Context, address: Address) -> None:
    """A dynamic node goes with the link that made it: other links to it are detached (§3.5.10)."""
    context.addresses.remove(address)
    error = Error(condition=AmqpCondition.RESOURCE_DELETED, description="the dynamic node is gone")
    attached: list[IncomingLink | OutgoingLink] = [*address.incoming, *address.outgoing, *address.copies]
    for each in attached:
        fail_link(context, each, error)
