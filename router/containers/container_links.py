"""Links of this router to nodes of other containers: a broker's queue feeds an address, or is fed from one.

A link attaches when the connection of its connector is open. It has its own session: some brokers end a whole session
for a fault of one link. An attached link works like a client's. An incoming delivery is settled with the outcome of its
receiver, and not before. An outgoing delivery has the outcome that the other container gives. So after a failure each
side still has the deliveries that the other side did not settle (§2.6.12).

A container can redirect a link to another place (§2.8.18). The link goes there if its connector's policy allows it, and
returns to its connector when it ends there.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from amqpmesh.policies.redirect import NotFollowedError
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.link import Receiver, Sender
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, LinkCondition
from amqpmesh.router.amqp.states import LinkEndpointState
from amqpmesh.router.containers.container_link import ContainerLink, because, configured, is_refusal, who
from amqpmesh.router.containers.watches import is_gone
from amqpmesh.router.delivery.link_loss import close_link
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.model.redirects import redirect_of
from amqpmesh.router.small_set import with_item
from amqpmesh.router.statistics.configured import ContainerLinkState, ContainerLinkStatistics

if TYPE_CHECKING:
    from amqpmesh.router.amqp.events import LinkAttached
    from amqpmesh.router.amqp.link import Link
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.containers.on_demand import OnDemandConnections
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.node import Node

#: Seconds before a link attaches again that was refused or has ended: twice as many each time.
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0

#: The same for a stolen link. Its thief would steal it again at once, and so on for ever.
FIRST_STOLEN_PAUSE: Final = 10.0
LONGEST_STOLEN_PAUSE: Final = 300.0

#: Seconds after which a link has lasted: its end then counts as the first failure in a row.
LASTING: Final = 5.0

#: Seconds after an attach in which a detach with an error counts as a refusal.
REFUSING: Final = 1.0

#: Seconds that a peer has to answer the attach of a watch.
WATCHING: Final = 10.0

#: Seconds in which a redirected link must have a connection to its new place.
REACHING: Final = 30.0

S = ContainerLinkState


class Containers:
    """The container links of a router."""

    def __init__(self, context: Context, on_demand: OnDemandConnections) -> None:
        self._context = context
        self._on_demand = on_demand
        #: All links: those of the configuration first, in its order.
        self._all: dict[ContainerLink, None] = {}
        self._by_connector: dict[str, dict[ContainerLink, None]] = {}
        #: The links with an endpoint, by the endpoint. `_by_watch`: the links with a watch, by the watch.
        self._by_link: dict[Link, ContainerLink] = {}
        self._by_watch: dict[Link, ContainerLink] = {}
        for config in context.config.container_links:
            self.add(configured(context, config))

    def add(self, each: ContainerLink) -> None:
        """Add a link. It attaches now, or as soon as there is a connection."""
        self._all[each] = None
        self._use_connector(each, each.connector)
        if each.record is not None:
            self._attach(each)

    def remove(self, each: ContainerLink) -> None:
        """Remove a link. Its unsettled deliveries end as those of any ended link."""
        endpoint = each.link
        each.retry_at = None
        self._all.pop(each, None)
        for attached in (endpoint, self._forget_endpoint(each)):
            if attached is not None:
                self._detach(attached)
        self._leave(each)
        each.chain = None

    def remove_configured(self, name: str) -> None:
        """Remove a link of the configuration. Args: name: the link's."""
        self.remove(next(each for each in self._all if each.is_configured and each.name == name))

    # ------------------------------------------------------------------------------------------------------ connections

    def opened(self, record: ConnectionRecord) -> None:
        """Attach the links that use a connection, which is open now."""
        if record.connector is None:
            return
        for each in list(self._by_connector.get(record.connector.name, ())):
            each.record = record
            # A stolen link waits, also over a new connection: its thief may still have it.
            if each.state is not S.STOLEN or each.retry_at is None or each.retry_at <= self._context.now:
                self._attach(each)

    def lost(self, record: ConnectionRecord) -> None:
        """Stop the links that used a lost connection. The connector logs the reason."""
        if record.connector is None:
            return
        for each in list(self._by_connector.get(record.connector.name, ())):
            if each.record is not record:
                continue
            self._forget_endpoint(each)
            each.record = each.session = None
            if each.chain is not None:
                self._wait(each, f"the connection to {each.connector} is gone, where it was sent")
            elif each.state is not S.STOLEN:
                each.become(S.DISCONNECTED, self._context.now)

    def ended(self, session: Session, error: Error | None, *, by_peer: bool) -> None:
        """Handle the end of a session, which ends its links and watches."""
        alone = len(self._others_in(session)) == 1
        what = f"the {who(by_peer=by_peer)} ended the session"
        for each in self._others_in(session):
            if each.link is None:
                self._watch_ended(each, error, what)
            else:
                self._link_ended(each, error, what, refused=alone and by_peer and each.state is S.ATTACHING)

    def _others_in(self, session: Session) -> list[ContainerLink]:
        endpoints = (*self._by_link.items(), *self._by_watch.items())
        return list(dict.fromkeys(each for endpoint, each in endpoints if endpoint.session is session))

    def _use_connector(self, each: ContainerLink, connector: str) -> None:
        """Let a link use the connections of a connector from now on."""
        each.connector = connector
        self._by_connector.setdefault(connector, {})[each] = None
        each.record = next(
            (
                record
                for record in self._context.connections
                if record.connector is not None
                and record.connector.name == connector
                and record.engine.remote is not None
                and record.engine.can_send
                and not record.lost
            ),
            None,
        )

    def _leave(self, each: ContainerLink, onward: str | None = None) -> None:
        """Let a link no longer use its connector. Args: onward: the connector that it uses next."""
        self._end_session(each)
        those = self._by_connector.get(each.connector, {})
        those.pop(each, None)
        if not those:
            self._by_connector.pop(each.connector, None)
        if each.chain is not None and each.connector != onward:
            self._on_demand.leave(each.connector, each)

    def _end_session(self, each: ContainerLink) -> None:
        session, each.session = each.session, None
        if session is not None and session.can_send and not self._others_in(session):
            session.end()

    # ------------------------------------------------------------------------------------------------------------ links

    def attached(self, each: ContainerLink, event: LinkAttached) -> None:
        """Handle the answer to our attach. If it is a refusal, the peer's detach follows, with the reason (§2.6.3)."""
        context, endpoint, record = self._context, event.link, each.record
        if record is None or is_refusal(endpoint, event.attach):
            return
        if each.watch is endpoint and each.link is None:
            self._attach_link(each, record)
        if each.link is not endpoint:
            return
        node = each.serves(record)
        if isinstance(endpoint, Receiver):
            endpoint.context = self._take_in(record, endpoint, node)
        elif isinstance(endpoint, Sender):
            endpoint.context = self._take_out(record, endpoint, node)
        each.become(S.ATTACHED, context.now)
        each.reason = None
        each.is_news_no_more()
        context.log.info(
            "link attached", connector=each.connector, link=endpoint.name, node=each.node, address=each.address
        )

    def link_ended(self, endpoint: Link, error: Error | None, *, by_peer: bool = False) -> None:
        """Handle the end of an endpoint. If it belongs to a container link, that attaches again after a pause."""
        watched = self._by_watch.get(endpoint)
        if watched is not None:
            verb = "refused" if watched.link is None else "detached"
            self._watch_ended(watched, error, f"the {who(by_peer=by_peer)} {verb} the watch")
        each = self._by_link.get(endpoint)
        if each is None:
            return
        refused = by_peer and (each.state is S.ATTACHING or (error is not None and self._is_untried(each, endpoint)))
        verb = "refused" if refused else "detached"
        self._link_ended(each, error, f"the {who(by_peer=by_peer)} {verb} the link", refused=refused)

    def _is_untried(self, each: ContainerLink, endpoint: Link) -> bool:
        """Return whether a link attached a moment ago, and has had no delivery: some containers attach first, and look
        for the node then."""
        link = endpoint.context
        is_unused = isinstance(link, IncomingLink | OutgoingLink) and link.last_delivery_at is None
        return is_unused and self._context.now - each.since < REFUSING

    def _attach(self, each: ContainerLink) -> None:
        context, record = self._context, each.record
        each.retry_at = None
        if record is None or context.draining:
            return
        if each.refused is not None and self._is_this_router(record.peer.container_id):
            error = Error(condition=AmqpCondition.NOT_ALLOWED, description="it is this router itself")
            if each.refused(each, error):
                self.remove(each)
            else:
                self._wait(each, "the place is this router itself")
            return
        each.unwatched = None
        if each.is_watched(is_doubtful=record.doubtful):
            self._attach_watch(each, record)
        else:
            self._attach_link(each, record)

    def _attach_link(self, each: ContainerLink, record: ConnectionRecord) -> None:
        try:
            endpoint = each.attach(self._session_of(each, record), record.limits.max_message_size)
        except CommandError as error:
            self._forget_endpoint(each)
            self._wait(each, f"it cannot be attached: {error}")
            return
        endpoint.context = each
        each.link = endpoint
        self._by_link[endpoint] = each
        each.become(S.ATTACHING, self._context.now)

    def _attach_watch(self, each: ContainerLink, record: ConnectionRecord) -> None:
        """Attach the watch, and the link after it, in a new session: RabbitMQ 3 answers no detach of the last watch."""
        self._end_session(each)
        try:
            watch = each.attach_watch(self._session_of(each, record))
        except CommandError as error:
            self._wait(each, f"it cannot be watched: {error}")
            return
        watch.context = each
        each.watch = watch
        self._by_watch[watch] = each
        each.become(S.ATTACHING, self._context.now)
        self._context.schedule(self._context.now + WATCHING, partial(self._give_up_watch, each, watch))

    def _give_up_watch(self, each: ContainerLink, watch: Link) -> None:
        if each.watch is watch and each.link is None:
            self._watch_ended(each, None, f"the peer did not answer the watch in {WATCHING:g} s")
            self._detach(watch)

    def _watch_ended(self, each: ContainerLink, error: Error | None, what: str) -> None:
        """End the link if its watch ended because the node is gone; else continue without a watch, and log that."""
        context, endpoint, record = self._context, each.link, each.record
        assert record is not None, "it has a watch"
        if is_gone(error):
            if endpoint is not None:
                self._detach(endpoint)
            self._link_ended(each, error, f"{what}: the node is not there", refused=True)
            return
        self._forget_watch(each)
        reason = what + because(error)
        if each.is_news_of_watch(reason):
            context.log.warning(
                "link watch failed",
                connector=each.connector,
                link=each.name,
                node=each.node,
                address=each.address,
                reason=reason,
            )
        each.unwatched = reason
        if endpoint is None:
            self._attach_link(each, record)

    def _detach(self, endpoint: Link) -> None:
        """Detach an endpoint. Its unsettled deliveries end as those of any ended link."""
        link = endpoint.context
        if isinstance(link, IncomingLink | OutgoingLink):
            close_link(self._context, link)
        if endpoint.state in (LinkEndpointState.ATTACH_SENT, LinkEndpointState.ATTACHED) and endpoint.session.can_send:
            endpoint.detach()

    def _session_of(self, each: ContainerLink, record: ConnectionRecord) -> Session:
        """Return the link's session, or begin a new one. Raises: CommandError: no channel is free."""
        if each.session is None or not each.session.can_send:
            each.session = self._session(each, record)
        return each.session

    def _is_this_router(self, container: str) -> bool:
        """Return whether a container is this router, or another of its workers."""
        worker = self._context.config.worker
        if worker is None:
            return container == self._context.id
        from amqpmesh.topology.workers import covers  # here: a router without a mesh imports nothing of it

        return covers(worker.name, container)

    def _session(self, each: ContainerLink, record: ConnectionRecord) -> Session:
        """Begin a session for a link. Without a free channel, on-demand links share the session with the fewest links.

        Raises: CommandError: no channel is free, and there is no session to share.
        """
        try:
            # Each of these sessions has the whole window: only sessions that the peer begins divide one among them.
            return record.engine.begin(record.limits.session_window)
        except CommandError:
            shared = Counter(
                endpoint.session
                for endpoint, other in self._by_link.items()
                if other.record is record and other.refused is not None and endpoint.session.has_room
            )
            if each.refused is None or not shared:
                raise
            return min(shared, key=shared.__getitem__)

    def _take_in(self, record: ConnectionRecord, endpoint: Receiver, node: Node) -> IncomingLink:
        """Make the incoming link: its deliveries are for this node."""
        context = self._context
        incoming = IncomingLink(record, endpoint, node, node.pool, number=context.next_link_number(), now=context.now)
        # RabbitMQ 3 ends the session for a drain, or counts credit wrongly after it. So the router takes credit back by
        # a lower limit. A message that is under way meanwhile, and finds no receiver, returns to the broker.
        incoming.credit_sink.drains = False
        incoming.credit_sink.firm = False
        record.incoming[incoming] = None
        node.incoming = with_item(node.incoming, incoming)
        context.touch_input(incoming)
        return incoming

    def _take_out(self, record: ConnectionRecord, endpoint: Sender, node: Node) -> OutgoingLink:
        """Make the outgoing link: the node in the other container consumes the deliveries of this node."""
        context = self._context
        outgoing = OutgoingLink(
            record,
            endpoint,
            node,
            copy=False,
            default_outcome=None,
            max_unsettled=node.config.max_unsettled,
            number=context.next_link_number(),
            now=context.now,
        )
        record.outgoing[outgoing] = None
        node.outgoing = with_item(node.outgoing, outgoing)
        outgoing.join_pool()
        context.touch_outgoing(outgoing)
        context.routes.consumers_changed(node)
        return outgoing

    def _link_ended(self, each: ContainerLink, error: Error | None, what: str, *, refused: bool) -> None:
        now = self._context.now
        lasted = now - each.since if each.state is S.ATTACHED else 0.0
        watch = self._forget_endpoint(each)
        if watch is not None:
            self._detach(watch)
        if lasted >= LASTING:
            each.failures = 0
        if lasted >= LONGEST_STOLEN_PAUSE:
            each.thefts = 0
        reason = what + because(error)
        if error is not None and error.condition == LinkCondition.STOLEN:
            self._attach_stolen_later(each)
            return
        if error is not None and error.condition == LinkCondition.REDIRECT:
            refusal = self._follow(each, error)
            if refusal is None:
                return
            refused, reason = True, f"the peer says that it is elsewhere: not followed, {refusal}"
        if refused and each.refused is not None and each.refused(each, error):
            self.remove(each)
        else:
            self._wait(each, reason)

    def _forget_endpoint(self, each: ContainerLink) -> Link | None:
        """Forget the endpoint of a link, and its watch. Returns: the watch, if there was one."""
        if each.link is not None:
            del self._by_link[each.link]
            each.link = None
        return self._forget_watch(each)

    def _forget_watch(self, each: ContainerLink) -> Link | None:
        watch, each.watch = each.watch, None
        if watch is not None:
            del self._by_watch[watch]
        return watch

    # -------------------------------------------------------------------------------------------------------- elsewhere

    def _follow(self, each: ContainerLink, error: Error) -> str | None:
        """Follow the peer's redirect. Returns: the reason why the link does not; None: it does."""
        context, record = self._context, each.record
        assert record is not None, "a peer has said so"
        redirect = redirect_of(error)
        try:
            chain = self._on_demand.extend_chain(each.home, each.chain, record, each.node, redirect)
            connector = self._on_demand.use(chain.place, each, each.tenant(record), home=each.home)
        except NotFollowedError as refusal:
            return str(refusal)
        came_from = each.connector
        self._leave(each, connector)
        each.chain = chain
        each.node = chain.address or each.node
        self._use_connector(each, connector)
        each.reason = f"{came_from} says that it is at {connector}"
        context.log.info(
            "link redirected", connector=came_from, link=each.name, node=each.node, address=each.address, to=connector
        )
        each.become(S.DISCONNECTED, context.now)
        context.schedule(context.now + REACHING, partial(self._give_up_redirect, each, chain))
        if each.record is not None:
            self._attach(each)
        return None

    def _give_up_redirect(self, each: ContainerLink, chain: object) -> None:
        """Return a redirected link to its own connector, if there is no connection to its new place yet."""
        if each.chain is chain and each.state is S.DISCONNECTED:
            self._wait(each, f"{each.connector} is not reached, where it was sent")

    def _return_home(self, each: ContainerLink) -> None:
        """Return a redirected link to its own connector: the container there may have a newer redirect."""
        if each.chain is not None:
            self._leave(each)
            each.chain = None
            each.node = each.home_node
            self._use_connector(each, each.home)

    # ----------------------------------------------------------------------------------------------------------- again

    def _wait(self, each: ContainerLink, reason: str) -> None:
        each.failures += 1
        at = each.connector
        self._return_home(each)
        seconds = self._try_later(each, S.WAITING, reason, FIRST_PAUSE, LONGEST_PAUSE, each.failures)
        if each.is_news(reason, self._context.now):
            self._context.log.warning(
                "link retrying",
                connector=at,
                link=each.name,
                node=each.node,
                address=each.address,
                reason=reason,
                seconds=seconds,
            )

    def _attach_stolen_later(self, each: ContainerLink) -> None:
        """Attach a stolen link again later: a container with our id has attached a link of its name (§2.6.1)."""
        each.thefts += 1
        each.stolen += 1
        reason = "it was attached elsewhere, by a container with this one's id"
        at = each.connector
        self._return_home(each)
        seconds = self._try_later(each, S.STOLEN, reason, FIRST_STOLEN_PAUSE, LONGEST_STOLEN_PAUSE, each.thefts)
        self._context.log.warning(
            "link stolen by another container",
            connector=at,
            link=each.name,
            node=each.node,
            address=each.address,
            count=each.stolen,
            seconds=seconds,
        )

    def _try_later(
        self, each: ContainerLink, state: ContainerLinkState, reason: str, first: float, longest: float, row: int
    ) -> float:
        """Attach a link again after a pause, which is cut by up to half at random. Returns: the pause, seconds."""
        context = self._context
        chance = int(context.token(4), 16) / 2**32
        pause = min(longest, first * 2.0 ** min(row - 1, 30)) * (0.5 + chance / 2)
        each.become(state, context.now)
        each.reason = reason
        each.retry_at = context.now + pause
        context.schedule(each.retry_at, partial(self._try_again, each, each.retry_at))
        return round(pause, 3)

    def _try_again(self, each: ContainerLink, at: float) -> None:
        if each.retry_at == at:
            self._attach(each)

    # ------------------------------------------------------------------------------------------------------------- told

    def statistics(self) -> tuple[ContainerLinkStatistics, ...]:
        """Return the links' statistics: configured links in the order of the configuration, then on-demand links."""
        return tuple(each.statistics() for each in self._all)
