"""The steps for sent deliveries whose receiver is back with its unsettled map (§2.6.13, §3.4.6, as the sender).

A function of what both sides know of a delivery, for any peer: a client, or the next router of a lane.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.delivery.permitted import is_outcome
from amqpmesh.router.kernel import FAILED_STATE, RELEASED_STATE
from amqpmesh.router.message.outcomes import ALL_RECEIVED

WHOLE: Final = encode_composite(ALL_RECEIVED)
"""The state of a delivery that has come whole."""

NULL: Final = b"\x40"
"""The state of a delivery that can be sent from its first octet (§3.4.6)."""


class Then(Enum):
    """The course of a delivery from here."""

    #: A transfer resumes it, without octets. It is in our map.
    RESUME = auto()
    #: A transfer resumes it, with all its octets. It is in our map, with null.
    SEND = auto()
    #: A transfer resumes and aborts it. It is in our map.
    ABORT = auto()
    #: It ends here, and is in no map.
    END = auto()
    #: Nothing: the receiver's map says too little. It stays, and is in our map.
    STAY = auto()


class SentDelivery(NamedTuple):
    """The sender's knowledge of a delivery that is unsettled on its side."""

    is_whole: bool
    """Its last frame was written."""
    outcome: bytes | None = None
    """Encoded, as the receiver has stated it."""
    stated: bytes | None = None
    """A terminal state, encoded, that the sender has stated itself."""
    second: bool = False
    """In mode second the receiver settles only once the sender has (§2.8.3)."""
    default: bytes = FAILED_STATE
    """The outcome of a delivery whose receiver may have begun with it."""
    is_kept: bool = False
    """All its octets are here."""


class ReceiversMap(NamedTuple):
    """The receiver's map, as to one delivery."""

    is_named: bool
    state: bytes | None = None
    """Encoded."""
    is_complete: bool = True
    """A map that is not complete says nothing of what it does not name."""
    is_reliable: bool = False
    """It names a delivery without an outcome only if all of it came, and is not that of a process without memory."""


class Step(NamedTuple):
    """The consequences for a delivery."""

    then: Then
    said: bytes | None = None
    """Counts as the receiver's outcome from now on, and is passed on; None: nothing new is known."""
    state: bytes | None = None
    """Ours, in our map and in the transfer; None: the delivery is not in our map."""


def decide(ours: SentDelivery, theirs: ReceiversMap) -> Step:
    """Return what follows for a delivery that is unsettled at the sender.

    Source: the figure of §3.4.6, whose rows are named by their delivery-tags.
    """
    said = theirs.state if is_outcome(theirs.state) else None
    if not (ours.is_whole or ours.is_kept):
        # The rest of it never left: nobody can have processed it.
        if said is None and not theirs.is_named and not theirs.is_complete:
            return Step(Then.STAY)
        return Step(Then.END, said or (RELEASED_STATE if theirs.is_reliable else ours.default))
    known = ours.outcome or ours.stated
    if theirs.is_named:
        if known is not None:  # 11 to 14: the sender's state counts, and the receiver repeats it
            return Step(Then.RESUME, said if ours.outcome is None and said == known else None, known)
        if said is not None:  # 3, 8: nothing has to be sent again, so our state is the same
            return Step(Then.RESUME, said, said)
        if theirs.state == WHOLE:  # 6
            return Step(Then.RESUME, None, WHOLE)
        if ours.is_kept:  # 2, 4
            return Step(Then.SEND, None, NULL)
        return Step(Then.ABORT, ours.default, WHOLE)  # 7, 9: its octets are not here
    if not theirs.is_complete:
        return Step(Then.STAY, None, known or (NULL if ours.is_kept else WHOLE))
    if ours.outcome is not None:
        return Step(Then.END)  # 10: it has settled
    if ours.second and theirs.is_reliable:
        return Step(Then.END, RELEASED_STATE)  # 1, 5: it never came, for else it would not be settled
    return Step(Then.END, ours.default)  # 1, 5, 10: it may have come, and been settled
