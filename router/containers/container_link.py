"""One link of ours to a node of another container: what it asks for there, and how it stands (§2.6.3, §3.5).

It is attached whenever there is a connection to the container that it goes to, and again, not at once, when it was
refused, detached or stolen. What it serves here, its makers say: a link of the configuration an address of the whole
mesh, one that was made on demand the node that needed it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.codec.types import Described, Symbol
from amqpmesh.router.amqp.link import FORGIVEN, Receiver, Terminus
from amqpmesh.router.amqp.standard.definitions import Role, SenderSettleMode
from amqpmesh.router.amqp.standard.messaging import Source, Target, TerminusDurability, TerminusExpiryPolicy
from amqpmesh.router.config.connector import Watch
from amqpmesh.router.containers.watches import is_watched
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.statistics.common import Direction
from amqpmesh.router.statistics.router_statistics import ContainerLinkState, ContainerLinkStatistics

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.policies.redirect import Stop
    from amqpmesh.router.amqp.link import Link
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.amqp.standard.definitions import Error
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.config.file import LinkConfig
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.node import Address

#: Seconds before a reason that has not changed is told again.
REPEAT_TIME: Final = 60.0

#: Characters of what a peer gives as its reason that are kept, of the condition and of the description.
REASON: Final = 256

#: What a source is asked with for a part of its messages: an SQL-like condition, as brokers understand it.
SELECTOR: Final = Symbol("apache.org:selector-filter:string")

DURABILITIES: Final = {
    "none": TerminusDurability.NONE,
    "configuration": TerminusDurability.CONFIGURATION,
    "unsettled-state": TerminusDurability.UNSETTLED_STATE,
}

S = ContainerLinkState


class ContainerLink:
    """A link to a node elsewhere, over all connections to its container.

    Attributes: `serves`: where here what comes by it goes, or what leaves by it comes from. `refused`: told that the
    other container does not want it, and why, says whether it ends; None: it is attached again for ever.
    """

    def __init__(
        self,
        name: str,
        connector: str,
        node: str,
        *,
        incoming: bool,
        address: str,
        serves: Callable[[ConnectionRecord], Address],
        now: float,
        asks: LinkConfig | None = None,
        refused: Callable[[ContainerLink, Error | None], bool] | None = None,
    ) -> None:
        """Args: connector: by name, the one whose connections it goes over. node: the address there. incoming: it
        feeds this router; else it is fed. address: what it serves, by name. asks: what is asked for of the node.
        """
        self.name = name
        #: Where it belongs; a redirect may have led it elsewhere, see `connector` and `node`.
        self.home = connector
        self.home_node = node
        self.connector = connector
        self.node = node
        self.incoming = incoming
        self.address = address
        self.serves = serves
        self.refused = refused
        self._asks = asks
        #: The row of redirects that it has followed; None: it is where it belongs.
        self.stop: Stop | None = None
        #: The connection of its connector; None: there is none.
        self.record: ConnectionRecord | None = None
        #: The endpoint that is attached, or that the peer has not answered yet; and the session of the last one.
        self.link: Link | None = None
        self.session: Session | None = None
        #: Shows whether the node is there; and why there is no watch, though there should be one.
        self.watch: Link | None = None
        self.unwatched: str | None = None
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
        self._told_of_watch: str | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.state.name}>"

    @property
    def is_busy(self) -> bool:
        """Something on it has no outcome yet, or is being written."""
        return self.link is not None and bool(self.link.terminus.unsettled)

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

    def is_news_of_watch(self, reason: str) -> bool:
        """Whether to tell why it is not watched: not, if that is the same as the last time."""
        is_new, self._told_of_watch = reason != self._told_of_watch, reason
        return is_new

    def is_news_no_more(self) -> None:
        """It works: what comes next is told, whatever was told before."""
        self._told = None

    def is_watched(self, *, is_doubtful: bool) -> bool:
        """Whether it is to have a watch. Args: is_doubtful: its container drops in silence."""
        watch = Watch.AUTO if self._asks is None else self._asks.watch
        return not self.incoming and is_watched(watch, self.node, is_doubtful=is_doubtful)

    def attach_watch(self, session: Session) -> Link:
        """Attach a receiver of the node that is never given credit. Raises: as `attach`."""
        # RabbitMQ makes a queue as it is asked for, so the watch asks in the same words; but nothing of it is to last.
        source = Source(address=self.node)
        if self._asks is not None:
            source = replace(_source(self.node, self._asks), expiry_policy=TerminusExpiryPolicy.LINK_DETACH)
        return session.attach(
            Terminus(f"{self.name}/watch", Role.RECEIVER),
            source=source,
            target=Target(address=self.address),
            snd_settle_mode=SenderSettleMode.UNSETTLED,
        )

    def attach(self, session: Session, limit: int) -> Link:
        """Attach it. Args: limit: octets of the largest message that we take; 0: any.

        Raises: CommandError: the peer takes no more links, or its frames are too small.
        """
        asks = self._asks
        if self.incoming:
            link = session.attach(
                Terminus(self.name, Role.RECEIVER),
                source=_source(self.node, asks),
                target=Target(address=self.address),
                # It keeps each message until it has an outcome: what it sent settled would be lost with us.
                snd_settle_mode=SenderSettleMode.UNSETTLED,
                max_message_size=limit or None,
            )
            assert isinstance(link, Receiver)
            link.forgiven = FORGIVEN
            return link
        return session.attach(
            Terminus(self.name, Role.SENDER), source=Source(address=self.address), target=_target(self.node, asks)
        )

    def statistics(self) -> ContainerLinkStatistics:
        """How it stands."""
        taken = self.link.context if self.link is not None else None
        return ContainerLinkStatistics(
            name=self.name,
            connector=self.connector,
            connection=self.record.number if self.record is not None else None,
            direction=Direction.INCOMING if self.incoming else Direction.OUTGOING,
            node=self.node,
            address=self.address,
            state=self.state,
            since=self.since,
            link=taken.number if isinstance(taken, IncomingLink | OutgoingLink) else None,
            failures=0 if self.state is S.ATTACHED else self.failures,
            stolen=self.stolen,
            retry_at=self.retry_at,
            reason=self.reason,
            unwatched=self.unwatched,
        )


def configured(context: Context, config: LinkConfig) -> ContainerLink:
    """One of the configuration: it serves an address of the whole mesh."""
    node = config.source if config.source is not None else config.target
    assert node is not None, "the configuration has one of them"
    incoming = config.source is not None

    def serves(record: ConnectionRecord) -> Address:
        address = context.addresses.use(record.peer.tenant, config.address)
        return context.routes.ingress(address) if incoming else address

    return ContainerLink(
        config.name,
        config.connector,
        node,
        incoming=incoming,
        address=config.address,
        serves=serves,
        now=context.now,
        asks=config,
    )


def _source(node: str, asks: LinkConfig | None) -> Source:
    if asks is None:
        return Source(address=node)
    selector = None if asks.selector is None else {SELECTOR: Described(SELECTOR, asks.selector)}
    return Source(
        address=node,
        durable=DURABILITIES[asks.durable],
        expiry_policy=asks.expiry_policy,
        distribution_mode=asks.distribution_mode,
        filter=selector,
        capabilities=tuple(map(Symbol, asks.capabilities)),
    )


def _target(node: str, asks: LinkConfig | None) -> Target:
    if asks is None:
        return Target(address=node)
    return Target(
        address=node,
        durable=DURABILITIES[asks.durable],
        expiry_policy=asks.expiry_policy,
        capabilities=tuple(map(Symbol, asks.capabilities)),
    )


def is_refusal(link: Link, attach: Attach) -> bool:
    """Whether the answer to our attach is one: it has no terminus of the peer's (§2.6.3)."""
    return (attach.source if isinstance(link, Receiver) else attach.target) is None


def who(*, by_peer: bool) -> str:
    """Who did something, for people."""
    return "peer" if by_peer else "router"


def because(error: Error | None) -> str:
    """What an error says, for people: to be put behind what it was said of."""
    if error is None:
        return ""
    return f" ({error.condition[:REASON]})" + (f": {error.description[:REASON]}" if error.description else "")
