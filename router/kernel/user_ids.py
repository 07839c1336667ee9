"""User-ids of messages, compared with the user of the connection that they come by (§3.2.4, user-id)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.kernel.encoded_values import (
    _DATA,
    _FOOTER,
    _HEADER,
    _NESTED,
    _PROPERTIES,
    _SEQUENCE,
    _VALUE,
    uint32,
)
from amqpmesh.router.kernel.head_sections import _PASS_ALL, _after_any, _bare_message_at, _property
from amqpmesh.router.kernel.violations import LINK, Violation

if TYPE_CHECKING:
    from amqpmesh.router.kernel.frame_fields import TransferFrame
    from amqpmesh.router.kernel.router_state import KernelRouter


class UserIdRule:
    """The user-ids that the messages of a link may have."""

    __slots__ = ("may_be_absent", "own", "skip", "walk")

    def __init__(self, own: bytes | None, may_be_absent: bool) -> None:
        #: The only one that a message may have; None: it may have none.
        self.own = own
        #: A message may have no user-id. An empty one counts as none.
        self.may_be_absent = may_be_absent
        #: The router's walk over the sections of a message of several frames; None: nothing of such a one is checked.
        self.walk: object = None
        #: Octets of the message that come next and can be passed on unread: they lie within one value.
        self.skip = 0

    def permits(self, user_id: bytes | None) -> bool:
        """Return whether a message may have a user-id."""
        return user_id == self.own if user_id else self.may_be_absent


def read_user_id(data: bytes, at: int) -> bytes | None:
    """Return the user-id of the bare message at `at`; None: it has none.

    Raises: Incomplete: the data ends before the field. Violation: the section is malformed.
    """
    found = _property(data, at, 1) if at < len(data) else None
    if found is None:
        return None
    item, after = found
    code = data[item]
    if code == 0x40:
        return None
    if code not in (0xA0, 0xB0):
        raise Violation(LINK, "amqp:decode-error", "the user-id is not binary")
    return data[item + (2 if code == 0xA0 else 5) : after]


def _may_be_from(
    router: KernelRouter, rule: UserIdRule, frame: TransferFrame, data: bytes, payload_at: int, end: int
) -> bool:
    """Return whether a rule permits the user-id of a message; False, too, if the router must decide.

    It must decide if a section is not encoded as usual, or if more of the message follows.
    """
    if frame.message_format > 0 or frame.more:
        return False
    at = _bare_message_at(router.header, data, payload_at, end, _PASS_ALL, True)
    if at < 0:
        return False
    is_permitted = rule.may_be_absent
    if at < end and data[at] == 0 and data[at + 1] == 0x53 and data[at + 2] == _PROPERTIES:
        form = data[at + 3]
        count = 0
        item = end
        if form == 0xC0 and end - at >= 6:
            count = data[at + 5]
            item = at + 6
        elif form == 0xD0 and end - at >= 12:
            count = uint32(data, at + 8)
            item = at + 12
        elif form != 0x45:
            return False
        if count > 1:
            item = _after_any(data, item, end)  # message-id
            stop = _after_any(data, item, end) if item >= 0 else -1
            if stop < 0:
                return False
            form = data[item]
            if form == 0xA0:
                item += 2
            elif form == 0xB0:
                item += 5
            elif form == 0x40:
                item = stop
            else:
                return False
            if item < stop:
                own = rule.own
                if own is None or stop - item != len(own) or data[item:stop] != own:
                    return False
                is_permitted = True
    return is_permitted and _is_regular(data, payload_at, end)


def _is_regular(data: bytes, at: int, end: int) -> bool:
    """Return whether a whole message consists of sections in order, in the usual encoding, each of which adds up.

    Receivers differ in how they read others: some take the properties from wherever they find them, and some read the
    items of a list whatever its size.
    """
    last = _HEADER
    while at < end:
        if end - at < 4 or data[at] != 0 or data[at + 1] != 0x53:
            return False
        code = data[at + 2]
        if code < last or code > _FOOTER:
            return False
        if data[at + 3] == 0 and code != _VALUE:
            return False
        last = code
        if code != _DATA and code != _SEQUENCE:  # the body may consist of several of these
            last += 1
        at = _exact_end(data, at + 3, end, 0)
        if at < 0:
            return False
    return True


def _exact_end(data: bytes, at: int, end: int, depth: int) -> int:
    """Return the end of a value that lies before `end`, the items of which take its size; -1: otherwise, or it has an
    array.
    """
    if at >= end or depth > _NESTED:
        return -1
    form = data[at]
    if form == 0:  # described
        at = _exact_end(data, at + 1, end, depth + 1)
        return -1 if at < 0 else _exact_end(data, at, end, depth + 1)
    if form >= 0xE0:
        return -1
    after = _after_any(data, at, end)
    if after < 0 or form < 0xC0:
        return after
    count = 0
    if form <= 0xC1 and after - at >= 3:
        count = data[at + 2]
        at += 3
    elif form >= 0xD0 and after - at >= 9:
        count = uint32(data, at + 5)
        at += 9
    else:
        return -1
    while count > 0:
        at = _exact_end(data, at, after, depth + 1)
        if at < 0:
            return -1
        count -= 1
    return after if at == after else -1
