"""A link of this router to a node of another container: the attach that it sends, and its state (§2.6.3, §3.5).

The link attaches whenever there is a connection to its container. After a refusal, a detach or a theft it waits for a
while, and attaches again. The code that makes a link chooses the node that it serves in this router: a link of the
configuration serves an address of the whole mesh, and a link made on demand serves the node that needed it.
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
from amqpmesh.router.statistics.configured import ContainerLinkState, ContainerLinkStatistics

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.policies.redirect import RedirectChain
    from amqpmesh.router.amqp.link import Link
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.amqp.standard.definitions import Error
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.config.file import LinkConfig
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.node import Node

#: Seconds before an unchanged reason is logged again.
REPEAT_TIME: Final = 60.0

#: Characters that are kept of the condition of a peer's error, and as many of its description.
REASON: Final = 256

#: The filter with which a source selects part of its messages: an SQL-like condition, as brokers understand it.
SELECTOR: Final = Symbol("apache.org:selector-filter:string")

DURABILITIES: Final = {
    "none": TerminusDurability.NONE,
    "configuration": TerminusDurability.CONFIGURATION,
    "unsettled-state": TerminusDurability.UNSETTLED_STATE,
}

S = ContainerLinkState


class ContainerLink:
    """A link to a node of another container, over one connection after another.

    Attributes: `serves`: returns the node of this router that the link's deliveries go to, or come from. `refused`:
        called when the other container refuses the link, with its error; returns whether to give the link up. None: the
        link attaches again for ever.
    """

    def __init__(
        self,
        name: str,
        connector: str,
        node: str,
        *,
        incoming: bool,
        address: str,
        serves: Callable[[ConnectionRecord], Node],
        now: float,
        asks: LinkConfig | None = None,
        refused: Callable[[ContainerLink, Error | None], bool] | None = None,
    ) -> None:
        """Args: connector: the name of the connector whose connections the link uses. node: the node's address in the
        other container. incoming: the link brings deliveries to this router; else it takes them away. address: the
        address that it serves in this router. asks: the configured terms of the attach; None: no terms.
        """
        self.name = name
        #: The connector and the node that the link belongs to. After a redirect `connector` and `node` are others.
        self.home = connector
        self.home_node = node
        self.connector = connector
        self.node = node
        self.incoming = incoming
        self.address = address
        self.serves = serves
        self.refused = refused
        self._asks = asks
        #: True if the configuration has it, and no client.
        self.is_configured = asks is not None
        #: The end of the redirects that it has followed; None: it has followed none.
        self.chain: RedirectChain | None = None
        #: The connection of its connector; None: there is none.
        self.record: ConnectionRecord | None = None
        #: The endpoint that is attached, or whose attach is not answered yet. `session`: that of the last endpoint.
        self.link: Link | None = None
        self.session: Session | None = None
        #: The receiver that shows whether the node exists. `unwatched`: the reason why there is none, where one is due.
        self.watch: Link | None = None
        self.unwatched: str | None = None
        self.state = S.DISCONNECTED
        #: The time when the state began; seconds, as all times here.
        self.since = now
        #: The reason why it is not attached; while an attach is not answered yet, the reason of the last failure.
        self.reason: str | None = None
        #: The time of the next attach.
        self.retry_at: float | None = None
        #: Refused and short-lived attaches in a row. `thefts`: thefts in a row.
        self.failures = 0
        self.thefts = 0
        #: All thefts.
        self.stolen = 0
        self._logged_reason: tuple[str, float] | None = None
        self._told_of_watch: str | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.state.name}>"

    @property
    def is_busy(self) -> bool:
        """True if a delivery on the link is unsettled, or is being written."""
        return self.link is not None and bool(self.link.terminus.unsettled)

    def tenant(self, record: ConnectionRecord) -> str:
        """Return the key of the tenant that needs the link. Args: record: a connection of its connector."""
        return record.peer.tenant if self.is_configured else self.serves(record).tenant

    def become(self, state: ContainerLinkState, now: float) -> None:
        """Enter a state."""
        self.state = state
        self.since = now

    def is_news(self, reason: str, now: float) -> bool:
        """Return whether to log the reason for a pause, and note it: it is new, or `REPEAT_TIME` has passed."""
        if (
            self._logged_reason is not None
            and self._logged_reason[0] == reason
            and now - self._logged_reason[1] < REPEAT_TIME
        ):
            return False
        self._logged_reason = reason, now
        return True

    def is_news_of_watch(self, reason: str) -> bool:
        """Return whether to log the reason why there is no watch, and note it: it is not the same as the last one."""
        is_new, self._told_of_watch = reason != self._told_of_watch, reason
        return is_new

    def is_news_no_more(self) -> None:
        """Note that the link works: the next reason is logged, even if it equals the last one."""
        self._logged_reason = None

    def is_watched(self, *, is_doubtful: bool) -> bool:
        """Return whether the link needs a watch. Args: is_doubtful: as of `router.containers.watches.is_watched`."""
        watch = Watch.AUTO if self._asks is None else self._asks.watch
        return not self.incoming and is_watched(watch, self.node, is_doubtful=is_doubtful)

    def attach_watch(self, session: Session) -> Link:
        """Attach the watch: a receiver of the node that never gets credit. Raises: as `attach`."""
        # RabbitMQ makes a queue by the terms of the attach, so the watch has the terms of the link. But what it makes
        # must end with it.
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
        """Attach the link. Args: limit: octets of the largest message that this router takes; 0: no limit.

        Raises: CommandError: the peer takes no more links, or its frames are too small.
        """
        asks = self._asks
        if self.incoming:
            endpoint = session.attach(
                Terminus(self.name, Role.RECEIVER),
                source=_source(self.node, asks),
                target=Target(address=self.address),
                # The container keeps each message until it has an outcome. A message that it sent settled would be lost
                # if this router failed.
                snd_settle_mode=SenderSettleMode.UNSETTLED,
                max_message_size=limit or None,
            )
            assert isinstance(endpoint, Receiver)
            endpoint.forgiven = FORGIVEN
            return endpoint
        return session.attach(
            Terminus(self.name, Role.SENDER), source=Source(address=self.address), target=_target(self.node, asks)
        )

    def statistics(self) -> ContainerLinkStatistics:
        """Return the link's statistics."""
        link = self.link.context if self.link is not None else None
        return ContainerLinkStatistics(
            name=self.name,
            connector=self.connector,
            connection=self.record.number if self.record is not None else None,
            direction=Direction.INCOMING if self.incoming else Direction.OUTGOING,
            node=self.node,
            address=self.address,
            state=self.state,
            since=self.since,
            link=link.number if isinstance(link, IncomingLink | OutgoingLink) else None,
            failures=0 if self.state is S.ATTACHED else self.failures,
            stolen=self.stolen,
            retry_at=self.retry_at,
            reason=self.reason,
            unwatched=self.unwatched,
        )


def configured(context: Context, config: LinkConfig) -> ContainerLink:
    """Make a link of the configuration, which serves an address of the whole mesh."""
    node = config.source if config.source is not None else config.target
    assert node is not None, "the configuration has one of them"
    incoming = config.source is not None

    def serves(record: ConnectionRecord) -> Node:
        local = context.nodes.use(record.peer.tenant, config.address)
        return context.routes.ingress(local) if incoming else local

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


def is_refusal(endpoint: Link, attach: Attach) -> bool:
    """Return whether the answer to our attach refuses the link: the peer's terminus is missing (§2.6.3)."""
    return (attach.source if isinstance(endpoint, Receiver) else attach.target) is None


def who(*, by_peer: bool) -> str:
    """Return the name of the side that did something, for people."""
    return "peer" if by_peer else "router"


def because(error: Error | None) -> str:
    """Return an error as the end of a sentence for people; empty: there is no error."""
    if error is None:
        return ""
    return f" ({error.condition[:REASON]})" + (f": {error.description[:REASON]}" if error.description else "")
