"""`UnheardDeliveries`: deliveries of a sender that lost its link before their outcomes came, until the peer tells them.

The next attach has an unsettled map, which names them, and the peer's answer has the map of what it knows (§2.6.13,
§3.4.6). What the peer has is resumed, without its octets if it has come whole. If it has come in part, all octets are
sent again, as the same delivery; if they are not here, that is aborted. If the peer says by a map that it does not have
a delivery, and cannot have settled it, then nobody has processed it. In all other cases the delivery is in doubt.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.errors import InDoubtError, ProtocolError
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Released
from amqpmesh.router.amqp.standard.messaging import Target, TerminusExpiryPolicy
from amqpmesh.router.client.links.arguments import seconds_to_keep
from amqpmesh.router.client.links.outgoing import Outgoing
from amqpmesh.router.endpoint_setup import WHOLE_MAP
from amqpmesh.router.kernel import RELEASED_STATE
from amqpmesh.router.message.outcomes import ALL_RECEIVED, outcome_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from amqpmesh.router.amqp.errors import CommandError
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.message.outcomes import Outcome

ATTEMPTS: Final = 3
"""Times that a message of an exactly-once sender is sent, as long as the outcome is `released`: nobody has taken it."""

_AROUND: Final = 1024  # octets of an attach beside its map, about
_ALL_RECEIVED: Final = encode_composite(ALL_RECEIVED)

FROM_THE_START: Final = b"\x40"
"""The state, null, of a delivery that is resumed with all its octets (§3.4.6, tags 2 and 4)."""


class _Kept(NamedTuple):
    """The octets of a delivery."""

    payload: bytes
    #: How often it was sent whole; what is sent again as the same delivery is no other time.
    tries: int
    #: It is being sent again as the same delivery.
    is_same: bool = False


class UnheardDeliveries:
    """The deliveries of one sender whose outcomes are to be found out after the loss of its link."""

    def __init__(self, seconds: float, *, exactly_once: bool) -> None:
        """Args: seconds: that the peer is asked to keep its end of the link. exactly_once: send again what nobody has.

        Raises: CommandError: the seconds are not positive, or more than a day.
        """
        self._seconds = seconds_to_keep(seconds)
        self.exactly_once = exactly_once
        self._unheard: dict[bytes, Outgoing] = {}
        #: Only for exactly-once.
        self._kept: dict[Outgoing, _Kept] = {}
        #: The peer has answered an attach: there may be a history.
        self._has_history = False
        #: The last map of ours did not name all.
        self.leaves_out = False
        #: A map was incomplete: deliveries are only resumed, until the link is attached again (§2.7.3).
        self.is_round = False

    def asking(self, target: Target) -> Target:
        """Return a target that asks the peer to keep its end of the link after the loss of the connection (§3.5.4)."""
        return replace(target, expiry_policy=TerminusExpiryPolicy.CONNECTION_CLOSE, timeout=self._seconds)

    def next_map(self, max_frame_size: int) -> Mapping[bytes, object] | None:
        """Return the unsettled map of the next attach; None: there is no history.

        A map that does not fit into a frame `leaves_out` what was resumed last. Args: max_frame_size: octets.
        """
        room = max_frame_size - _AROUND
        named: dict[bytes, object] = {}
        for tag in self._unheard:
            room -= len(tag) + 3
            if room < 0:
                break
            named[tag] = None
        self.leaves_out = self._has_history and len(named) < len(self._unheard)
        return named if self._has_history else None

    def missing_from(self, attach: Attach) -> str | None:
        """Return a description of what an exactly-once sender lacks at a peer; None: nothing."""
        if not self.exactly_once:
            return None
        if not (isinstance(attach.target, Target) and attach.target.timeout):
            return "the peer keeps no unsettled state, which exactly-once needs"
        if attach.rcv_settle_mode is not ReceiverSettleMode.SECOND:
            return "the peer does not wait for settlement (rcv-settle-mode second), which exactly-once needs"
        return None

    def compare(self, attach: Attach) -> list[Outgoing]:
        """Compare the peer's map with what is unheard. Returns: the deliveries to resume or to send again, in order."""
        unheard, self._unheard = self._unheard, {}
        self._has_history = True
        self.is_round = attach.incomplete_unsettled or self.leaves_out
        theirs: dict[object, object] | None = None
        try:
            theirs = None if attach.unsettled is None else dict(attach.unsettled.items())
        except ProtocolError:
            theirs = None  # it says nothing that can be relied on
        first: list[Outgoing] = []
        again: list[Outgoing] = []
        for tag, outgoing in unheard.items():
            if theirs is None:
                self._doubt(outgoing, "the peer knows nothing of it any more")
            elif tag in theirs:
                state = theirs[tag]
                encoded = None if state is None else encode_composite(state)
                outcome = outcome_of(encoded)
                if isinstance(outcome, Released) and self._is_released(outgoing, first):
                    again.append(outgoing)
                    continue
                if outcome is None and encoded != _ALL_RECEIVED and not outgoing.decided.is_set():
                    first.append(self._of_part(outgoing))
                    continue
                outgoing.resumed = encoded if outcome is not None and encoded is not None else _ALL_RECEIVED
                if outcome is not None and not outgoing.decided.is_set():
                    self._kept.pop(outgoing, None)
                    outgoing.decide(outcome)
                first.append(outgoing)
            elif attach.incomplete_unsettled:
                self._unheard[tag] = outgoing  # its turn comes
            elif outgoing.decided.is_set():
                pass  # the peer has settled it, too
            elif not self._is_absence_certain(attach):
                self._doubt(outgoing, "the peer may have settled it")
            elif not self._is_sent_again(outgoing, first):
                outgoing.decide(Released())
        return [*first, *again]

    def _is_released(self, outgoing: Outgoing, first: list[Outgoing]) -> bool:
        """Have a released message sent again in a new delivery, once the former one is resumed and settled.

        Returns: False: it is decided, or was sent often enough.
        """
        former = Outgoing(b"", settled=False)
        former.tag, former.resumed = outgoing.tag, RELEASED_STATE
        former.decide(Released())
        if outgoing.decided.is_set() or not self.sends_again(outgoing, Released()):
            return False
        first.append(former)
        return True

    def _of_part(self, outgoing: Outgoing) -> Outgoing:
        """Return what resumes a delivery that the peer does not have whole: with all its octets, or aborted."""
        if outgoing in self._kept:
            self._kept[outgoing] = kept = self._kept[outgoing]._replace(is_same=True)
            outgoing.payload, outgoing.at, outgoing.delivery, outgoing.resumed = kept.payload, 0, None, FROM_THE_START
            return outgoing
        self._doubt(outgoing, "the peer has a part of it, and the rest is not kept")
        former = Outgoing(b"", settled=False)
        former.tag, former.resumed, former.aborting = outgoing.tag, FROM_THE_START, True
        former.decide(None)
        return former

    @staticmethod
    def _is_absence_certain(attach: Attach) -> bool:
        return (
            attach.rcv_settle_mode is ReceiverSettleMode.SECOND
            and not attach.incomplete_unsettled
            and WHOLE_MAP in attach.offered_capabilities
        )

    def _is_sent_again(self, outgoing: Outgoing, first: list[Outgoing]) -> bool:
        """Have a delivery that the peer never had sent again, if its octets are here. Returns: whether they are."""
        if outgoing not in self._kept:
            return False
        self._kept[outgoing] = kept = self._kept[outgoing]._replace(is_same=False)
        outgoing.payload, outgoing.at, outgoing.delivery, outgoing.resumed = kept.payload, 0, None, None
        first.append(outgoing)
        return True

    def lost(self, sent: Iterable[Outgoing], waiting: Iterable[Outgoing]) -> None:
        """Take the deliveries of a link that is lost: those that were sent, and those that were to be resumed.

        What waits to be sent again is not among them: it is certain that nobody has it.
        """
        for outgoing in (*sent, *(each for each in waiting if each.resumed is not None)):
            if not outgoing.decided.is_set():
                outgoing.delivery, outgoing.resumed = None, None
                self._unheard[outgoing.tag] = outgoing

    def give_up(self) -> list[Outgoing]:
        """Return all deliveries that are unheard for ever."""
        unheard, self._unheard = self._unheard, {}
        self._kept.clear()
        return list(unheard.values())

    def keep(self, outgoing: Outgoing) -> None:
        """Keep the octets of a delivery whose last frame is written, of an exactly-once sender, until its outcome."""
        if self.exactly_once and not (outgoing.settled or outgoing.decided.is_set()) and outgoing.payload:
            before = self._kept.get(outgoing)
            tries = 1 if before is None else before.tries + (not before.is_same)
            self._kept[outgoing] = _Kept(bytes(outgoing.payload), tries)

    def sends_again(self, outgoing: Outgoing, outcome: Outcome) -> bool:
        """Have a message sent again whose outcome is `released`, a few times. Returns: whether it is."""
        kept = self._kept.get(outgoing)
        if kept is None:
            return False
        if isinstance(outcome, Released) and kept.tries < ATTEMPTS:
            self._kept[outgoing] = kept._replace(is_same=False)
            outgoing.payload, outgoing.at, outgoing.delivery, outgoing.tag = kept.payload, 0, None, b""
            return True
        del self._kept[outgoing]
        return False

    def too_large(self, outgoing: Outgoing, error: CommandError) -> None:
        """End a delivery that is to be sent again to a peer that takes smaller messages now."""
        if outgoing.resumed is not None:
            self._doubt(outgoing, f"the peer has a part of it, and the rest cannot be sent: {error}")
            return
        self._kept.pop(outgoing, None)
        if not outgoing.decided.is_set():
            outgoing.decide(Released())

    def _doubt(self, outgoing: Outgoing, reason: str) -> None:
        self._kept.pop(outgoing, None)
        if not outgoing.decided.is_set():
            outgoing.decide(None, InDoubtError(reason))
