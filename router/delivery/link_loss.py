"""Connections, links and dynamic nodes that go: what was on them ends with what is true of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.amqp.standard.messaging import DeleteOnClose, DeleteOnNoMessages, Source, Target
from amqpmesh.router.delivery.lifetime import has_unsettled, keep_count, no_longer_lingers, recount
from amqpmesh.router.delivery.queueing import unqueue
from amqpmesh.router.delivery.sending import abort
from amqpmesh.router.delivery.settlement import hop_lost, route_again, undelivered
from amqpmesh.router.kernel import disable_fast_path, end_link
from amqpmesh.router.memory.holders import forget_output
from amqpmesh.router.model.links import OutgoingLink
from amqpmesh.router.small_set import without_item

if TYPE_CHECKING:
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.core import Core
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.links import IncomingLink
    from amqpmesh.router.model.node import Address


def fail_link(core: Core, taken: IncomingLink | OutgoingLink, error: Error) -> None:
    """Detach a link of ours with an error, and let go of what was on it."""
    link_over(core, taken)
    link = taken.link
    if link.is_attached and link.session.can_send:
        link.detach(error=error)
    core.containers.over(link, error)
    link.let_go()


def fail_links(core: Core) -> None:
    """Detach the links that `fail_link` is to be called for, now that their deliveries are settled."""
    while core.failed_links:
        failed, core.failed_links = core.failed_links, {}
        for taken, error in failed.items():
            if not taken.link.flow_state.ended:
                fail_link(core, taken, error)


def close_connection(core: Core, record: ConnectionRecord, error: Error | None) -> None:
    """Close a connection, and let go of all that was on it: its peer may never answer."""
    if record.engine.can_send:
        record.engine.close(error)
    connection_gone(core, record)
    core.set_timer(record, record.engine.next_timer())


def cut_connection(core: Core, record: ConnectionRecord) -> None:
    """End a connection whose peer does not read: what it was to be sent is dropped, and nothing is waited for."""
    record.cut = record.engine.finished = True
    connection_gone(core, record)
    forget_output(record)
    core.on_output(record)


def connection_gone(core: Core, record: ConnectionRecord) -> None:
    """A connection carries nothing any more, even if its transport is still there: all links on it are over."""
    if record.lost:
        return
    if core.mesh is not None:
        core.mesh.lost(record)
    core.containers.lost(record)
    record.lost = True
    for session in record.engine.channels.sessions:
        session.flow_state.channel = -1  # nothing leaves by its links, though they are not all let go of at once
    core.leaving[record] = None
    links = _over(core, [*record.outgoing, *record.lingering, *record.incoming])
    core.chores.do(_leave(core, record, links))


def _leave(core: Core, record: ConnectionRecord, links: list[IncomingLink | OutgoingLink]) -> Steps[None]:
    yield from _end(core, links)
    for session in record.engine.channels.sessions:
        session.flow_state.compact()
    del core.leaving[record]


def session_over(core: Core, record: ConnectionRecord, session: Session) -> None:
    """A session is over, and with it all links in it."""
    # Those that we send on first: then nothing tries to send on them what others leave behind.
    tables = (record.outgoing, record.lingering, record.incoming)
    links = [each for table in tables for each in table if each.link.session is session]
    for each in links:
        if isinstance(each, OutgoingLink) and each.lane is not None:
            assert core.mesh is not None
            core.mesh.routes.lane_refused(each)
    core.chores.do(_end(core, _over(core, links)))


def _over(core: Core, links: list[IncomingLink | OutgoingLink]) -> list[IncomingLink | OutgoingLink]:
    """Links take and give nothing from here on, though they are not all let go of at once."""
    for each in links:
        core.attaching.forget(each)
        end_link(each.link.flow_state)
    return links


def _end(core: Core, links: list[IncomingLink | OutgoingLink]) -> Steps[None]:
    """Let go of links that are over, then of what was on them."""
    for each in links:
        _let_go(core, each)
        yield
    yield from core.leftovers.end(links)


def suspend(core: Core, record: ConnectionRecord, taken: IncomingLink | OutgoingLink) -> None:
    """Detached, not closed: nothing more is sent, but what was sent lives until the session ends (§2.7.6)."""
    _withdraw(core, taken)
    if isinstance(taken, OutgoingLink):
        core.chores.do(core.leftovers.end_unsent(taken))
    if has_unsettled(taken):
        record.lingering[taken] = 0
        if isinstance(taken, OutgoingLink):
            taken.max_unsettled = 0  # the core looks at it whenever something on it is settled
            recount(core, taken)
    else:
        keep_count(core, taken)


def link_over(core: Core, taken: IncomingLink | OutgoingLink) -> None:
    """A link is over: each of its deliveries ends with what is true of it."""
    end_link(taken.link.flow_state)
    _let_go(core, taken)
    core.chores.do(core.leftovers.end([taken]))


def _let_go(core: Core, taken: IncomingLink | OutgoingLink) -> None:
    """A link is none of this router's any more; its deliveries still are, and count as the link's."""
    if _withdraw(core, taken) | no_longer_lingers(core, taken):
        core.leftovers.add(taken)


def _withdraw(core: Core, taken: IncomingLink | OutgoingLink) -> bool:
    """A link takes part in nothing new, and what is in the middle of its frames is given up.

    Returns: whether it took part in something.
    """
    core.attaching.forget(taken)
    disable_fast_path(taken.link.flow_state)
    record = taken.connection
    if isinstance(taken, OutgoingLink):
        if taken.gone:
            return False
        taken.gone = True
        record.outgoing.pop(taken, None)
        if core.recording is not None:
            core.recording.down(taken)
        address = taken.address
        address.copies = without_item(address.copies, taken)
        address.outgoing = without_item(address.outgoing, taken)
        address.draining = without_item(address.draining, taken)
        address.creditors = without_item(address.creditors, taken)
        if taken.branch is not None:
            address.pool.remove_branch(taken.branch, core.now)
        current, taken.current = taken.current, None
        if current is not None:
            hop_lost(core, current)
        if not address.outgoing:
            if not taken.retired:
                nobody_left(core, address)
        elif address.config.redeliver or address.excludes:
            core.deserted[address] = None
    else:
        if record.incoming.pop(taken, 0) == 0:
            return False
        if core.recording is not None:
            core.recording.down(taken)
        if taken.current is not None:
            relay, taken.current = taken.current, None
            abort(core, relay)
        taken.pool.remove_input(taken.input, core.now)
        if taken.address is not None:
            taken.address.incoming = without_item(taken.address.incoming, taken)
        address = taken.address  # type: ignore[assignment]  # None for an anonymous terminus
    if address is not None:
        core.touch(address)
        if address.maker is record and _made(taken):
            _maker_gone(core, address)
    return True


def nobody_left(core: Core, address: Address) -> None:
    """The last receiver is gone, or the last lane: what waits goes back (§3.4.4), or another way."""
    if core.mesh is not None:
        core.mesh.routes.lost_last_link(address)
    if not address.outgoing:
        send_back(core, address)


def send_back(core: Core, address: Address) -> None:
    """What waits at an address that leads nowhere any more has its outcome, or looks for another way."""
    waiting = address.waiting
    while (relay := waiting.first()) is not None:
        if relay.share is not None:
            unqueue(core, relay)
            route_again(core, relay)
            continue
        undelivered(core, relay, address)


def _made(taken: IncomingLink | OutgoingLink) -> bool:
    """Whether the dynamic node at the other end of this link was made by it."""
    remote = taken.link.remote
    if remote is None:
        return False
    terminus = remote.source if isinstance(taken, OutgoingLink) else remote.target
    return isinstance(terminus, Source | Target) and terminus.dynamic


def _maker_gone(core: Core, address: Address) -> None:
    """The link that made a dynamic node is gone. With links as the condition it goes with the last of them."""
    lifetime = address.lifetime
    if isinstance(lifetime, DeleteOnClose) or (isinstance(lifetime, DeleteOnNoMessages) and not address.waiting.size):
        _remove_dynamic(core, address)


def _remove_dynamic(core: Core, address: Address) -> None:
    """A dynamic node goes with the link that made it: other links to it are detached (§3.5.10)."""
    core.addresses.remove(address)
    error = Error(condition=AmqpCondition.RESOURCE_DELETED, description="the dynamic node is gone")
    attached: list[IncomingLink | OutgoingLink] = [*address.incoming, *address.outgoing, *address.copies]
    for each in attached:
        fail_link(core, each, error)
