"""Termini that outlive their links (§2.6.13), as seen by the rooms that end links and attach them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from amqpmesh.router.amqp.codec.composite import decode_composite
from amqpmesh.router.amqp.standard.delivery_states import STATES
from amqpmesh.router.amqp.standard.messaging import Source, Target

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Container, Iterable

    from amqpmesh.router.amqp.link import Receiver, Sender
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.amqp.standard.messaging import TerminusExpiryPolicy
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.lasting_sources import LastingSources
    from amqpmesh.router.model.links import IncomingLink, LinkKey, OutgoingLink
    from amqpmesh.router.model.node import Node


class Grant(NamedTuple):
    """The time that a terminus is kept without its link."""

    policy: TerminusExpiryPolicy
    """The event from which the time runs (§3.5.6)."""
    timeout: int
    """Seconds (§3.5.4)."""
    holder: tuple[str, str]
    """The tenant and the user, or host, for whom it is kept."""
    address: str | None
    """As the peer has named it (§3.5.3, §3.5.4, address); None: each message names its own."""
    default_outcome: bytes | None = None
    """Encoded, of a source (§3.5.3); None: it has none."""

    @property
    def target(self) -> Target:
        """The target that is kept."""
        return Target(address=self.address, expiry_policy=self.policy, timeout=self.timeout)

    @property
    def source(self) -> Source:
        """The source that is kept."""
        default = None if self.default_outcome is None else decode_composite(STATES, self.default_outcome)[0]
        return Source(
            address=self.address,
            expiry_policy=self.policy,
            timeout=self.timeout,
            default_outcome=default,  # type: ignore[arg-type]  # only an outcome is kept
        )


class ResumptionCounts:
    """Counts of what became of the deliveries of links that came back, or tried to."""

    __slots__ = ("aborted_resumes", "in_doubt", "restated", "resumed_again", "resumed_outcomes")

    def __init__(self) -> None:
        #: Deliveries whose outcome the peer heard when its link came back.
        self.resumed_outcomes = 0
        #: Deliveries without an outcome that went on with their link.
        self.resumed_again = 0
        #: Deliveries that a sender aborted, or settled before their outcome, when it came back.
        self.aborted_resumes = 0
        #: Deliveries for which peer and router had different outcomes (§3.4.6): the sender's counts.
        self.restated = 0
        #: Deliveries in the maps of peers of which nothing is known here.
        self.in_doubt = 0


class LastingTermini(Protocol):
    """The termini of a router that outlive their links; `resumption` has them."""

    #: Links that were resumed; termini that nobody resumed in time, and those that were given up for want of room.
    resumptions: int
    lapsed: int
    evicted: int
    counts: ResumptionCounts
    #: The router stays. One that moves its clients, or drains, keeps nothing for them.
    keeps: bool
    #: The sources among them.
    sources: LastingSources

    @property
    def granted(self) -> int:
        """The links that are granted some time, and the termini that are kept without a link."""

    @property
    def suspended_number(self) -> int:
        """The termini that are kept without a link."""

    def kept(self) -> Iterable[SuspendedTerminus]:
        """Return the termini that are kept without a link, those that were suspended first at the beginning."""

    def grant(
        self,
        record: ConnectionRecord,
        endpoint: Receiver | Sender,
        terminus: Target | Source,
        node: Node | None,
        known: SuspendedTerminus | None,
    ) -> Grant | None:
        """Return the time that our end of a link is kept; None: it goes with its link.

        Args: terminus: as the peer asks for it. known: the one that it had before, whose grant ends once it has this
            one.
        """

    def grant_lane(self, router: str, address: str, seconds: int) -> Grant:
        """Return the time that this router's end of a lane is kept. Args: router: the neighbour."""

    def give_time(self, terminus: SuspendedTerminus, seconds: float) -> None:
        """Have the time of a terminus run anew from now on."""

    def take_back(self, grant: Grant) -> None:
        """Note that a link with a grant has ended for good."""

    def suspend(self, link: IncomingLink | OutgoingLink) -> None:
        """Keep the terminus of a link that is about to be detached, which has a grant.

        What its sender has not settled stays the link's, until it is moved or its session is over.
        """

    def suspend_all(self, record: ConnectionRecord, session: Session | None = None) -> None:
        """Keep those of a connection that is lost, or of a session that has ended. Their links are ended next.

        They are moved in steps (`move`). An outcome that comes before that is kept, too.
        """

    def move(self, link: IncomingLink | OutgoingLink) -> Steps[None]:
        """Keep the terminus of a link whose session is over, and its deliveries, if that is yet to be done."""

    def ended(self, links: Iterable[IncomingLink | OutgoingLink]) -> None:
        """Note that links have ended whose termini may be kept: these need little of them."""

    def move_now(self, terminus: SuspendedTerminus) -> None:
        """Move the deliveries of a terminus, which are to be resumed over another link."""

    def replace_connection(self, record: ConnectionRecord) -> None:
        """Have termini refer to little of a connection that is gone, in steps. Its links have ended."""

    def make_room(self) -> Steps[None]:
        """Give up termini until there are no more deliveries than may be: those of the holder with most, its oldest
        first.
        """

    def octets_by_holder(self) -> dict[tuple[str, str], int]:
        """Return the octets that count in the router's memory for each holder: of its termini, and of messages that are
        kept for its receivers, attached ones included.
        """

    def octets_of(self, holder: tuple[str, str]) -> int:
        """Return the same of one holder."""

    def has_links_of(self, holder: tuple[str, str]) -> bool:
        """Tell whether a holder has termini without a link."""

    def by_holder(
        self, holders: Container[tuple[str, str]] | None = None
    ) -> Steps[dict[tuple[str, str], deque[SuspendedTerminus]]]:
        """Return the termini without a link by holder, in steps; those that were suspended first at the beginning.

        Args: holders: those to look for; None: all. One without a terminus is not in the result.
        """

    def give_up_octets(self, holder: tuple[str, str], octets: int) -> int:
        """Give up messages that are kept for a holder, the oldest of a link first, until so many octets are free.

        Not all are given up in one call. Returns: the number of messages; 0: none is kept.
        """

    def evict(self, terminus: SuspendedTerminus) -> bool:
        """Give up a terminus, and log why. Returns: False: it has come back, or was ended, meanwhile."""

    def suspended(self, key: LinkKey) -> SuspendedTerminus | None:
        """Return the terminus that is kept for a link; None: there is none."""

    def end(self, terminus: SuspendedTerminus, reason: str) -> None:
        """End a terminus that nobody can resume any more, and its deliveries."""

    def end_all(self, reason: str) -> None:
        """End all of them, in steps, and keep no more."""

    def resumed(self, terminus: SuspendedTerminus) -> None:
        """Let go of a terminus whose deliveries are on a new link."""


def is_lasting(link: IncomingLink | OutgoingLink) -> bool:
    """Tell whether the terminus of a link outlives it."""
    return link.grant is not None


class SuspendedTerminus:
    """A terminus without a link, and its unsettled deliveries: a `SuspendedTarget` or a `SuspendedSource`."""

    __slots__ = ("counted", "expires", "grant", "key", "link", "octets", "session", "since")

    def __init__(self, key: LinkKey, link: IncomingLink | OutgoingLink, grant: Grant, now: float) -> None:
        self.key = key
        #: The link that it had last.
        self.link: IncomingLink | OutgoingLink = link
        self.grant = grant
        #: Seconds: when it lost its link, and when its time is over; None: that does not run yet.
        self.since = now
        self.expires: float | None = None
        #: The session that it was attached in; None: that has ended.
        self.session: Session | None = link.endpoint.session
        #: Octets that count in the router's memory, and deliveries that count among those of all termini.
        self.octets = 0
        self.counted = 0

    def __lt__(self, other: SuspendedTerminus) -> bool:
        """Return whether it comes first of two whose time is over at once."""
        return self.since < other.since

    @property
    def unsettled(self) -> int:
        """The number of its unsettled deliveries."""
        raise NotImplementedError
