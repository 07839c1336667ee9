"""What a batch has touched: what waits is sent, and the credit that there is divided, once all of it is handled."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from amqpmesh.router.delivery.dispatch import dispatch
from amqpmesh.router.delivery.fast_routes import catch_up, reopen, stay_quiet
from amqpmesh.router.delivery.lifetime import recount
from amqpmesh.router.delivery.link_loss import fail_links
from amqpmesh.router.delivery.memory_pressure import check
from amqpmesh.router.delivery.multicast_stall import take_back, watch
from amqpmesh.router.delivery.settlement import end_excluded
from amqpmesh.router.memory.holders import check_node, count_output
from amqpmesh.router.model.credit_share import Share
from amqpmesh.router.model.links import IncomingLink
from amqpmesh.router.model.node import NOBODY_AWAITED
from amqpmesh.router.small_set import with_item, without_item

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpmesh.router.core import Core
    from amqpmesh.router.credit.sinks import Grant
    from amqpmesh.router.model.links import OutgoingLink
    from amqpmesh.router.model.node import Address


def finish_batch(core: Core) -> None:
    """Send what can go, and divide the credit that there is."""
    if core.flow_state.touched:
        catch_up(core)
    check(core)
    if core.relieved:
        _relieve(core)
    _finish_touched(core)
    if core.memory.is_exceeded:  # by what was handed out meanwhile
        check(core)
        _finish_touched(core)
    if core.closed:
        reopen(core)


def _finish_touched(core: Core) -> None:
    while core.touched or core.touched_windows or core.failed_links:
        if core.failed_links:
            fail_links(core)
        deserted, core.deserted = core.deserted, {}
        for address in deserted:
            end_excluded(core, address)
        addresses, core.touched = core.touched, {}
        for address in addresses:
            if address.waiting.size:
                dispatch(core, address)
            elif address.awaited:
                address.awaited = NOBODY_AWAITED
        outgoing, core.touched_outgoing = core.touched_outgoing, {}
        for each in outgoing:
            _update_branch(core, each)
        for address in addresses:
            check_node(core, address)
            if address.has_pool:
                _grant(core, address.pool.grants(core.now))
                stay_quiet(address)
            if address.draining or address.lenders:
                _answer_drains(core, address)
            for share in sorted(address.borrowers, key=_left_at):
                # What its consumers can take all at once, nodes that lead here may wait for: each in its turn.
                if share.ingress.is_multicast and (share.look(core.now) or share.ingress.waiting.size):
                    core.touch(share.ingress)
            core.set_timer(address, address.next_timer())
            if _drop_if_idle(core, address):
                core.forget_timer(address)
        windows, core.touched_windows = core.touched_windows, {}
        for window in windows:
            _grant(core, window.grants(core.now))


def _left_at(share: Share) -> float:
    return share.ingress.left_at


def _relieve(core: Core) -> None:
    """What links that are detached had unsettled counts no longer against others of the same connection and address."""
    relieved, core.relieved = core.relieved, {}
    for record, addresses in relieved.items():
        for outgoing in record.outgoing:
            if outgoing.address in addresses:
                core.touch_outgoing(outgoing)


def _update_branch(core: Core, outgoing: OutgoingLink) -> None:
    if outgoing.retired and core.mesh is not None:
        core.mesh.routes.lane_links.end_if_done(outgoing)
    recount(core, outgoing)
    branch = outgoing.branch
    if branch is not None and not outgoing.gone:
        flow_state = outgoing.link.flow_state
        if core.recording is not None:
            core.recording.may_have_waited(outgoing)
        outgoing.time_credit(core.now)
        if flow_state.session.wire.sending:
            count_output(core, outgoing.connection)
        withdrawn = flow_state.lowered and flow_state.link_credit == 0
        usable = outgoing.usable
        if outgoing.skipped and usable:
            take_back(core, outgoing, branch)
        elif outgoing.address.is_multicast and not usable:
            watch(core, outgoing)
        elif usable:
            outgoing.stalled_since = None
        outgoing.address.pool.set_usable(branch, usable, core.now, withdrawn=withdrawn)
        if not usable and flow_state.link_credit:
            outgoing.stall()


def _drop_if_idle(core: Core, address: Address) -> bool:
    """Forget an address that nobody uses any more; whether it was."""
    if address.far is not None:
        return address.far.look()
    if core.mesh is not None and core.mesh.routes.is_internal(address):
        return core.mesh.routes.drop_if_idle(address)
    return core.addresses.drop_if_idle(address)


def _grant(core: Core, grants: Iterable[Grant]) -> None:
    for grant in grants:
        incoming = grant.input.owner
        if isinstance(incoming, Share):
            incoming.grant(grant, core.now)
            if incoming.draining:
                ingress = incoming.ingress
                if incoming not in ingress.lenders:
                    ingress.lenders = with_item(ingress.lenders, incoming)
                    incoming.drain_by = core.now + ingress.config.drain_time
                    core.schedule(incoming.drain_by, partial(core.touch, ingress))
            core.touch(incoming.ingress)
        elif isinstance(incoming, IncomingLink) and incoming.link.is_attached:
            incoming.link.flow(grant.credit, drain=grant.drain, echo=grant.echo)
            incoming.link.flow_state.quiet = incoming.pool.quiet(grant.input)
            if core.recording is not None:
                core.recording.may_have_waited(incoming)
            incoming.time_credit(core.now)


def _answer_drains(core: Core, address: Address) -> None:
    over = address.pool.drained(core.now)
    for share in list(address.lenders):
        if over or core.now >= share.drain_by:
            address.lenders = without_item(address.lenders, share)
            share.drained(core.now)
            core.touch(share.node)
    answered = []
    for outgoing in address.draining:
        if not over and core.now < outgoing.drain_by:
            break  # those behind it have asked later
        # What waits may wait for others, as a multicast does for its slowest: nobody is kept longer for that.
        # But a delivery that was given to it, and of which nothing is sent yet, needs one of the credit.
        if outgoing.current is None or outgoing.current.started:
            answered.append(outgoing)
    for outgoing in answered:
        address.draining = without_item(address.draining, outgoing)
        outgoing.link.drained()
        core.touch_outgoing(outgoing)
