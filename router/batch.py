"""The end of a batch: queued deliveries are sent, and credit is divided, at the nodes that the batch has touched."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from amqpmesh.router.context import Errand
from amqpmesh.router.delivery.anonymous_routes import watch_window
from amqpmesh.router.delivery.arrival import receive_held
from amqpmesh.router.delivery.dispatch import dispatch
from amqpmesh.router.delivery.fast_routes import reopen, stay_quiet
from amqpmesh.router.delivery.lifetime import recount
from amqpmesh.router.delivery.link_loss import detach_if_done, fail_links
from amqpmesh.router.delivery.memory_pressure import check
from amqpmesh.router.delivery.multicast_stall import take_back, watch
from amqpmesh.router.delivery.settlement import end_excluded, end_waiting, settle_kept
from amqpmesh.router.kernel import deal, pause_ahead
from amqpmesh.router.memory.holders import check_node, count_output
from amqpmesh.router.model.credit_share import CreditShare
from amqpmesh.router.model.links import IncomingLink
from amqpmesh.router.model.node import NOBODY_AWAITED, InternalNode
from amqpmesh.router.small_set import with_item, without_item

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import Grant
    from amqpmesh.router.model.links import OutgoingLink
    from amqpmesh.router.model.node import Node


def finish_batch(context: Context) -> None:
    """Send queued deliveries and divide credit, until no node is touched any more."""
    context.foreseen = None
    kernel, budget, memory = context.kernel, context.budget, context.memory
    if kernel.due:
        deal(kernel)
    if kernel.put_off:
        _send_again(context)
    if kernel.has_news():
        context.catch_up()
    is_over = budget.used > budget.limit
    if is_over and memory.is_exceeded:
        receive_held(context)
    if is_over or memory.used_up or memory.withheld:
        check(context)
    if context.relieved:
        _relieve(context)
    if context.touched or context.touched_windows or context.failed_links:
        _finish_touched(context)
    if budget.used > budget.limit and memory.is_exceeded:  # by deliveries that were sent meanwhile
        check(context)
        _finish_touched(context)
    if context.closed:
        reopen(context)


def timer_due(context: Context, owner: Node | Errand) -> None:
    """Do an errand, or what is due at a node, whose time has come. `finish_batch` is to follow."""
    if not isinstance(owner, Errand):
        _node_due(context, owner)
        return
    if not owner.leaves_held:
        receive_held(context)
    owner.action()


def _node_due(context: Context, node: Node) -> None:
    context.forget_timer(node)
    due = node.next_timer()
    if due is None or due > context.now:  # the reason of the timer is gone
        context.set_timer(node, due)
        return
    receive_held(context)  # not before: most timers of busy nodes have lost their reason
    node.pool.handle_timer(context.now)
    end_waiting(context, node)
    context.touch(node)


def _send_again(context: Context) -> None:
    """Send messages again that their receivers have not accepted, behind those that wait for the same receivers."""
    if context.kernel.has_news():
        context.catch_up()
    if context.failed_links:
        fail_links(context)
    for node in tuple(context.touched):
        if node.waiting.size and node.fast_route is not None and node.fast_route.keeper is not None:
            dispatch(context, node)
    if context.closed:
        reopen(context)
    settle_kept(context)


def _finish_touched(context: Context) -> None:
    memory = context.memory
    while context.touched or context.touched_windows or context.failed_links:
        if context.kernel.held_back:
            receive_held(context, closed=not context.failed_links)
        if context.failed_links:
            fail_links(context)
        if context.deserted:
            deserted, context.deserted = context.deserted, {}
            for node in deserted:
                end_excluded(context, node)
        addresses, context.touched = context.touched, {}
        for node in addresses:
            if node.waiting.size:
                dispatch(context, node)
            elif node.awaited:
                node.awaited = NOBODY_AWAITED
        if context.touched_outgoing:
            outgoing, context.touched_outgoing = context.touched_outgoing, {}
            for each in outgoing:
                _update_branch(context, each)
        for node in addresses:
            is_idle = node.is_idle
            if is_idle and _is_unused(context, node):
                context.forget_timer(node)
                continue
            check_node(context.memory, node, draining=context.draining)
            pool = node.made_pool
            if pool is not None:
                if memory.used_up:
                    pause_ahead(pool, context.now)
                grants = pool.grants(context.now)
                if grants:
                    _grant(context, grants)
                stay_quiet(node, pool)
                if node.waiting.size:
                    pause_ahead(pool, context.now)
            if node.draining or node.lenders:
                _answer_drains(context, node)
            if node.borrowers:
                for share in sorted(node.borrowers, key=_left_at):
                    # Several ingresses may wait until all consumers here can take a multicast: the one that sent last
                    # comes last.
                    if share.ingress.is_multicast and (share.look(context.now) or share.ingress.waiting.size):
                        context.touch(share.ingress)
            context.set_timer(node, node.next_timer())
            if (is_idle or node.remote is not None or node.is_internal) and _drop_if_idle(context, node):
                context.forget_timer(node)
        if context.touched_windows:
            windows, context.touched_windows = context.touched_windows, {}
            for window in windows:
                _grant(context, window.grants(context.now))
                watch_window(window)


def _left_at(share: CreditShare) -> float:
    return share.ingress.left_at


def _relieve(context: Context) -> None:
    """Let links send that were held up by unsettled deliveries of detached links of the same connection and node."""
    relieved, context.relieved = context.relieved, {}
    for record, addresses in relieved.items():
        for outgoing in record.outgoing:
            if outgoing.node in addresses:
                context.touch_outgoing(outgoing)


def _update_branch(context: Context, outgoing: OutgoingLink) -> None:
    if outgoing.retired:
        detach_if_done(context, outgoing)
    recount(context, outgoing)
    source = outgoing.credit_source
    if source is not None and not outgoing.gone:
        flow_state = outgoing.endpoint.flow_state
        if context.recording is not None:
            context.recording.may_have_waited(outgoing)
        outgoing.time_credit(context.now)
        if flow_state.session.wire.sending:
            count_output(context.memory, outgoing.connection)
        withdrawn = flow_state.lowered and flow_state.link_credit == 0
        usable = outgoing.usable
        if outgoing.skipped and usable:
            take_back(context, outgoing, source)
        elif outgoing.node.is_multicast and not usable:
            watch(context, outgoing)
        elif usable:
            outgoing.stalled_since = None
        outgoing.node.pool.set_usable(source, usable, context.now, withdrawn=withdrawn)
        if not usable and flow_state.link_credit:
            outgoing.stall()


def _is_unused(context: Context, node: Node) -> bool:
    """Forget an idle node of this router alone before it is asked for anything. Returns: whether it was forgotten."""
    if node.remote is not None or node.is_internal or node.draining or context.memory.withheld:
        return False
    context.nodes.remove(node)
    return True


def _drop_if_idle(context: Context, node: Node) -> bool:
    """Forget a node that is no longer used. Returns: whether it was forgotten."""
    if node.remote is not None:
        return node.remote.look()
    if isinstance(node, InternalNode):
        return context.routes.drop_if_idle(node)
    return context.nodes.drop_if_idle(node)


def _grant(context: Context, grants: Iterable[Grant]) -> None:
    for grant in grants:
        incoming = grant.sink.owner
        if isinstance(incoming, CreditShare):
            incoming.grant(grant, context.now)
            if incoming.draining:
                ingress = incoming.ingress
                if incoming not in ingress.lenders:
                    ingress.lenders = with_item(ingress.lenders, incoming)
                    incoming.drain_by = context.now + ingress.config.drain_time
                    context.schedule(incoming.drain_by, partial(context.touch, ingress))
            context.touch(incoming.ingress)
        elif isinstance(incoming, IncomingLink) and incoming.endpoint.is_attached:
            incoming.endpoint.flow(grant.credit, drain=grant.drain, echo=grant.echo)
            incoming.endpoint.flow_state.credit_slack = incoming.pool.credit_slack(grant.sink)
            if context.recording is not None:
                context.recording.may_have_waited(incoming)
            incoming.time_credit(context.now)


def _answer_drains(context: Context, node: Node) -> None:
    over = node.pool.drained(context.now)
    for share in list(node.lenders):
        if over or context.now >= share.drain_by:
            share.ingress.lenders = without_item(share.ingress.lenders, share)
            share.drained(context.now)
            context.touch(share.node)
    answered = []
    for outgoing in node.draining:
        if not over and context.now < outgoing.drain_by:
            break  # the receivers behind it have asked later
        # A queued delivery may wait for other receivers, as a multicast does for its slowest: the answer does not
        # wait for that. But a delivery of this link, of which no frame is sent yet, needs one of its credit.
        if outgoing.current is None or outgoing.current.started:
            answered.append(outgoing)
    for outgoing in answered:
        node.draining = without_item(node.draining, outgoing)
        outgoing.endpoint.drained()
        context.touch_outgoing(outgoing)
