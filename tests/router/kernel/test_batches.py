"""Whole frames for a client's link, received as a batch, with the results of single frames."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import pytest

from amqpmesh.router import kernel as bound
from tests.support.worlds.kernels import agreed, both

HANDLE, OTHER, UNKNOWN = 3, 4, 9


class Client(NamedTuple):
    wire: Any
    links: dict[int, Any]


def client(kernel: ModuleType, credit: int = 10, window: int = 10) -> Client:
    """Return a connection with a session on channel 0 and two links with the fast path."""
    wire = kernel.KernelConnection()
    wire.is_open = True
    wire.max_frame_size = 1000
    wire.batch = kernel.ReceivedBatch()
    session = kernel.KernelSession(window, 0, 0, wire, None)
    session.channel = 0
    session.announce()
    wire.sessions[0] = session
    links = {}
    for handle in (HANDLE, OTHER):
        link = links[handle] = kernel.KernelLink(session, False, None, {})
        link.handle = handle
        link.link_credit = credit
        link.granted_limit = credit
        kernel.enable_fast_path(link, handle, None)
    return Client(wire, links)


def transfer(number: int, payload: bytes = b"payload", handle: int = HANDLE, **fields: Any) -> bytes:
    """Return a frame of a delivery."""
    frame = bound.TransferFrame(handle)
    frame.delivery_id = number
    frame.delivery_tag = b"%d" % number
    for name, value in fields.items():
        setattr(frame, name, value)
    out = bytearray()
    bound.write_transfer(out, 0, frame, payload, 1000, False)
    return bytes(out)


def gathered(kernel: ModuleType, data: bytes, at: Client) -> tuple[int, list[bytes], list[bytes]]:
    """Receive a batch. Returns: the end of the frames that were taken, and their tags and payloads."""
    batch = at.wire.batch
    end = kernel.relay_frames(at.wire, data, 0, len(data))
    return end, [delivery.tag for delivery in batch.deliveries], list(batch.payloads)


WHOLE = transfer(0, b"a") + transfer(1, b"", settled=1) + transfer(2, b"c" * 300, message_format=7)


def test_whole_deliveries_are_taken_and_counted() -> None:
    at = client(bound)
    assert gathered(bound, WHOLE, at) == (len(WHOLE), [b"0", b"1", b"2"], [b"a", b"", b"c" * 300])
    link = at.links[HANDLE]
    assert [delivery.message_format for delivery in at.wire.batch.deliveries] == [0, 0, 7]
    assert all(delivery.complete and delivery.link is link for delivery in at.wire.batch.deliveries)
    assert (link.link_credit, link.delivery_count, link.deliveries, link.octets) == (7, 3, 3, 301)
    assert list(link.unsettled) == [b"0", b"2"]  # settled deliveries are not unsettled
    assert list(link.session.incoming.deliveries) == [0, 2]
    assert (link.session.next_incoming_id, link.session.held) == (3, 3)


@pytest.mark.parametrize(
    "stop",
    [
        transfer(3, more=True),
        transfer(3, aborted=True),
        transfer(3, handle=OTHER),
        transfer(3, handle=UNKNOWN),
        transfer(0),  # an id that is in use
        transfer(3, delivery_tag=b"2"),  # a tag that is in use
        transfer(3, b"x" * 980)[:4] + b"\x02\x00\x00\x05" + b"x" * 980,  # no session on that channel
        b"\x00\x00\x00\x08\x02\x00\x00\x00",
        b"\x00\x00\x07\xff\x02\x00\x00\x00" + b"x" * 2040,
        b"garbage that is no frame",
    ],
    ids=[
        "begun",
        "aborted",
        "other link",
        "no link",
        "id",
        "tag",
        "no session",
        "empty",
        "large",
        "garbage",
    ],
)
def test_it_stops_where_others_have_to_read_and_that_is_untouched(stop: bytes) -> None:
    alone, at = client(bound), client(bound)
    gathered(bound, WHOLE, alone)
    assert gathered(bound, WHOLE + stop + transfer(4), at)[0] == len(WHOLE)
    for one, other in zip(alone.links.values(), at.links.values(), strict=True):
        assert (one.link_credit, one.deliveries, one.current) == (other.link_credit, other.deliveries, other.current)
    assert alone.links[HANDLE].session.next_incoming_id == at.links[HANDLE].session.next_incoming_id


@pytest.mark.parametrize("limit", [{"credit": 2}, {"window": 2}])
def test_no_more_is_taken_than_credit_and_window_allow(limit: dict[str, int]) -> None:
    at = client(bound, **limit)
    first_two = len(transfer(0, b"a") + transfer(1, b"", settled=1))
    assert gathered(bound, WHOLE, at)[0] == first_two


def test_another_link_goes_on_when_what_was_gathered_is_taken() -> None:
    at = client(bound)
    data = transfer(0) + transfer(1, handle=OTHER)
    assert gathered(bound, data, at)[0] == len(transfer(0))
    at.wire.batch.deliveries, at.wire.batch.payloads = [], []
    assert gathered(bound, data[len(transfer(0)) :], at)[1] == [b"1"]


def test_what_goes_on_with_a_delivery_is_for_others() -> None:
    at = client(bound)
    link = at.links[HANDLE]
    frame, _ = bound.skim_transfer(transfer(0, more=True)[8:], 0, len(transfer(0, more=True)) - 8)
    bound.receive_transfer(link, frame, 7)
    assert gathered(bound, transfer(0), at)[0] == 0


def test_where_no_fast_path_is_enabled_nothing_is_looked_at() -> None:
    at = client(bound)
    at.wire.batch = None
    assert bound.relay_frames(at.wire, WHOLE, 0, len(WHOLE)) == 0
    at = client(bound)
    bound.disable_fast_path(at.links[HANDLE])
    assert gathered(bound, WHOLE, at)[0] == 0


@pytest.mark.parametrize("cut", range(0, len(WHOLE) + 1, 7))
def test_both_kernels_gather_the_same(cut: int) -> None:
    def call(kernel: ModuleType) -> object:
        at = client(kernel)
        return gathered(kernel, WHOLE[:cut], at), at.wire, at.links[HANDLE]

    agreed(both(), call)
