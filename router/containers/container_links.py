"""Links of ours to nodes of other containers: a broker's queue that feeds an address, or is fed from one.

They are attached whenever the connection of their connector is open, each in a session of its own: there are brokers
that end a whole session for what they do not like of a link. Once attached such a link is like a client's. What comes
by it is settled there with what its receiver said, and not before; what leaves by it has the outcome that the other
container gives. So whatever is cut in between, each side has what the other did not settle (§2.6.12).

Where a container says that the node is elsewhere (§2.8.18), its link goes there, as far as the connector's policy lets
it, and comes back when it ends there.
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
from amqpmesh.router.delivery.link_loss import link_over
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.model.redirects import redirect_of
from amqpmesh.router.small_set import with_item
from amqpmesh.router.statistics.router_statistics import ContainerLinkState, ContainerLinkStatistics

if TYPE_CHECKING:
    from amqpmesh.router.amqp.events import LinkAttached, LinkDetached
    from amqpmesh.router.amqp.link import Link
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.containers.on_demand import Places
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.node import Address

#: Seconds before a link that did not come about, or did not stay, is attached again: twice as many each time.
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0

#: The same of one that was stolen. Who took it wants it as much as we do: to take it back at once would go on for ever.
FIRST_STOLEN_PAUSE: Final = 10.0
LONGEST_STOLEN_PAUSE: Final = 300.0

#: Seconds after which a link has come about for good: what then ends it is the first fault in a row.
LASTING: Final = 5.0

#: Seconds in which a peer that has attached a link may still refuse it.
REFUSING: Final = 1.0

#: Seconds in which a peer has to answer a watch.
WATCHING: Final = 10.0

#: Seconds in which a link that was redirected has to come about where it was sent.
REACHING: Final = 30.0

S = ContainerLinkState


class Containers:
    """The container links of a router."""

    def __init__(self, context: Context, places: Places) -> None:
        self._context = context
        self._places = places
        #: All of them, those of the configuration first, in its order.
        self._all: dict[ContainerLink, None] = {}
        self._by_connector: dict[str, dict[ContainerLink, None]] = {}
        #: Those that have an endpoint, by that; and those whose node is watched, by the watch.
        self._by_link: dict[Link, ContainerLink] = {}
        self._by_watch: dict[Link, ContainerLink] = {}
        for config in context.config.container_links:
            self.add(configured(context, config))

    def add(self, each: ContainerLink) -> None:
        """Have one more link: it is attached once there is a connection, or now."""
        self._all[each] = None
        self._go(each, each.connector)
        if each.record is not None:
            self._attach(each)

    def remove(self, each: ContainerLink) -> None:
        """Have a link no more. What is unsettled on it ends as on any link that is gone."""
        link = each.link
        each.retry_at = None
        self._all.pop(each, None)
        for endpoint in (link, self._let_go(each)):
            if endpoint is not None:
                self._detach(endpoint)
        self._leave(each)
        each.stop = None

    # ------------------------------------------------------------------------------------------------------ connections

    def opened(self, record: ConnectionRecord) -> None:
        """A connection is open: attach the links that are to go over it."""
        if record.connector is None:
            return
        for each in list(self._by_connector.get(record.connector.name, ())):
            each.record = record
            # Over whichever connection: who stole it may have it still.
            if each.state is not S.STOLEN or each.retry_at is None or each.retry_at <= self._context.now:
                self._attach(each)

    def lost(self, record: ConnectionRecord) -> None:
        """A connection is gone; the connector tells why."""
        if record.connector is None:
            return
        for each in list(self._by_connector.get(record.connector.name, ())):
            if each.record is not record:
                continue
            self._let_go(each)
            each.record = each.session = None
            if each.stop is not None:
                self._wait(each, f"the connection to {each.connector} is gone, where it was sent")
            elif each.state is not S.STOLEN:
                each.become(S.DISCONNECTED, self._context.now)

    def ended(self, session: Session, error: Error | None, *, by_peer: bool) -> None:
        """A session is over, and what was attached in it."""
        alone = len(self._others_in(session)) == 1
        what = f"the {who(by_peer=by_peer)} ended the session"
        for each in self._others_in(session):
            if each.link is None:
                self._watch_over(each, error, what)
            else:
                self._over(each, error, what, refused=alone and by_peer and each.state is S.ATTACHING)

    def _others_in(self, session: Session) -> list[ContainerLink]:
        endpoints = (*self._by_link.items(), *self._by_watch.items())
        return list(dict.fromkeys(each for link, each in endpoints if link.session is session))

    def _go(self, each: ContainerLink, connector: str) -> None:
        """From now on it goes over the connections of that connector."""
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
        """Over those of its connector no more. Args: onward: over those of this one."""
        self._end_session(each)
        those = self._by_connector.get(each.connector, {})
        those.pop(each, None)
        if not those:
            self._by_connector.pop(each.connector, None)
        if each.stop is not None and each.connector != onward:
            self._places.leave(each.connector, each)

    def _end_session(self, each: ContainerLink) -> None:
        session, each.session = each.session, None
        if session is not None and session.can_send and not self._others_in(session):
            session.end()

    # ------------------------------------------------------------------------------------------------------------ links

    def attached(self, each: ContainerLink, event: LinkAttached) -> None:
        """The answer to our attach. Without a terminus of the peer's it is a refusal: the detach says why (§2.6.3)."""
        context, link, record = self._context, event.link, each.record
        if record is None or is_refusal(link, event.attach):
            return
        if each.watch is link and each.link is None:
            self._attach_link(each, record)
        if each.link is not link:
            return
        address = each.serves(record)
        if isinstance(link, Receiver):
            link.context = self._take_in(record, link, address)
        elif isinstance(link, Sender):
            link.context = self._take_out(record, link, address)
        each.become(S.ATTACHED, context.now)
        each.reason = None
        each.is_news_no_more()
        context.log.info(
            "link attached", connector=each.connector, link=link.name, node=each.node, address=each.address
        )

    def detached(self, event: LinkDetached) -> None:
        """A link was detached: by the peer, or by the router for what the peer did wrong on it."""
        self.over(event.link, event.error, by_peer=event.by_peer)

    def over(self, link: Link, error: Error | None, *, by_peer: bool = False) -> None:
        """An endpoint is gone; if it was of a container link, that is attached again, not at once."""
        watched = self._by_watch.get(link)
        if watched is not None:
            verb = "refused" if watched.link is None else "detached"
            self._watch_over(watched, error, f"the {who(by_peer=by_peer)} {verb} the watch")
        each = self._by_link.get(link)
        if each is None:
            return
        refused = by_peer and (each.state is S.ATTACHING or (error is not None and self._is_untried(each, link)))
        verb = "refused" if refused else "detached"
        self._over(each, error, f"the {who(by_peer=by_peer)} {verb} the link", refused=refused)

    def _is_untried(self, each: ContainerLink, link: Link) -> bool:
        """Whether a link was attached a moment ago, and nothing has gone by it: there are containers that answer with a
        terminus before they look whether they have it.
        """
        taken = link.context
        is_unused = isinstance(taken, IncomingLink | OutgoingLink) and taken.last_delivery_at is None
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
            link = each.attach(self._session_of(each, record), record.limits.max_message_size)
        except CommandError as error:
            self._let_go(each)
            self._wait(each, f"it cannot be attached: {error}")
            return
        link.context = each
        each.link = link
        self._by_link[link] = each
        each.become(S.ATTACHING, self._context.now)

    def _attach_watch(self, each: ContainerLink, record: ConnectionRecord) -> None:
        """Find out first whether the node is there. In another session than before: RabbitMQ 3 answers no detach of a
        receiver without credit.
        """
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
        self._context.schedule(self._context.now + WATCHING, partial(self._despair_of, each, watch))

    def _despair_of(self, each: ContainerLink, watch: Link) -> None:
        if each.watch is watch and each.link is None:
            self._watch_over(each, None, f"the peer did not answer the watch in {WATCHING:g} s")
            self._detach(watch)

    def _watch_over(self, each: ContainerLink, error: Error | None, what: str) -> None:
        """A watch is refused, or ends. With the node goes the link; without a watch it goes on, and says so."""
        context, link, record = self._context, each.link, each.record
        assert record is not None, "it has a watch"
        if is_gone(error):
            if link is not None:
                self._detach(link)
            self._over(each, error, f"{what}: the node is not there", refused=True)
            return
        self._let_go_of_watch(each)
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
        if link is None:
            self._attach_link(each, record)

    def _detach(self, link: Link) -> None:
        """Have an endpoint no more; what is unsettled on it ends as on any link that is gone."""
        taken = link.context
        if isinstance(taken, IncomingLink | OutgoingLink):
            link_over(self._context, taken)
        if link.state in (LinkEndpointState.ATTACH_SENT, LinkEndpointState.ATTACHED) and link.session.can_send:
            link.detach()

    def _session_of(self, each: ContainerLink, record: ConnectionRecord) -> Session:
        """The session that it has, or another one. Raises: CommandError: no channel is free."""
        if each.session is None or not each.session.can_send:
            each.session = self._session(each, record)
        return each.session

    def _is_this_router(self, container: str) -> bool:
        """Whether a container is this router, or another one of its workers."""
        worker = self._context.config.worker
        if worker is None:
            return container == self._context.id
        from amqpmesh.topology.workers import covers  # here: a router of no mesh reads nothing of one

        return covers(worker.name, container)

    def _session(self, each: ContainerLink, record: ConnectionRecord) -> Session:
        """A session of its own for one more link; those that were made on demand share them once there are no more.

        Raises: CommandError: no channel is free.
        """
        try:
            # As many sessions as are configured: what is divided among those of a peer's is not meant for them.
            return record.engine.begin(record.limits.session_window)
        except CommandError:
            shared = Counter(
                link.session
                for link, other in self._by_link.items()
                if other.record is record and other.refused is not None and link.session.has_room
            )
            if each.refused is None or not shared:
                raise
            return min(shared, key=shared.__getitem__)

    def _take_in(self, record: ConnectionRecord, link: Receiver, node: Address) -> IncomingLink:
        """What comes by this link is for that node."""
        context = self._context
        incoming = IncomingLink(record, link, node, node.pool, number=context.next_link_number(), now=context.now)
        # RabbitMQ 3 ends the session for a drain, or counts wrongly from then on. Brokers' limits are lowered instead:
        # what they send to nobody comes back to them, and is sent again.
        incoming.input.drains = False
        incoming.input.firm = False
        record.incoming[incoming] = None
        node.incoming = with_item(node.incoming, incoming)
        context.touch_input(incoming)
        return incoming

    def _take_out(self, record: ConnectionRecord, link: Sender, node: Address) -> OutgoingLink:
        """The node in the other container consumes what comes to that one."""
        context = self._context
        outgoing = OutgoingLink(
            record,
            link,
            node,
            copy=False,
            default_outcome=None,
            max_unsettled=node.config.max_unsettled,
            number=context.next_link_number(),
            now=context.now,
        )
        record.outgoing[outgoing] = None
        node.outgoing = with_item(node.outgoing, outgoing)
        outgoing.branch = node.pool.add_branch(0, 1, True, outgoing)
        context.touch_outgoing(outgoing)
        context.routes.consumers_changed(node)
        return outgoing

    def _over(self, each: ContainerLink, error: Error | None, what: str, *, refused: bool) -> None:
        now = self._context.now
        lasted = now - each.since if each.state is S.ATTACHED else 0.0
        watch = self._let_go(each)
        if watch is not None:
            self._detach(watch)
        if lasted >= LASTING:
            each.failures = 0
        if lasted >= LONGEST_STOLEN_PAUSE:
            each.thefts = 0
        reason = what + because(error)
        if error is not None and error.condition == LinkCondition.STOLEN:
            self._stolen(each)
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

    def _let_go(self, each: ContainerLink) -> Link | None:
        """It has no endpoint any more, and no watch. Returns: that, if there was one."""
        if each.link is not None:
            del self._by_link[each.link]
            each.link = None
        return self._let_go_of_watch(each)

    def _let_go_of_watch(self, each: ContainerLink) -> Link | None:
        watch, each.watch = each.watch, None
        if watch is not None:
            del self._by_watch[watch]
        return watch

    # -------------------------------------------------------------------------------------------------------- elsewhere

    def _follow(self, each: ContainerLink, error: Error) -> str | None:
        """Go where the peer says that the node is. Returns: why not; None: it goes there."""
        context, record = self._context, each.record
        assert record is not None, "a peer has said so"
        redirect = redirect_of(error)
        try:
            stop = self._places.next_stop(each.home, each.stop, record, each.node, redirect)
            connector = self._places.use(stop.place, each, home=each.home)
        except NotFollowedError as refusal:
            return str(refusal)
        came_from = each.connector
        self._leave(each, connector)
        each.stop = stop
        each.node = stop.address or each.node
        self._go(each, connector)
        each.reason = f"{came_from} says that it is at {connector}"
        context.log.info(
            "link redirected", connector=came_from, link=each.name, node=each.node, address=each.address, to=connector
        )
        each.become(S.DISCONNECTED, context.now)
        context.schedule(context.now + REACHING, partial(self._despair, each, stop))
        if each.record is not None:
            self._attach(each)
        return None

    def _despair(self, each: ContainerLink, stop: object) -> None:
        """It has not come about where it was sent: try where it belongs."""
        if each.stop is stop and each.state is S.DISCONNECTED:
            self._wait(each, f"{each.connector} is not reached, where it was sent")

    def _go_home(self, each: ContainerLink) -> None:
        """It ended where a redirect had led it: who sent it there may know better by now."""
        if each.stop is not None:
            self._leave(each)
            each.stop = None
            each.node = each.home_node
            self._go(each, each.home)

    # ----------------------------------------------------------------------------------------------------------- again

    def _wait(self, each: ContainerLink, reason: str) -> None:
        each.failures += 1
        at = each.connector
        self._go_home(each)
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

    def _stolen(self, each: ContainerLink) -> None:
        """Another link of this name, of a container with our id, has taken its place (§2.6.1)."""
        each.thefts += 1
        each.stolen += 1
        reason = "it was attached elsewhere, by a container with this one's id"
        at = each.connector
        self._go_home(each)
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
        """Have it attached again after a pause, a random part less. Returns: the pause, seconds."""
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
        """How they stand, in the order of the configuration; those that were made on demand come behind."""
        return tuple(each.statistics() for each in self._all)
