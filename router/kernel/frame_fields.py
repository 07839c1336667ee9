"""Fields of the hot frames: `transfer`, `disposition` and `flow` (§2.7.4 to §2.7.6).

An absent optional field is -1 (numbers) or None (bytes).
"""

from __future__ import annotations

from typing import Final

#: The longest delivery-tag (§2.8.7).
MAX_TAG: Final = 32

_MAX_TAG: Final = MAX_TAG


class TransferFrame:
    """The fields of a `transfer`, read by the kernel or made of a decoded one (§2.7.5)."""

    __slots__ = (
        "aborted",
        "delivery_id",
        "delivery_tag",
        "handle",
        "message_format",
        "more",
        "rcv_settle_mode",
        "resume",
        "settled",
        "state",
    )

    def __init__(
        self,
        handle: int,
        delivery_id: int = -1,
        delivery_tag: bytes | None = None,
        message_format: int = -1,
        settled: int = -1,
        more: bool = False,
        rcv_settle_mode: int = -1,
        state: bytes | None = None,
        resume: bool = False,
        aborted: bool = False,
    ) -> None:
        self.handle = handle
        self.delivery_id = delivery_id
        self.delivery_tag = delivery_tag
        self.message_format = message_format
        #: -1 unset, 0 false, 1 true.
        self.settled = settled
        self.more = more
        #: -1 unset, 0 first, 1 second.
        self.rcv_settle_mode = rcv_settle_mode
        self.state = state
        self.resume = resume
        self.aborted = aborted


class DispositionFrame:
    """The fields of a `disposition` (§2.7.6)."""

    __slots__ = ("first", "last", "receiver", "settled", "state")

    def __init__(self, receiver: bool, first: int, last: int, settled: bool, state: bytes | None) -> None:
        self.receiver = receiver
        self.first = first
        self.last = last
        self.settled = settled
        self.state = state


class FlowFrame:
    """The fields of a `flow` that the kernel reads (§2.7.4)."""

    __slots__ = (
        "delivery_count",
        "drain",
        "echo",
        "handle",
        "incoming_window",
        "link_credit",
        "next_incoming_id",
        "next_outgoing_id",
        "outgoing_window",
    )

    def __init__(self) -> None:
        self.next_incoming_id = -1
        self.incoming_window = 0
        self.next_outgoing_id = 0
        self.outgoing_window = 0
        #: -1: the `flow` is one of the session alone.
        self.handle = -1
        self.delivery_count = -1
        self.link_credit = -1
        self.drain = False
        self.echo = False


class DispositionRun:
    """Consecutive delivery-ids with the same state: one `disposition` frame."""

    __slots__ = ("first", "last", "receiver", "settled", "state")

    def __init__(self, receiver: bool, delivery_id: int, settled: bool, state: bytes | None) -> None:
        self.receiver = receiver
        self.first = delivery_id
        self.last = delivery_id
        self.settled = settled
        self.state = state
