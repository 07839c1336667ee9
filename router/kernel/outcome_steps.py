"""Steps that follow when a receiver states the outcome of a delivery (§2.6.12)."""

from typing import Final

#: Steps, as bits. This one: pass the outcome to the sender.
TELL_SENDER: Final = 1
#: Settle the delivery towards its sender.
SETTLE_SENDER: Final = 2
#: Settle the delivery towards its receiver.
SETTLE_RECEIVER: Final = 4
#: Tell the receiver, which waits for it, that the delivery is settled.
TELL_RECEIVER: Final = 8

#: The steps by rcv-settle-mode of the sender's link (second: the sender settles last), by whether the receiver has
#: settled, and by whether its outcome was known. A known outcome cannot change; only its settlement may be new.
# fmt: off
STEPS: Final = (
    # second, settled, known
    TELL_SENDER | SETTLE_SENDER | SETTLE_RECEIVER | TELL_RECEIVER,  # no  no  no
    0,                                                              # no  no  yes
    TELL_SENDER | SETTLE_SENDER | SETTLE_RECEIVER,                  # no  yes no
    SETTLE_RECEIVER,                                                # no  yes yes
    TELL_SENDER,                                                    # yes no  no
    0,                                                              # yes no  yes
    TELL_SENDER | SETTLE_RECEIVER,                                  # yes yes no
    SETTLE_RECEIVER,                                                # yes yes yes
)
# fmt: on

_SETTLE_SENDER: Final = SETTLE_SENDER
_SETTLE_RECEIVER: Final = SETTLE_RECEIVER
_TELL_RECEIVER: Final = TELL_RECEIVER
#: The table in one number, four bits for each row: a look-up in C is a shift.
_STEPS: Final = sum(steps << 4 * row for row, steps in enumerate(STEPS))


def outcome_step(second: bool, settled: bool, known: bool) -> int:
    """Return the steps that follow from an outcome.

    Args: second: the sender's link has rcv-settle-mode second. settled: the receiver has settled. known: the receiver
        had stated its outcome before.
    """
    return _STEPS >> 4 * (4 * second + 2 * settled + known) & 15
