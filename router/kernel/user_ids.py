"""User-ids of messages, compared with the user of the connection that they come by (§3.2.4, user-id)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.encoded_values import _PROPERTIES, descriptor_code, uint32
from amqpmesh.router.kernel.head_sections import _PASS_ALL, _after_any, _bare_message_at, _property
from amqpmesh.router.kernel.violations import LINK, Incomplete, Violation

if TYPE_CHECKING:
    from amqpmesh.router.kernel.frame_fields import TransferFrame
    from amqpmesh.router.kernel.router_state import KernelRouter

# Descriptor codes of the sections behind the properties (§3.2).
_APPLICATION_PROPERTIES: Final = 0x74
_FIRST_OF_BODY: Final = 0x75
_LAST_OF_BODY: Final = 0x77


class UserIdRule:
    """The user-ids that the messages of a link may have."""

    __slots__ = ("may_be_absent", "own")

    def __init__(self, own: bytes | None, may_be_absent: bool) -> None:
        #: The only one that a message may have; None: it may have none.
        self.own = own
        #: A message may have no user-id. An empty one counts as none.
        self.may_be_absent = may_be_absent

    def permits(self, user_id: bytes | None) -> bool:
        """Return whether a message may have a user-id."""
        return user_id == self.own if user_id else self.may_be_absent


def read_user_id(data: bytes, at: int) -> bytes | None:
    """Return the user-id of the bare message at `at`; None: it has none.

    The sections have to be in order up to the body, as far as the data goes: some receivers take the properties from
    wherever they find them.

    Raises: Incomplete: the data ends before the field. Violation: a section is malformed, or out of order.
    """
    found = _property(data, at, 1) if at < len(data) else None
    _check_order(data, at)
    if found is None:
        return None
    item, after = found
    code = data[item]
    if code == 0x40:
        return None
    if code not in (0xA0, 0xB0):
        raise Violation(LINK, "amqp:decode-error", "the user-id is not binary")
    return data[item + (2 if code == 0xA0 else 5) : after]


def _check_order(data: bytes, at: int) -> None:
    """Check that the sections of the bare message at `at` are in order up to its body. Raises: Violation."""
    last = _PROPERTIES - 1
    end = len(data)
    try:
        while at < end:
            code, value_at = descriptor_code(data, at, end)
            if code == -1 or code > _APPLICATION_PROPERTIES:
                return
            if code <= last:
                raise Violation(LINK, "amqp:decode-error", "the sections of the message are out of order")
            last = code
            at = _list_end(data, value_at, end)
    except Incomplete:
        return


def _list_end(data: bytes, at: int, end: int) -> int:
    """Return where the list or map at `at` ends; beyond `end`: it is incomplete, or neither list nor map."""
    form = data[at] if at < end else 0
    if form == 0x45:
        return at + 1
    if (form == 0xC0 or form == 0xC1) and end - at >= 2:
        return at + 2 + data[at + 1]
    if (form == 0xD0 or form == 0xD1) and end - at >= 5:
        return at + 5 + uint32(data, at + 1)
    return end + 1


def _may_be_from(
    router: KernelRouter, rule: UserIdRule, frame: TransferFrame, data: bytes, payload_at: int, end: int
) -> bool:
    """Return whether a rule permits the user-id of a message; False, too, if the router must decide.

    It must decide if a section is not encoded as usual, or not complete as far as the field.
    """
    if frame.message_format > 0:
        return False
    at = _bare_message_at(router.header, data, payload_at, end, _PASS_ALL, not frame.more)
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
        at = _list_end(data, at + 3, end)
        if at > end:
            return False
        if count > 1:
            item = _after_any(data, item, at)  # message-id
            stop = _after_any(data, item, at) if item >= 0 else -1
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
    return is_permitted and _is_in_order(data, at, end)


def _is_in_order(data: bytes, at: int, end: int) -> bool:
    """Return whether the application-properties or the body begin at `at`, or nothing, in the usual encoding."""
    if end - at >= 4 and data[at] == 0 and data[at + 1] == 0x53 and data[at + 2] == _APPLICATION_PROPERTIES:
        at = _list_end(data, at + 3, end)
    if at >= end:
        return True
    return (
        end - at >= 3
        and data[at] == 0
        and data[at + 1] == 0x53
        and data[at + 2] >= _FIRST_OF_BODY
        and data[at + 2] <= _LAST_OF_BODY
    )
