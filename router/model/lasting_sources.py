"""Sources that outlive their links (§2.6.13), as seen by the rooms that end links and attach them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from amqpmesh.router.model.lasting_termini import SuspendedTerminus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from amqpmesh.router.amqp.link import Sender
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.kernel import SentMessages
    from amqpmesh.router.model.lasting_termini import Grant
    from amqpmesh.router.model.links import LinkKey, OutgoingLink


class Part(NamedTuple):
    """Deliveries of a lane that come back by a link of their own, since no frame has room for the map of all."""

    name: str
    """Of that link."""
    entries: Sequence[tuple[int, bytes]]
    """The ids and the delivery-tags; an id of -1: it is in no ledger."""


class SuspendedSource(SuspendedTerminus):
    """A source whose receiver is away. What the receiver has got stays its own until it returns, or its time is over.

    The deliveries stay in the ledger of the session that they left by.
    """

    __slots__ = ("asked", "flow_state", "part")

    link: OutgoingLink

    def __init__(self, key: LinkKey, link: OutgoingLink, grant: Grant, now: float) -> None:
        super().__init__(key, link, grant, now)
        #: The kernel's part of the link that it had last.
        self.flow_state = link.endpoint.flow_state
        #: Of a lane: the link that is to go on with it, once the neighbour has answered; None: it was not asked.
        self.asked: OutgoingLink | None = None
        #: Of a lane: what the neighbour was asked to go on with, until that has come back; None: all of it.
        self.part: Part | None = None

    @property
    def unsettled(self) -> int:
        """The number of its unsettled deliveries."""
        return self.flow_state.outstanding


class OurMap(NamedTuple):
    """The unsettled map that answers that of a returning receiver."""

    unsettled: Mapping[bytes, object]
    """States by delivery-tag."""
    is_incomplete: bool
    """Not all of it fits into a frame of the receiver."""


class LaneMap(NamedTuple):
    """The unsettled map of a lane, or the beginning of it."""

    states: Mapping[bytes, bytes]
    """Encoded, by delivery-tag: of what has left whole."""
    part: Sequence[tuple[int, bytes]] | None
    """The deliveries that it names, as in `Part`; None: it names all."""


class LastingSources(Protocol):
    """The sources of a router whose receivers are away, or are coming back."""

    def compare(self, source: SuspendedSource, endpoint: Sender, attach: Attach) -> OurMap:
        """Compare the map of a returning receiver with what is unsettled here. `bring` follows.

        Returns: our map, which answers it. If one of both maps is incomplete, the link only resumes what both name, and
            is then detached without being closed (§2.7.3).
        Raises: ProtocolError: the receiver's map is malformed.
        """

    def bring(self, source: SuspendedSource, outgoing: OutgoingLink) -> bool:
        """Pass on what the receiver's map says, and move deliveries to the link that resumes them, in steps.

        Returns: whether that is to be done before it gets others.
        """

    def lane_map(self, source: SuspendedSource, octets_of: Callable[[bytes, bytes], int], room: int) -> LaneMap:
        """Return our map of a lane whose neighbour is back, or of its `part`, if there is one.

        Args: octets_of: returns the octets of an entry, by its tag and its state. room: octets for all entries.
        """

    def ask(self, source: SuspendedSource, outgoing: OutgoingLink, again: Callable[[], None]) -> None:
        """Note that a neighbour was sent the map of a lane, over the link that is to go on with it.

        Args: again: is called once the `part` has come back, and no other.
        """

    def answered(self, outgoing: OutgoingLink, attach: Attach) -> None:
        """Go on with a lane whose neighbour has answered with its map, or end what it knows nothing of.

        Does nothing for any other link.
        """

    def keeping(self, grant: Grant) -> SentMessages | None:
        """Return the place of the messages of a link, whose receiver may come back without all of them.

        Returns: None: none are kept.
        """

    def is_returning(self, outgoing: OutgoingLink) -> bool:
        """Tell whether a link gets no new deliveries yet, since there are others to be resumed."""

    def go_on(self, outgoing: OutgoingLink) -> bool:
        """Resume what credit and window allow, if the link is returning. Returns: whether it is returning still."""

    def left(self, outgoing: OutgoingLink) -> None:
        """Note that a link takes no more deliveries, which may have been returning."""
