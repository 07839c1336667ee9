"""Transfers and dispositions of the kernel, equal to the encoder's, and cut to the peer's frame size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Modified, Rejected
from amqpmesh.router.amqp.standard.performatives import Disposition, Transfer, decode_performative
from amqpmesh.router.kernel import DispositionRun, TransferFrame, write_disposition, write_transfer

NUMBERS = st.sampled_from([0, 1, 255, 256, 2**32 - 1]) | st.integers(0, 2**32 - 1)
CHANNELS = st.sampled_from([0, 1, 255, 256, 65_535])


def annotated(size: int) -> Modified:
    """Return a state of about `size` octets."""
    return Modified(message_annotations={Symbol("x-opt-k"): "v" * size})


STATES: st.SearchStrategy[DeliveryState | None] = st.one_of(
    st.none(),
    st.just(Accepted()),
    st.just(Rejected(error=Error(condition=AmqpCondition.NOT_ALLOWED, description="d" * 70_000))),
    # In this range the size field of the list grows from one octet to four.
    st.integers(170, 260).map(annotated),
)


@st.composite
def transfers(draw: st.DrawFn) -> Transfer:
    """Draw a transfer with any combination of fields."""
    return Transfer(
        handle=draw(NUMBERS),
        delivery_id=draw(st.none() | NUMBERS),
        delivery_tag=draw(st.none() | st.binary(max_size=32)),
        message_format=draw(st.none() | NUMBERS),
        settled=draw(st.sampled_from([None, True])),
        more=draw(st.booleans()),
        rcv_settle_mode=draw(st.none() | st.sampled_from(ReceiverSettleMode)),
        state=draw(STATES),
        resume=draw(st.booleans()),
        aborted=draw(st.booleans()),
    )


def frame_of(transfer: Transfer) -> TransferFrame:
    mode = transfer.rcv_settle_mode
    return TransferFrame(
        transfer.handle,
        -1 if transfer.delivery_id is None else transfer.delivery_id,
        transfer.delivery_tag,
        -1 if transfer.message_format is None else transfer.message_format,
        1 if transfer.settled else -1,
        transfer.more,
        -1 if mode is None else mode.value,
        None if transfer.state is None else encode_composite(transfer.state),
        transfer.resume,
        transfer.aborted,
    )


def frame_header(size: int, channel: int) -> bytes:
    return size.to_bytes(4, "big") + b"\x02\x00" + channel.to_bytes(2, "big")


@given(transfers(), CHANNELS, st.binary(max_size=20), st.binary(max_size=5))
def test_a_transfer_is_written_as_the_encoder_would(
    transfer: Transfer, channel: int, payload: bytes, before: bytes
) -> None:
    out = bytearray(before)
    assert write_transfer(out, channel, frame_of(transfer), payload, 1_000_000) == len(payload)
    body = encode_composite(transfer) + payload
    assert out == before + frame_header(8 + len(body), channel) + body


@given(transfers(), CHANNELS)
def test_in_full_nulls_stand_for_the_trailing_defaults(transfer: Transfer, channel: int) -> None:
    compact, full = bytearray(), bytearray()
    write_transfer(compact, channel, frame_of(transfer), b"", 1_000_000)
    write_transfer(full, channel, frame_of(transfer), b"payload", 1_000_000, in_full=True)
    written, payload_at = decode_performative(full, 8)
    assert written == decode_performative(compact, 8)[0]
    assert full[payload_at:] == b"payload"
    list8 = full[11] == 0xC0
    assert (full[13] if list8 else int.from_bytes(full[16:20], "big")) == 11
    assert full[:8] == frame_header(len(full), channel)


@given(transfers(), st.binary(min_size=1, max_size=60), st.integers(1, 70))
def test_a_transfer_takes_what_fits_and_says_that_more_comes(transfer: Transfer, payload: bytes, spare: int) -> None:
    # `more` can make the list five nulls longer, and too long for a size of one octet.
    limit = 8 + len(encode_composite(transfer)) + 11 + spare
    out = bytearray()
    taken = write_transfer(out, 0, frame_of(transfer), payload, limit)
    assert len(out) == int.from_bytes(out[:4], "big") <= limit
    written, payload_at = decode_performative(out, 8)
    assert isinstance(written, Transfer)
    assert bytes(out[payload_at:]) == payload[:taken]
    if taken < len(payload):
        assert len(out) == limit, "no room is wasted"
        assert written.more
    else:
        assert written.more == transfer.more


def test_where_only_the_head_fits_no_payload_goes() -> None:
    longest = TransferFrame(2**32 - 1, 2**32 - 1, b"t" * 32, 2**32 - 1, 1)
    out = bytearray()
    assert write_transfer(out, 0, longest, b"payload", 65) == 0
    assert len(out) == 65
    out.clear()
    assert write_transfer(out, 0, longest, b"payload", 66) == 1
    out.clear()
    assert write_transfer(out, 0, longest, b"payload", 70, in_full=True) == 0
    assert len(out) == 70


@given(
    receiver=st.booleans(),
    first=NUMBERS,
    further=st.sampled_from([0, 1, 2**31]),
    settled=st.booleans(),
    state=STATES,
    channel=CHANNELS,
    before=st.binary(max_size=5),
)
def test_a_disposition_says_what_its_run_does_and_is_as_short_as_the_encoders(
    receiver: bool, first: int, further: int, settled: bool, state: DeliveryState | None, channel: int, before: bytes
) -> None:
    last = (first + further) % 2**32
    run = DispositionRun(receiver, first, settled, None if state is None else encode_composite(state))
    run.last = last
    out = bytearray(before)
    write_disposition(out, channel, run)
    frame = out[len(before) :]
    expected = Disposition(
        role=Role.RECEIVER if receiver else Role.SENDER,
        first=first,
        last=last if further else None,
        settled=settled,
        state=state,
    )
    assert out[: len(before)] == before
    assert frame[:8] == frame_header(8 + len(encode_composite(expected)), channel)
    assert decode_performative(frame, 8) == (expected, len(frame))


@pytest.mark.parametrize("size", range(170, 260))
def test_a_list_of_any_size_has_the_header_that_it_needs(size: int) -> None:
    state = annotated(size)
    out = bytearray()
    write_disposition(out, 0, DispositionRun(True, 7, True, encode_composite(state)))
    written, end = decode_performative(out, 8)
    assert end == len(out)
    assert written == Disposition(role=Role.RECEIVER, first=7, settled=True, state=state)
