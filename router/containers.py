"""Links of ours to nodes of other containers: a broker's queue that feeds an address, or is fed from one.

They are attached whenever the connection of their connector is open, each in a session of its own: there are brokers
that end a whole session for what they do not like of a link. Once attached such a link is like a client's. What comes
by it is settled there with what its receiver said, and not before; what leaves by it has the outcome that the other
container gives. So whatever is cut in between, each side has what the other did not settle (§2.6.12).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.definitions import LinkCondition, Role, SenderSettleMode
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.link import Receiver, Sender
from amqpmesh.router.amqp.messaging import Source, Target
from amqpmesh.router.amqp.terminus import Terminus
from amqpmesh.router.links import IncomingLink, OutgoingLink
from amqpmesh.router.statistics import ContainerLinkState, ContainerLinkStatistics, Direction

if TYPE_CHECKING:
    from amqpmesh.router.addresses import Address
    from amqpmesh.router.amqp.definitions import Error
    from amqpmesh.router.amqp.events import LinkAttached, LinkDetached
    from amqpmesh.router.amqp.link import Link
    from amqpmesh.router.amqp.performatives import Attach
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.config import LinkConfig
    from amqpmesh.router.connections import ConnectionRecord
    from amqpmesh.router.core import Core

#: Seconds before a link that did not come about, or did not stay, is attached again: twice as many each time.
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0

#: The same of one that was stolen. Who took it wants it as much as we do: to take it back at once would go on for ever.
FIRST_STOLEN_PAUSE: Final = 10.0
LONGEST_STOLEN_PAUSE: Final = 300.0

#: Seconds after which a link has come about for good: what then ends it is the first fault in a row.
LASTING: Final = 5.0

#: Deliveries beyond its credit that the other container may send. RabbitMQ 3 sends some whenever a `flow` crosses those
#: that are on their way; what bounds them is the session's window.
FORGIVEN: Final = 2**20

#: Seconds before a reason that has not changed is told again.
REPEAT_TIME: Final = 60.0

S = ContainerLinkState


class ContainerLink:
    """A configured link, over all connections of its connector."""

    def __init__(self, config: LinkConfig, now: float) -> None:
        self.config = config
        #: The connection of its connector; None: there is none.
        self.record: ConnectionRecord | None = None
        #: The endpoint that is attached, or that the peer has not answered yet; and the session of the last one.
        self.link: Link | None = None
        self.session: Session | None = None
        self.state = S.DISCONNECTED
        #: Since when it is in that state; seconds, as all times here.
        self.since = now
        #: Why it is not attached, or was not until now.
        self.reason: str | None = None
        #: When it is attached again, at the earliest.
        self.retry_at: float | None = None
        #: How often in a row it did not come about, or did not last; and how often in a row it was stolen.
        self.failures = 0
        self.thefts = 0
        #: How often it was stolen at all.
        self.stolen = 0
        self._told: tuple[str, float] | None = None

    @property
    def node(self) -> str:
        """The address of the node in the other container."""
        node = self.config.source if self.config.source is not None else self.config.target
        assert node is not None, "the configuration has one of them"
        return node

    def become(self, state: ContainerLinkState, now: float) -> None:
        """It is in that state from now on."""
        self.state = state
        self.since = now

    def is_news(self, reason: str, now: float) -> bool:
        """Whether to tell that it waits, and why: what stays as it is is told now and then."""
        if self._told is not None and self._told[0] == reason and now - self._told[1] < REPEAT_TIME:
            return False
        self._told = reason, now
        return True

    def is_news_no_more(self) -> None:
        """It works: what comes next is told, whatever was told before."""
        self._told = None

    def attach(self, session: Session, limit: int) -> Link:
        """Attach it. Args: limit: octets of the largest message that we take; 0: any.

        Raises: CommandError: the peer takes no more links, or its frames are too small.
        """
        name, config = self.config.name, self.config
        if config.source is not None:
            link = session.attach(
                Terminus(name, Role.RECEIVER),
                source=Source(address=config.source),
                target=Target(address=config.address),
                # It keeps each message until it has an outcome: what it sent settled would be lost with us.
                snd_settle_mode=SenderSettleMode.UNSETTLED,
                max_message_size=limit or None,
            )
            assert isinstance(link, Receiver)
            link.forgiven = FORGIVEN
            return link
        return session.attach(
            Terminus(name, Role.SENDER), source=Source(address=config.address), target=Target(address=config.target)
        )


class Containers:
    """The container links of a router."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._by_connector: dict[str, list[ContainerLink]] = {}
        for config in core.config.container_links:
            self._by_connector.setdefault(config.connector, []).append(ContainerLink(config, core.now))
        #: Those that have an endpoint, by that.
        self._by_link: dict[Link, ContainerLink] = {}

    # ------------------------------------------------------------------------------------------------------ connections

    def opened(self, record: ConnectionRecord) -> None:
        """A connection is open: attach the links that are to go over it."""
        if record.connector is None:
            return
        for each in self._by_connector.get(record.connector.name, ()):
            each.record = record
            # Over whichever connection: who stole it may have it still.
            if each.state is not S.STOLEN or each.retry_at is None or each.retry_at <= self._core.now:
                self._attach(each)

    def lost(self, record: ConnectionRecord) -> None:
        """A connection is gone; the connector tells why."""
        if record.connector is None:
            return
        for each in self._by_connector.get(record.connector.name, ()):
            if each.record is record:
                if each.link is not None:
                    self._let_go(each, each.link)
                each.record = each.session = None
                if each.state is not S.STOLEN:
                    each.become(S.DISCONNECTED, self._core.now)

    def ended(self, session: Session, error: Error | None, *, by_peer: bool) -> None:
        """A session is over, and what was attached in it."""
        for link, each in [*self._by_link.items()]:
            if link.session is session:
                self._over(each, link, error, f"the {_who(by_peer=by_peer)} ended the session")

    # ------------------------------------------------------------------------------------------------------------ links

    def attached(self, each: ContainerLink, event: LinkAttached) -> None:
        """The answer to our attach. Without a terminus of the peer's it is a refusal: the detach says why (§2.6.3)."""
        core, link, record = self._core, event.link, each.record
        if each.link is not link or record is None or _is_refusal(link, event.attach):
            return
        address = core.addresses.use(record.peer.tenant, each.config.address)
        if isinstance(link, Receiver):
            link.context = self._take_in(record, link, address)
        elif isinstance(link, Sender):
            link.context = self._take_out(record, link, address)
        each.become(S.ATTACHED, core.now)
        each.reason = None
        each.is_news_no_more()
        core.log.info(
            "link attached", connector=each.config.connector, link=link.name, node=each.node, address=address.name
        )

    def detached(self, event: LinkDetached) -> None:
        """A link was detached: by the peer, or by the router for what the peer did wrong on it."""
        self.over(event.link, event.error, by_peer=event.by_peer)

    def over(self, link: Link, error: Error | None, *, by_peer: bool = False) -> None:
        """An endpoint is gone; if it was of a container link, that is attached again, not at once."""
        each = self._by_link.get(link)
        if each is None:
            return
        verb = "refused" if each.state is S.ATTACHING and by_peer else "detached"
        self._over(each, link, error, f"the {_who(by_peer=by_peer)} {verb} the link")

    def _attach(self, each: ContainerLink) -> None:
        core, record = self._core, each.record
        each.retry_at = None
        if record is None or core.draining:
            return
        try:
            if each.session is None or not each.session.can_send:
                # As many sessions as are configured: what is divided among those of a peer's is not meant for them.
                each.session = record.engine.begin(record.limits.session_window)
            link = each.attach(each.session, record.limits.max_message_size)
        except CommandError as error:
            self._wait(each, f"it cannot be attached: {error}")
            return
        link.context = each
        each.link = link
        self._by_link[link] = each
        each.become(S.ATTACHING, core.now)

    def _take_in(self, record: ConnectionRecord, link: Receiver, address: Address) -> IncomingLink:
        """What comes by this link is for that address, whoever in the mesh consumes it."""
        core = self._core
        node = address if core.mesh is None else core.mesh.ways.ingress(address)
        incoming = IncomingLink(record, link, node, node.pool, number=core.attaching.next_number(), now=core.now)
        # RabbitMQ 3 ends the session for a drain, or counts wrongly from then on.
        incoming.input.drains = False
        record.incoming[incoming] = None
        node.incoming[incoming] = None
        core.touch_input(incoming)
        return incoming

    def _take_out(self, record: ConnectionRecord, link: Sender, address: Address) -> OutgoingLink:
        """The node in the other container consumes that address."""
        core = self._core
        outgoing = OutgoingLink(
            record,
            link,
            address,
            copy=False,
            default_outcome=None,
            max_unsettled=address.config.max_unsettled,
            number=core.attaching.next_number(),
            now=core.now,
        )
        record.outgoing[outgoing] = None
        address.outgoing[outgoing] = None
        outgoing.branch = address.pool.add_branch(0, 1, True, outgoing)
        core.touch_outgoing(outgoing)
        if core.mesh is not None:
            core.mesh.ways.consumers_changed(address)
        return outgoing

    def _over(self, each: ContainerLink, link: Link, error: Error | None, what: str) -> None:
        now = self._core.now
        lasted = now - each.since if each.state is S.ATTACHED else 0.0
        self._let_go(each, link)
        if lasted >= LASTING:
            each.failures = 0
        if lasted >= LONGEST_STOLEN_PAUSE:
            each.thefts = 0
        if error is not None and error.condition == LinkCondition.STOLEN:
            self._stolen(each)
        else:
            self._wait(each, what + _because(error))

    def _let_go(self, each: ContainerLink, link: Link) -> None:
        del self._by_link[link]
        each.link = None

    # ----------------------------------------------------------------------------------------------------------- again

    def _wait(self, each: ContainerLink, reason: str) -> None:
        each.failures += 1
        seconds = self._try_later(each, S.WAITING, reason, FIRST_PAUSE, LONGEST_PAUSE, each.failures)
        if each.is_news(reason, self._core.now):
            self._core.log.warning(
                "link waits",
                connector=each.config.connector,
                link=each.config.name,
                node=each.node,
                address=each.config.address,
                reason=reason,
                seconds=seconds,
            )

    def _stolen(self, each: ContainerLink) -> None:
        """Another link of this name, of a container with our id, has taken its place (§2.6.1)."""
        each.thefts += 1
        each.stolen += 1
        reason = "it was attached elsewhere, by a container with this one's id"
        seconds = self._try_later(each, S.STOLEN, reason, FIRST_STOLEN_PAUSE, LONGEST_STOLEN_PAUSE, each.thefts)
        self._core.log.warning(
            "link stolen by another",
            connector=each.config.connector,
            link=each.config.name,
            node=each.node,
            address=each.config.address,
            count=each.stolen,
            seconds=seconds,
        )

    def _try_later(
        self, each: ContainerLink, state: ContainerLinkState, reason: str, first: float, longest: float, row: int
    ) -> float:
        """Have it attached again after a pause, a random part less. Returns: the pause, seconds."""
        core = self._core
        chance = int(core.token(4), 16) / 2**32
        pause = min(longest, first * 2.0 ** min(row - 1, 30)) * (0.5 + chance / 2)
        each.become(state, core.now)
        each.reason = reason
        each.retry_at = core.now + pause
        core.schedule(each.retry_at, partial(self._try_again, each, each.retry_at))
        return round(pause, 3)

    def _try_again(self, each: ContainerLink, at: float) -> None:
        if each.retry_at == at:
            self._attach(each)

    # ------------------------------------------------------------------------------------------------------------- told

    def statistics(self) -> tuple[ContainerLinkStatistics, ...]:
        """How they stand, in the order of the configuration."""
        found = {each.config.name: each for those in self._by_connector.values() for each in those}
        return tuple(_told(found[config.name]) for config in self._core.config.container_links)


def _told(each: ContainerLink) -> ContainerLinkStatistics:
    taken = each.link.context if each.link is not None else None
    return ContainerLinkStatistics(
        name=each.config.name,
        connector=each.config.connector,
        connection=each.record.number if each.record is not None else None,
        direction=Direction.INCOMING if each.config.source is not None else Direction.OUTGOING,
        node=each.node,
        address=each.config.address,
        state=each.state,
        since=each.since,
        link=taken.number if isinstance(taken, IncomingLink | OutgoingLink) else None,
        failures=0 if each.state is S.ATTACHED else each.failures,
        stolen=each.stolen,
        retry_at=each.retry_at,
        reason=each.reason,
    )


def _is_refusal(link: Link, attach: Attach) -> bool:
    return (attach.source if isinstance(link, Receiver) else attach.target) is None


def _who(*, by_peer: bool) -> str:
    return "peer" if by_peer else "router"


def _because(error: Error | None) -> str:
    if error is None:
        return ""
    return f" ({error.condition})" + (f": {error.description}" if error.description else "")
