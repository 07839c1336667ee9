"""`KeptDeliveries`: deliveries of a receiver that has lost its link, until the peer resumes them.

The next attach has an unsettled map, which names each of them that has come whole, with its outcome if the program has
decided (§2.6.13). What the peer has unsettled, too, it resumes without octets (§3.4.6). What the peer's map lacks it
has settled. If the peer has no map, it knows nothing of them: the decisions are lost, and the messages may come again.

Maps that do not fit into a frame are exchanged in rounds (`incomplete-unsettled`, §2.7.3): the peer resumes what both
maps name, and detaches. What an incomplete map lacks has its turn in a later round.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.codec.types import Extension
from amqpmesh.router.amqp.errors import ProtocolError
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.amqp.standard.messaging import Source, TerminusExpiryPolicy
from amqpmesh.router.client.links.arguments import seconds_to_keep
from amqpmesh.router.message.outcomes import ALL_RECEIVED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.client.links.incoming import Incoming
    from amqpmesh.router.kernel import Delivery

_AROUND: Final = 1024  # octets of an attach beside its map, about
_OF_ENTRY: Final = 64  # the same of an entry with its tag, and with an outcome that has no fields


_OF_STATE: Final = 24  # the same of an entry without its tag and its outcome


class KeptDeliveries:
    """The deliveries of one receiver that are to be resumed."""

    def __init__(self, seconds: float, *, exactly_once: bool) -> None:
        """Args: seconds: that the peer is asked to keep its end of the link. exactly_once: it has to.

        Raises: CommandError: the seconds are not positive, or more than a day.
        """
        self.seconds = seconds_to_keep(seconds)
        self.exactly_once = exactly_once
        self._kept: dict[bytes, Incoming] = {}
        #: The peer keeps its end of the link, as its last answer says.
        self._is_granted = False
        #: The tags in our last map, which did not name all if it `leaves_out` some.
        self._named: tuple[bytes, ...] = ()
        self.leaves_out = False
        #: A map was incomplete: deliveries are only resumed, until the link is attached again (§2.7.3).
        self.is_round = False

    def asking(self, source: Source) -> Source:
        """Return a source that asks the peer to keep its end of the link after the loss of the connection (§3.5.3)."""
        return replace(source, expiry_policy=TerminusExpiryPolicy.CONNECTION_CLOSE, timeout=self.seconds)

    def missing_from(self, attach: Attach) -> str | None:
        """Return a description of what an exactly-once receiver lacks at a peer; None: nothing."""
        if not self.exactly_once:
            return None
        if not (isinstance(attach.source, Source) and attach.source.timeout):
            return "the peer keeps no unsettled state, which exactly-once needs"
        if attach.rcv_settle_mode is not ReceiverSettleMode.SECOND:
            return "the peer does not wait for settlement (rcv-settle-mode second), which exactly-once needs"
        return None

    @property
    def expected(self) -> int:
        """The number of deliveries that the peer is to resume."""
        return sum(each.kernel.delivery_id < 0 for each in self._kept.values())

    @property
    def has_outcomes(self) -> bool:
        """True if the peer has not heard a decision."""
        return any(each.is_decided for each in self._kept.values())

    def keep(self, deliveries: Iterable[Incoming]) -> list[Incoming]:
        """Take the whole, unsettled deliveries of a link that is lost. Returns: those that are not kept."""
        lost: list[Incoming] = []
        for each in deliveries:
            kernel = each.kernel
            if self._is_granted and kernel.complete and not (kernel.remote_settled or kernel.aborted):
                kernel.delivery_id = -1
                each.is_away = True
                self._kept[kernel.tag] = each
            else:
                lost.append(each)
        return lost

    def next_map(self, max_frame_size: int) -> Mapping[bytes, object] | None:
        """Return the unsettled map of the next attach; None: there is no history.

        A map that does not fit into a frame `leaves_out` undecided deliveries first: the peer forgets what was decided,
        so a later map can name the others. An outcome that is too large by itself is told once the delivery is resumed.

        Args: max_frame_size: octets.
        """
        self._named, self.leaves_out = (), False
        if not self._is_granted:
            return None
        most = room = max_frame_size - _AROUND
        named: dict[bytes, object] = {}
        for tag, each in sorted(self._kept.items(), key=lambda kept: not kept[1].is_decided):
            state = each.kernel.state if each.is_decided else None
            size = _OF_STATE + len(tag) + len(state or b"")
            if size > most:
                state, size = None, _OF_STATE + len(tag)
            room -= size
            if room < 0 and named:
                self.leaves_out = True
                break
            named[tag] = ALL_RECEIVED if state is None else Extension(state)
        self._named = tuple(named)
        return named

    def room(self, max_frame_size: int) -> int:
        """Return the number of deliveries that a map names for certain, whatever their outcomes. Args: octets."""
        return max(1, (max_frame_size - _AROUND) // _OF_ENTRY)

    def unsettled(self) -> dict[bytes, Delivery]:
        """Return the deliveries of the last map, for the engine's end of the new link."""
        return {tag: self._kept[tag].kernel for tag in self._named}

    def compare(self, attach: Attach) -> tuple[list[Incoming], list[Incoming]]:
        """Compare the peer's map with what is kept.

        Returns: the deliveries that the peer has settled, and those of which it knows nothing. The others are resumed,
        now or in a later round: an incomplete map says nothing of what it lacks.
        """
        self._is_granted = isinstance(attach.source, Source) and bool(attach.source.timeout)
        self.is_round = attach.incomplete_unsettled or self.leaves_out
        theirs: set[object] | None = None
        try:
            theirs = None if attach.unsettled is None else {tag for tag, _ in attach.unsettled.items()}
        except ProtocolError:
            theirs = None  # it says nothing that can be relied on
        if theirs is None:
            return [], self.give_up()
        settled: list[Incoming] = []
        if attach.incomplete_unsettled:
            return settled, []
        for tag in [each for each in self._kept if each not in theirs]:
            each = self._kept.pop(tag)
            each.kernel.settled = each.kernel.remote_settled = True
            settled.append(each)
        return settled, []

    def resumed(self, delivery: Delivery) -> Incoming | None:
        """Return a delivery that the peer has resumed; None: it is not known."""
        return self._kept.pop(delivery.tag, None)

    def give_up(self) -> list[Incoming]:
        """Return all deliveries that nobody resumes any more."""
        lost, self._kept = list(self._kept.values()), {}
        return lost
