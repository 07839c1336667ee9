"""Encoded delivery states, and their kinds by descriptor code (§3.4, §4.5)."""

from __future__ import annotations

from typing import Final

# Descriptor codes of delivery states (§3.4, §4.5.8). A state of an extension has any other code, or a symbolic one.
EXTENSION: Final = 0
RECEIVED: Final = 0x23
ACCEPTED: Final = 0x24
REJECTED: Final = 0x25
RELEASED: Final = 0x26
MODIFIED: Final = 0x27
DECLARED: Final = 0x33
TRANSACTIONAL: Final = 0x34

#: `accepted` as our encoders write it: a described list0, the descriptor a smallulong.
ACCEPTED_STATE: Final = b"\x00\x53\x24\x45"
RELEASED_STATE: Final = b"\x00\x53\x26\x45"
#: modified(delivery-failed = true); `UNDELIVERABLE_STATE`: with undeliverable-here = true, too.
FAILED_STATE: Final = b"\x00\x53\x27\xc0\x02\x01\x41"
UNDELIVERABLE_STATE: Final = b"\x00\x53\x27\xc0\x03\x02\x41\x41"

#: The most octets of a delivery state that is kept unchanged until its delivery is settled.
LONG_STATE: Final = 4096

_EXTENSION: Final = EXTENSION
_RECEIVED: Final = RECEIVED
_DECLARED: Final = DECLARED
_TRANSACTIONAL: Final = TRANSACTIONAL
_ACCEPTED: Final = ACCEPTED
_REJECTED: Final = REJECTED
_RELEASED: Final = RELEASED
_MODIFIED: Final = MODIFIED
_ACCEPTED_STATE: Final = ACCEPTED_STATE

_LONG_STATE: Final = LONG_STATE

#: Usual encodings of states by peers, and the encoding that the decoder would make of each.
_STATES: Final = {
    b"\x40": None,
    _ACCEPTED_STATE: _ACCEPTED_STATE,
    RELEASED_STATE: RELEASED_STATE,
    b"\x00\x53\x24\xc0\x01\x00": _ACCEPTED_STATE,
    b"\x00\x53\x26\xc0\x01\x00": RELEASED_STATE,
    FAILED_STATE: FAILED_STATE,
    UNDELIVERABLE_STATE: UNDELIVERABLE_STATE,
}


def state_kind(state: bytes | None) -> int:
    """Return the descriptor code of an encoded delivery state; -1 for None.

    A state of the standard is always in the encoding of our own encoder here: the descriptor is a smallulong. Any other
    is a state of an extension, and its kind is 0.
    """
    if state is None:
        return -1
    if state[1] != 0x53:
        return _EXTENSION
    code = state[2]
    return code if _RECEIVED <= code <= _MODIFIED or code in (_DECLARED, _TRANSACTIONAL) else _EXTENSION


def is_terminal(state: bytes | None) -> bool:
    """Return whether `state` is an outcome: accepted, rejected, released or modified (§3.4)."""
    return _ACCEPTED <= state_kind(state) <= _MODIFIED
