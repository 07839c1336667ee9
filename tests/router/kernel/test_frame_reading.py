"""The two hot frames, read alike by the kernel and by the generic decoder."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import ProtocolError
from amqpmesh.router.amqp.hot_frames import disposition_frame, transfer_frame
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import (
    Accepted,
    DeliveryState,
    Modified,
    Received,
    Rejected,
    Released,
)
from amqpmesh.router.amqp.standard.performatives import Disposition, Transfer, decode_performative, encode_performative
from amqpmesh.router.amqp.standard.transactions import TransactionalState
from amqpmesh.router.kernel import (
    DispositionFrame,
    DispositionRun,
    TransferFrame,
    skim_disposition,
    skim_transfer,
    write_disposition,
    write_transfer,
)
from tests.support.data import encodings as wire

Fields = tuple[object, ...]

NUMBERS = st.one_of(st.sampled_from([0, 1, 255, 256, 2**31, 2**32 - 1]), st.integers(0, 2**32 - 1))
TAGS = st.one_of(st.binary(max_size=8), st.sampled_from([b"", b"t" * 32]))

STATES: dict[str, DeliveryState] = {
    "accepted": Accepted(),
    "released": Released(),
    "rejected": Rejected(),
    "rejected with a reason": Rejected(error=Error(condition=AmqpCondition.NOT_ALLOWED, description="d" * 300)),
    "modified, nothing said": Modified(),
    "modified, failed": Modified(delivery_failed=True),
    "modified, undeliverable": Modified(delivery_failed=True, undeliverable_here=True),
    "modified, not failed": Modified(delivery_failed=False),
    "modified, annotated": Modified(message_annotations={Symbol("x-opt-k"): "v"}),
    "received": Received(section_number=3, section_offset=700),
    "transactional": TransactionalState(txn_id=b"x", outcome=Accepted()),
}


@st.composite
def encoded_states(draw: st.DrawFn) -> bytes:
    """Draw a delivery state in any encoding a peer may use."""
    flag, other = (draw(st.booleans().flatmap(wire.booleans)) for _ in range(2))
    states: list[tuple[int, str, list[bytes]]] = [
        (0x24, "amqp:accepted:list", []),
        (0x26, "amqp:released:list", []),
        (0x25, "amqp:rejected:list", [wire.NULL]),
        (0x27, "amqp:modified:list", [flag, other]),
        (0x27, "amqp:modified:list", [flag, wire.NULL, wire.NULL]),
        (0x23, "amqp:received:list", [draw(wire.uints(3)), b"\x53\x07"]),
    ]
    code, name, fields = draw(st.sampled_from(states))
    return draw(wire.described(code, name, draw(wire.lists(fields))))


def maybe(field: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Draw null half of the time."""
    return st.one_of(st.just(wire.NULL), field)


FLAGS = maybe(st.booleans().flatmap(wire.booleans))


@st.composite
def transfers(draw: st.DrawFn) -> bytes:
    """Draw a transfer in any encoding a peer may use: any fields, in full or cut short."""
    rare = draw(st.booleans())
    fields: list[st.SearchStrategy[bytes] | None] = [
        NUMBERS.flatmap(wire.uints),
        maybe(NUMBERS.flatmap(wire.uints)),
        maybe(TAGS.flatmap(wire.binaries)),
        maybe(NUMBERS.flatmap(wire.uints)),
        FLAGS,
        FLAGS,
        maybe(st.sampled_from([b"\x50\x00", b"\x50\x01"])) if rare else None,
        maybe(encoded_states()) if rare else None,
        FLAGS if rare else st.sampled_from([wire.NULL, b"\x42"]),
        FLAGS if rare else st.sampled_from([wire.NULL, b"\x42"]),
        FLAGS,
    ]
    return draw(wire.composites(0x14, "amqp:transfer:list", fields, 11)) + draw(st.binary(max_size=40))


@st.composite
def dispositions(draw: st.DrawFn) -> bytes:
    """Draw a disposition in any encoding a peer may use."""
    fields: list[st.SearchStrategy[bytes] | None] = [
        st.booleans().flatmap(wire.booleans),
        NUMBERS.flatmap(wire.uints),
        maybe(NUMBERS.flatmap(wire.uints)),
        FLAGS,
        maybe(encoded_states()),
        FLAGS,
    ]
    return draw(wire.composites(0x15, "amqp:disposition:list", fields, 6))


def values(frame: TransferFrame | DispositionFrame) -> Fields:
    return tuple(getattr(frame, name) for name in frame.__slots__)


def skimmed_transfer(data: bytes) -> tuple[Fields, int] | None:
    skimmed = skim_transfer(data, 0, len(data))
    return None if skimmed is None else (values(skimmed[0]), skimmed[1])


def decoded_transfer(data: bytes) -> tuple[Fields, int] | None:
    """Read a transfer by the generic decoder; None: it is malformed, or another frame."""
    try:
        performative, payload_at = decode_performative(data)
    except ProtocolError:
        return None
    return (values(transfer_frame(performative)), payload_at) if isinstance(performative, Transfer) else None


def skimmed_disposition(data: bytes) -> Fields | None:
    skimmed = skim_disposition(data, 0, len(data))
    return None if skimmed is None else values(skimmed)


def decoded_disposition(data: bytes) -> Fields | None:
    try:
        performative, end = decode_performative(data)
    except ProtocolError:
        return None
    if not isinstance(performative, Disposition) or end != len(data):
        return None
    return values(disposition_frame(performative))


@given(transfers())
def test_a_skimmed_transfer_is_what_the_decoder_reads(data: bytes) -> None:
    assert skimmed_transfer(data) in (None, decoded_transfer(data))


@given(dispositions())
def test_a_skimmed_disposition_is_what_the_decoder_reads(data: bytes) -> None:
    assert skimmed_disposition(data) in (None, decoded_disposition(data))


@given(transfers().flatmap(wire.mutated))
def test_a_damaged_transfer_is_handed_on_or_read_alike(data: bytes) -> None:
    assert skimmed_transfer(data) in (None, decoded_transfer(data))


@given(dispositions().flatmap(wire.mutated))
def test_a_damaged_disposition_is_handed_on_or_read_alike(data: bytes) -> None:
    assert skimmed_disposition(data) in (None, decoded_disposition(data))


def list8(code: int, *fields: str) -> bytes:
    """Return a composite in its usual shape. Args: fields: in hexadecimal."""
    body = bytes.fromhex(" ".join(fields))
    return bytes((0x00, 0x53, code, 0xC0, len(body) + 1, len(fields))) + body


TRANSFERS = {
    "first frame": list8(0x14, "5203", "52ff", "a00401020304", "43", "42", "41"),
    "wide numbers": list8(0x14, "7000000003", "70ffffffff", "a0020102", "7000000000"),
    "written in full": list8(0x14, "43", "5201", "a0036162 63", "43", "41", "42", "40", "40", "42", "42", "42"),
    "continuation": list8(0x14, "43", "40", "40", "40", "40", "41"),
    "handle only": list8(0x14, "5207"),
    "tag of 32 octets": list8(0x14, "43", "43", "a020" + "74" * 32, "43"),
}
DISPOSITIONS = {
    "accepted": list8(0x15, "41", "43", "40", "41", "00532445"),
    "a range, settled": list8(0x15, "41", "5201", "52ff", "41", "00532645"),
    "batchable": list8(0x15, "41", "43", "43", "42", "005324c00100", "41"),
    "failed": list8(0x15, "41", "5207", "40", "41", "005327c0020141"),
    "settled by the sender": list8(0x15, "42", "5209", "7000000100", "41"),
    "shortest": list8(0x15, "41", "5201"),
}


@pytest.mark.parametrize("frame", TRANSFERS.values(), ids=TRANSFERS.keys())
def test_every_octet_of_a_transfer_counts(frame: bytes) -> None:
    data = frame + b"payload"
    assert skimmed_transfer(data) == decoded_transfer(data) is not None
    for at in range(len(frame)):
        assert skimmed_transfer(data[:at]) in (None, decoded_transfer(data[:at]))
        for octet in range(256):
            changed = data[:at] + bytes((octet,)) + data[at + 1 :]
            assert skimmed_transfer(changed) in (None, decoded_transfer(changed)), changed.hex(" ")


@pytest.mark.parametrize("data", DISPOSITIONS.values(), ids=DISPOSITIONS.keys())
def test_every_octet_of_a_disposition_counts(data: bytes) -> None:
    assert skimmed_disposition(data) == decoded_disposition(data) is not None
    for at in range(len(data)):
        assert skimmed_disposition(data[:at]) in (None, decoded_disposition(data[:at]))
        for octet in range(256):
            changed = data[:at] + bytes((octet,)) + data[at + 1 :]
            assert skimmed_disposition(changed) in (None, decoded_disposition(changed)), changed.hex(" ")


MALFORMED_TRANSFERS = {
    "nothing": "",
    "a descriptor and no more": "005314",
    "no fields": "005314 45",
    "a count of 0": "005314 c00100",
    "the handle null": "005314 c00201 40",
    "more fields than there are": "005314 c00d0c 43 40 40 40 40 40 40 40 40 40 40 40",
    "fewer fields than the size holds": "005314 c00401 43 43 43",
    "more fields than the size holds": "005314 c00203 43 43 43",
    "a size of 0": "005314 c00001 43",
    "a size beyond the frame": "005314 c0ff01 43",
    "a number cut off by the size": "005314 c00302 43 70 00000001",
    "a tag of 33 octets": "005314 c02504 43 43 a021" + "74" * 33,
    "a tag beyond the size": "005314 c00503 43 43 a009 01 02",
    "a settle mode that is a boolean": "005314 c00807 43 40 40 40 40 40 42",
    "a state that is a boolean": "005314 c00908 43 40 40 40 40 40 40 42",
    "a number that is a boolean": "005314 c00302 43 41",
    "no described type": "055314 c00301 5207",
    "another performative": "005315 c00301 5207",
}


@pytest.mark.parametrize("text", MALFORMED_TRANSFERS.values(), ids=MALFORMED_TRANSFERS.keys())
def test_a_malformed_transfer_is_the_decoders_to_judge(text: str) -> None:
    data = bytes.fromhex(text)
    assert decoded_transfer(data) is None
    assert skimmed_transfer(data) is None


@given(
    handle=NUMBERS,
    delivery_id=st.none() | NUMBERS,
    tag=st.none() | TAGS,
    message_format=st.none() | NUMBERS,
    settled=st.none() | st.booleans(),
    more=st.booleans(),
    full=st.booleans(),
)
def test_the_usual_transfer_is_skimmed(
    handle: int,
    delivery_id: int | None,
    tag: bytes | None,
    message_format: int | None,
    settled: bool | None,
    more: bool,
    full: bool,
) -> None:
    transfer = Transfer(
        handle=handle,
        delivery_id=delivery_id,
        delivery_tag=tag,
        message_format=message_format,
        settled=settled,
        more=more,
    )
    data = encode_composite(transfer, full=full)
    assert skimmed_transfer(data + b"payload") == (values(transfer_frame(transfer)), len(data))


SKIMMED = ["accepted", "released", "modified, failed", "modified, undeliverable"]


@pytest.mark.parametrize("state", SKIMMED)
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_the_usual_disposition_is_skimmed(state: str, settled: bool, full: bool) -> None:
    disposition = Disposition(role=Role.RECEIVER, first=300, last=400, settled=settled, state=STATES[state])
    data = encode_composite(disposition, full=full)
    assert skimmed_disposition(data) == values(disposition_frame(disposition))


@pytest.mark.parametrize("name", STATES)
def test_every_state_is_read_by_one_of_the_two(name: str) -> None:
    data = encode_performative(Disposition(role=Role.SENDER, first=7, state=STATES[name]))
    decoded = decoded_disposition(data)
    assert decoded is not None
    assert encode_composite(STATES[name]) in decoded
    assert skimmed_disposition(data) in (None, decoded)


@pytest.mark.parametrize("batchable", [False, True])
def test_a_transfer_that_is_batchable_is_read_as_any_other(batchable: bool) -> None:
    transfer = Transfer(handle=1, delivery_id=2, delivery_tag=b"t", batchable=batchable)
    data = encode_performative(transfer)
    assert skimmed_transfer(data) == (values(transfer_frame(transfer)), len(data))


def test_the_decoder_reads_what_the_skimmer_hands_on() -> None:
    transfer = Transfer(
        handle=1, delivery_id=2, delivery_tag=b"t", rcv_settle_mode=ReceiverSettleMode.SECOND, state=Accepted()
    )
    data = encode_performative(transfer)
    assert skimmed_transfer(data) is None
    assert decoded_transfer(data) == (values(transfer_frame(transfer)), len(data))


@given(transfers(), st.binary(max_size=5), st.binary(max_size=5))
def test_a_transfer_is_read_where_it_lies(data: bytes, before: bytes, after: bytes) -> None:
    alone = skim_transfer(data, 0, len(data))
    within = skim_transfer(before + data + after, len(before), len(before) + len(data))
    assert (alone is None) == (within is None)
    if alone is not None and within is not None:
        assert values(within[0]) == values(alone[0])
        assert within[1] == alone[1] + len(before)


@given(dispositions(), st.binary(max_size=5), st.binary(max_size=5))
def test_a_disposition_is_read_where_it_lies(data: bytes, before: bytes, after: bytes) -> None:
    alone = skim_disposition(data, 0, len(data))
    within = skim_disposition(before + data + after, len(before), len(before) + len(data))
    assert (None if within is None else values(within)) == (None if alone is None else values(alone))


def test_the_kernel_skims_each_frame_that_it_writes() -> None:
    out = bytearray()
    write_transfer(out, 0, TransferFrame(1, 2, b"t", 0), b"payload", 512)
    assert skim_transfer(bytes(out), 8, len(out)) is not None
    out.clear()
    write_disposition(out, 0, DispositionRun(True, 7, True, b"\x00\x53\x24\x45"))
    assert skim_disposition(bytes(out), 8, len(out)) is not None
