"""A table of protocol violations: the state before, the frames, and the answer that the standard demands.

A row names the endpoint that ends, and the condition of the error. If the answer is debatable, a comment gives the
reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Described, Extension, Symbol, ULong
from amqpmesh.router.amqp.codec.values import encode
from amqpmesh.router.amqp.frames import EMPTY_FRAME
from amqpmesh.router.amqp.sasl.exchange import SaslInit, SaslResponse
from amqpmesh.router.amqp.standard.definitions import Error, ReceiverSettleMode, Role, SenderSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, TransactionalState
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.amqp.standard.performatives import (
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Open,
    Performative,
    Transfer,
)
from amqpmesh.router.amqp.standard.transactions import Coordinator
from tests.support.peers.bystanders import MAX_FRAME_SIZE, MAX_MESSAGE_SIZE
from tests.support.peers.scripted import AMQP, SASL, TLS, attached, begun, flow, frame, transferred


class Stage(Enum):
    """The progress of the peer, by legal frames, before the violation."""

    CONNECTED = auto()
    HEADER = auto()
    OPENED = auto()
    BEGUN = auto()
    #: The peer has attached a sender, handle 0, and has credit.
    SENDING = auto()
    #: The peer has attached a receiver, handle 0; deliveries 0..2 have come and are unsettled.
    RECEIVING = auto()


class Answer(Enum):
    """The endpoint that ends."""

    #: No endpoint: the frames are legal, or are ignored.
    NOTHING = auto()
    LINK = auto()
    SESSION = auto()
    CONNECTION = auto()
    #: The stream is closed: no layer has begun in which an error could be sent.
    STREAM = auto()


@dataclass
class Row:
    """A sequence of frames, and the answer."""

    name: str
    stage: Stage
    parts: list[bytes | Performative]
    answer: Answer
    condition: str | None = None
    #: Fields of the peer's open and begin.
    open: dict[str, object] = field(default_factory=dict)
    begin: dict[str, int] = field(default_factory=dict)
    #: Fields of its attach, if the stage has one.
    attach: dict[str, object] = field(default_factory=dict)


def listed(code: int, items: bytes, count: int) -> bytes:
    """Return a described list8 with any octets as items."""
    return b"\x00\x53" + bytes((code, 0xC0, len(items) + 1, count)) + items


def sasl(body: bytes) -> bytes:
    return frame(body, type=1)


def nested(opening: bytes, times: int) -> bytes:
    """Return nested list32s of one element each, with a null in the middle."""
    body = b"\x40"
    for _ in range(times):
        body = opening + (len(body) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x01" + body
    return body


def opened_with(properties: bytes) -> bytes:
    """Return an `open` with these octets in place of its properties."""
    fields = b"\xa1\x01a" + b"\x40" * 8 + properties
    return frame(b"\x00\x53\x10\xd0" + (len(fields) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x0a" + fields)


#: Empty lists: one octet each on the wire, 56 in memory.
LISTS = {Symbol("x-opt-many"): [[]] * 3000}

ILLEGAL_STATE = "amqp:illegal-state"
NOT_ALLOWED = "amqp:not-allowed"
INVALID_FIELD = "amqp:invalid-field"
DECODE_ERROR = "amqp:decode-error"
NOT_FOUND = "amqp:not-found"
NOT_IMPLEMENTED = "amqp:not-implemented"
LIMIT = "amqp:resource-limit-exceeded"
FRAMING = "amqp:connection:framing-error"
UNATTACHED = "amqp:session:unattached-handle"
WINDOW_VIOLATION = "amqp:session:window-violation"
TRANSFER_LIMIT = "amqp:link:transfer-limit-exceeded"
TOO_LARGE = "amqp:link:message-size-exceeded"

#: A value of a type outside of the standard.
UNKNOWN = Extension(b"\x00\x53\x99\x45")

S, A = Stage, Answer

HEADERS = [
    Row("HTTP", S.CONNECTED, [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"], A.STREAM),
    Row("zeros", S.CONNECTED, [bytes(100_000)], A.STREAM),
    Row("a TLS client without header", S.CONNECTED, [b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03"], A.STREAM),
    Row("AMQP 0-9-1", S.CONNECTED, [b"AMQP\x00\x00\x09\x01"], A.STREAM),
    Row("a version to come", S.CONNECTED, [b"AMQP\x00\x01\x01\x00"], A.STREAM),
    Row("an unknown protocol id", S.CONNECTED, [b"AMQP\x07\x01\x00\x00"], A.STREAM),
    Row("TLS where there is none", S.CONNECTED, [TLS + b"\x16\x03\x01"], A.STREAM),
    Row("a frame without header", S.CONNECTED, [Open(container_id="x")], A.STREAM),
    Row("half a header", S.CONNECTED, [b"AMQP\x00"], A.NOTHING),
    # An error in the SASL exchange cannot be sent: its layer has no frame for it, and AMQP has not begun (§5.3.2).
    Row("an AMQP frame for a SASL frame", S.CONNECTED, [SASL, Open(container_id="x")], A.STREAM),
    Row("a SASL response before init", S.CONNECTED,
        [SASL, sasl(encode_composite(SaslResponse(response=b"")))], A.STREAM),
    Row("an empty SASL frame", S.CONNECTED, [SASL, sasl(b"")], A.STREAM),
    Row("a SASL frame of 513 octets", S.CONNECTED, [SASL, sasl(b"\x00\x53\x41" + bytes(502))], A.STREAM),
    Row("garbage in a SASL frame", S.CONNECTED, [SASL, sasl(b"\xff\xfe\xfd")], A.STREAM),
    Row("a mechanism that was not offered", S.CONNECTED,
        [SASL, sasl(encode_composite(SaslInit(mechanism=Symbol("PLAIN"), initial_response=b"\0a\0b")))], A.STREAM),
    Row("SASL twice", S.CONNECTED,
        [SASL, sasl(encode_composite(SaslInit(mechanism=Symbol("ANONYMOUS")))), SASL], A.STREAM),
]  # fmt: skip

BEFORE_OPEN = [
    Row("begin before open", S.HEADER, [begun()], A.CONNECTION, ILLEGAL_STATE),
    Row("transfer before open", S.HEADER, [transferred()], A.CONNECTION, ILLEGAL_STATE),
    Row("close before open", S.HEADER, [Close()], A.CONNECTION, ILLEGAL_STATE),
    # §2.4.5: empty frames may be sent after the open.
    Row("an empty frame before open", S.HEADER, [EMPTY_FRAME], A.CONNECTION, ILLEGAL_STATE),
    Row("open on channel 1", S.HEADER, [frame(Open(container_id="x"), channel=1)], A.CONNECTION, NOT_ALLOWED),
    Row("open above the channel-max", S.HEADER, [frame(Open(container_id="x"), channel=8)], A.CONNECTION, FRAMING),
    Row("open without container-id", S.HEADER, [frame(b"\x00\x53\x10\x45")], A.CONNECTION, INVALID_FIELD),
    Row("container-id null", S.HEADER, [frame(listed(0x10, b"\x40", 1))], A.CONNECTION, INVALID_FIELD),
    Row("container-id a number", S.HEADER, [frame(listed(0x10, b"\x52\x07", 1))], A.CONNECTION, DECODE_ERROR),
    Row("container-id not UTF-8", S.HEADER, [frame(listed(0x10, b"\xa1\x02\xc3\x28", 1))], A.CONNECTION, DECODE_ERROR),
    Row("frames of less than 512 octets", S.HEADER, [Open(container_id="x", max_frame_size=511)],
        A.CONNECTION, INVALID_FIELD),
    Row("an idle time-out of 1 ms", S.HEADER, [Open(container_id="x", idle_time_out=1)], A.CONNECTION, NOT_ALLOWED),
    Row("a SASL frame after SASL", S.HEADER, [frame(Open(container_id="x"), type=1)], A.CONNECTION, FRAMING),
    Row("a frame of size 0", S.HEADER, [bytes(8)], A.CONNECTION, FRAMING),
    Row("a frame of size 7", S.HEADER, [b"\x00\x00\x00\x07\x02\x00\x00\x00"], A.CONNECTION, FRAMING),
    Row("data offset 1", S.HEADER, [b"\x00\x00\x00\x10\x01\x00\x00\x00" + bytes(8)], A.CONNECTION, FRAMING),
    Row("data offset behind the end", S.HEADER, [b"\x00\x00\x00\x10\x05\x00\x00\x00"], A.CONNECTION, FRAMING),
    Row("a frame of type 2", S.HEADER, [frame(Open(container_id="x"), type=2)], A.CONNECTION, FRAMING),
    Row("a frame of 4 GiB", S.HEADER, [b"\xff\xff\xff\xff\x02\x00\x00\x00"], A.CONNECTION, FRAMING),
    Row("a frame that does not end", S.HEADER, [frame(Open(container_id="x"))[:-1]], A.NOTHING),
    Row("a field too many", S.HEADER,
        [frame(listed(0x10, b"\xa1\x01a" + b"\x40" * 10, 11))], A.CONNECTION, DECODE_ERROR),
    Row("a list that ends in its frame's middle", S.HEADER, [frame(listed(0x10, b"\xa1\x01a", 1) + b"\x40")],
        A.CONNECTION, DECODE_ERROR),
    Row("a list longer than its frame", S.HEADER, [frame(b"\x00\x53\x10\xc0\x20\x01\xa1\x01a")],
        A.CONNECTION, DECODE_ERROR),
    Row("a list of four thousand million", S.HEADER,
        [frame(b"\x00\x53\x10\xd0\x00\x00\x00\x08\xff\xff\xff\xff\xa1\x01aa")],
        A.CONNECTION, DECODE_ERROR),
    Row("a list of 4 GiB", S.HEADER, [frame(b"\x00\x53\x10\xd0\xff\xff\xff\xff\x00\x00\x00\x01\xa1\x01a")],
        A.CONNECTION, DECODE_ERROR),
    Row("duplicate keys", S.HEADER, [opened_with(b"\xc1\x0b\x04\xa3\x01k\x52\x01\xa3\x01k\x52\x02")],
        A.CONNECTION, DECODE_ERROR),
    Row("a key without value", S.HEADER, [opened_with(b"\xc1\x04\x01\xa3\x01k")], A.CONNECTION, DECODE_ERROR),
    Row("keys that are numbers", S.HEADER, [opened_with(b"\xc1\x05\x02\x52\x01\x52\x02")], A.CONNECTION, DECODE_ERROR),
    Row("lists 250 deep", S.HEADER, [opened_with(b"\xd1" + (len(nested(b"\xd0", 250)) + 7).to_bytes(4, "big")
        + b"\x00\x00\x00\x02\xa3\x01k" + nested(b"\xd0", 250))], A.CONNECTION, DECODE_ERROR),
    Row("an array of four thousand million nothings", S.HEADER,
        [opened_with(b"\xc1\x0e\x02\xa3\x01k\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40")], A.CONNECTION, DECODE_ERROR),
    Row("descriptors of descriptors", S.HEADER, [frame(b"\x00" * 500 + b"\x40")], A.CONNECTION, DECODE_ERROR),
    Row("an unknown performative", S.HEADER, [frame(encode(Described(ULong(0x99), [])))], A.CONNECTION, DECODE_ERROR),
    Row("one with a name", S.HEADER, [frame(encode(Described(Symbol("amqp:hello:list"), [])))],
        A.CONNECTION, DECODE_ERROR),
    Row("a section for a performative", S.HEADER, [frame(b"\x00\x53\x77\xa1\x01a")], A.CONNECTION, DECODE_ERROR),
    Row("an open with three thousand values in its properties", S.HEADER,
        [Open(container_id="x", properties=LISTS)], A.CONNECTION, LIMIT),
    Row("a performative that is not described", S.HEADER, [frame(b"\x45")], A.CONNECTION, DECODE_ERROR),
    Row("a performative that is a map", S.HEADER, [frame(b"\x00\x53\x10\xc1\x01\x00")], A.CONNECTION, DECODE_ERROR),
    Row("an unknown format code", S.HEADER, [frame(listed(0x10, b"\x01", 1))], A.CONNECTION, DECODE_ERROR),
    Row("a descriptor and nothing more", S.HEADER, [frame(b"\x00\x53\x10")], A.CONNECTION, DECODE_ERROR),
]  # fmt: skip

ON_CONNECTIONS = [
    Row("open twice", S.OPENED, [Open(container_id="x")], A.CONNECTION, ILLEGAL_STATE),
    Row("a header among frames", S.OPENED, [AMQP], A.CONNECTION, FRAMING),
    Row("an oversize frame", S.OPENED, [frame(bytes(MAX_FRAME_SIZE - 7))], A.CONNECTION, FRAMING),
    Row("a channel above the channel-max", S.OPENED, [frame(begun(), channel=8)], A.CONNECTION, FRAMING),
    # The standard has no condition for a frame on a channel without a session: it is illegal in this state.
    Row("a transfer without session", S.OPENED, [transferred()], A.CONNECTION, ILLEGAL_STATE),
    Row("an attach without session", S.OPENED, [attached(Role.SENDER)], A.CONNECTION, ILLEGAL_STATE),
    Row("a flow without session", S.OPENED, [flow()], A.CONNECTION, ILLEGAL_STATE),
    Row("a disposition without session", S.OPENED,
        [Disposition(role=Role.SENDER, first=0)], A.CONNECTION, ILLEGAL_STATE),
    Row("a detach without session", S.OPENED, [Detach(handle=0)], A.CONNECTION, ILLEGAL_STATE),
    Row("an end without session", S.OPENED, [End()], A.CONNECTION, ILLEGAL_STATE),
    Row("an end twice", S.BEGUN, [End(), End()], A.CONNECTION, ILLEGAL_STATE),
    Row("an answer to no begin", S.OPENED, [begun(0)], A.CONNECTION, INVALID_FIELD),
    Row("begin on a channel in use", S.BEGUN, [begun()], A.CONNECTION, ILLEGAL_STATE),
    Row("begin with nothing", S.OPENED, [frame(b"\x00\x53\x11\x45")], A.CONNECTION, INVALID_FIELD),
    Row("begin with a payload", S.OPENED, [frame(begun(), b"x")], A.CONNECTION, DECODE_ERROR),
    Row("close with a payload", S.OPENED, [frame(Close(), b"x")], A.CONNECTION, DECODE_ERROR),
    # No channel is left for our answer.
    Row("more sessions than its own channel-max", S.BEGUN, [frame(begun(), channel=1)], A.CONNECTION, LIMIT,
        open={"channel_max": 0}),
    Row("a close above the channel-max", S.OPENED, [frame(Close(), channel=9)], A.CONNECTION, FRAMING),
]  # fmt: skip

ON_SESSIONS = [
    Row("a begin with three thousand values in its properties", S.OPENED,
        [Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9, properties=LISTS)], A.SESSION, LIMIT),
    Row("a flow with three thousand values in its properties", S.BEGUN, [flow(properties=LISTS)], A.SESSION, LIMIT),
    Row("attach without handle", S.BEGUN, [frame(listed(0x12, b"\xa1\x01a", 1))], A.CONNECTION, INVALID_FIELD),
    Row("attach with a role that is none", S.BEGUN, [frame(listed(0x12, b"\xa1\x01a\x43\xa1\x01r", 3))],
        A.CONNECTION, DECODE_ERROR),
    Row("attach with a settle mode that is none", S.BEGUN, [frame(listed(0x12, b"\xa1\x01a\x43\x42\x50\x07", 4))],
        A.CONNECTION, INVALID_FIELD),
    # Extensions: an unknown type that a link needs is refused on the link; others are ignored.
    Row("a source of an extension", S.BEGUN, [attached(Role.RECEIVER, source=UNKNOWN)], A.LINK, NOT_IMPLEMENTED),
    Row("a sender's source of an extension", S.BEGUN, [attached(Role.SENDER, source=UNKNOWN)], A.LINK, NOT_IMPLEMENTED),
    Row("a target of an extension", S.BEGUN, [attached(Role.SENDER, target=UNKNOWN)], A.LINK, NOT_IMPLEMENTED),
    Row("a distribution-mode of an extension", S.BEGUN,
        [attached(Role.RECEIVER, source=Source(address="a", distribution_mode=Symbol("x:mode")))], A.NOTHING),
    Row("outcomes of an extension", S.BEGUN, [attached(role, handle=handle, source=Source(
        address="a", default_outcome=UNKNOWN, outcomes=(Symbol("x:state:list"),))) for handle, role in enumerate(Role)],
        A.NOTHING),
    Row("a filter of an extension", S.BEGUN,
        [attached(Role.RECEIVER, source=Source(address="a", filter={Symbol("x"): Described(ULong(0x99), [])}))],
        A.NOTHING),
    Row("a lifetime-policy of an extension", S.BEGUN, [attached(Role.RECEIVER, source=Source(
        dynamic=True, dynamic_node_properties={Symbol("lifetime-policy"): Described(ULong(0x99), [])}))],
        A.NOTHING),
    Row("a lifetime-policy that is none", S.BEGUN, [attached(Role.SENDER, target=Target(
        dynamic=True, dynamic_node_properties={Symbol("lifetime-policy"): Symbol("for ever")}))],
        A.LINK, INVALID_FIELD),
    Row("a source of an extension that is malformed", S.BEGUN,
        [attached(Role.RECEIVER, source=Extension(b"\x00\x53\x99\xc0\x02\x01\x01"))], A.CONNECTION, DECODE_ERROR),
    *(Row(f"an attach with three thousand values in its {name}", S.BEGUN, [attached(Role.RECEIVER, **fields)],
          A.LINK, LIMIT)
      for name, fields in {
          "properties": {"properties": LISTS},
          "filter": {"source": Source(address="a", filter=LISTS)},
          "default outcome": {"source": Source(address="a", default_outcome=Modified(message_annotations=LISTS))},
          "node's properties": {"target": Target(address="a", dynamic_node_properties=LISTS)},
          "capabilities": {"desired_capabilities": (Symbol("c"),) * 1500},
      }.items()),
    Row("an unsettled map with hundreds of entries", S.BEGUN,
        [attached(Role.SENDER, unsettled={b"%d" % number: None for number in range(600)})], A.NOTHING),
    # No entry of the map is looked up here, so none is read.
    Row("an unsettled map with a null for a tag", S.BEGUN,
        [frame(listed(0x12, b"\xa1\x01a\x43\x42\x40\x40\x40" + listed(0x29, b"\xa1\x01a", 1)
            + b"\xc1\x03\x02\x40\x40\x42\x43", 10))],
        A.NOTHING),
    Row("a handle above the handle-max", S.BEGUN, [attached(Role.SENDER, handle=8)], A.CONNECTION, FRAMING),
    # §2.7.3 speaks of a close with the session error: a session error ends the session.
    Row("a handle in use", S.SENDING, [attached(Role.RECEIVER, "b")], A.SESSION, "amqp:session:handle-in-use"),
    Row("a sender without initial-delivery-count", S.BEGUN, [attached(Role.SENDER, initial_delivery_count=None)],
        A.SESSION, INVALID_FIELD),
    Row("more links than its own handle-max", S.SENDING, [attached(Role.SENDER, "b", handle=1)], A.SESSION, LIMIT,
        begin={"handle_max": 0}),
    Row("a link whose name its own frames cannot hold", S.BEGUN, [attached(Role.SENDER, name="n" * 600)],
        A.SESSION, "amqp:frame-size-too-small", open={"max_frame_size": 512}),
    Row("a coordinator", S.BEGUN, [attached(Role.SENDER, target=Coordinator())], A.LINK, "amqp:not-implemented"),
    Row("a target that is none", S.BEGUN, [attached(Role.SENDER, target=None)], A.LINK, NOT_FOUND),
    Row("a source that is none", S.BEGUN, [attached(Role.RECEIVER, source=None)], A.LINK, NOT_FOUND),
    Row("a source without address", S.BEGUN, [attached(Role.RECEIVER, source=Source())], A.LINK, INVALID_FIELD),
    Row("another container's address, that its frames cannot hold", S.BEGUN,
        [attached(Role.SENDER, name="n", target=Target(address="a@" + "b" * 900), source=None)], A.LINK, NOT_FOUND,
        open={"max_frame_size": 512}),
    Row("the router's own address", S.BEGUN, [attached(Role.RECEIVER, "$management")], A.LINK, NOT_FOUND),
    Row("a transfer to no link", S.BEGUN, [transferred()], A.SESSION, UNATTACHED),
    Row("a flow for no link", S.BEGUN, [flow(handle=3)], A.SESSION, UNATTACHED),
    Row("a detach of no link", S.BEGUN, [Detach(handle=3)], A.SESSION, UNATTACHED),
    Row("a detach twice", S.SENDING, [Detach(handle=0), Detach(handle=0)], A.SESSION, UNATTACHED),
    Row("a transfer after its detach", S.SENDING,
        [Detach(handle=0, closed=True), transferred()], A.SESSION, UNATTACHED),
    Row("a transfer above the handle-max", S.BEGUN, [transferred(handle=9)], A.CONNECTION, FRAMING),
    Row("a flow that counts what was never sent", S.BEGUN, [flow(next_incoming_id=5)], A.SESSION, INVALID_FIELD),
    Row("a flow without windows", S.BEGUN, [frame(listed(0x13, b"\x40\x40\x40\x40", 4))], A.CONNECTION, INVALID_FIELD),
    Row("a disposition of nothing there is", S.BEGUN,
        [Disposition(role=role, first=first, last=last, settled=True, state=Accepted())
         for role in Role for first, last in ((0, None), (7, 3), (2**32 - 1, 2**31 - 2))], A.NOTHING),
    Row("a disposition without first", S.BEGUN, [frame(listed(0x15, b"\x41", 1))], A.CONNECTION, INVALID_FIELD),
    Row("a disposition of nothing, with a state of an extension", S.BEGUN,
        [Disposition(role=Role.RECEIVER, first=0, settled=True, state=UNKNOWN)], A.NOTHING),
    Row("a disposition with a state that is none", S.BEGUN, [frame(listed(0x15, b"\x41\x43\x40\x41\x52\x01", 5))],
        A.CONNECTION, DECODE_ERROR),
    Row("a disposition longer than its frame", S.BEGUN, [frame(b"\x00\x53\x15\xc0\x09\x02\x41\x43")],
        A.CONNECTION, DECODE_ERROR),
    Row("windows of everything and of nothing", S.BEGUN,
        [flow(incoming_window=0), flow(incoming_window=2**32 - 1, outgoing_window=0), flow(outgoing_window=2**32 - 1)],
        A.NOTHING),
    Row("a thousand requests for an echo", S.BEGUN, [flow(echo=True)] * 1000, A.NOTHING),
    Row("transfer-ids that jump", S.BEGUN,
        [flow(next_outgoing_id=each) for each in (7, 2**31, 2**32 - 1, 0)], A.NOTHING),
]  # fmt: skip

ON_SENDERS = [
    Row("credit overrun", S.SENDING, [transferred(each) for each in range(8)], A.LINK, TRANSFER_LIMIT),
    # Nine frames come before a flow of ours could widen the window.
    Row("window violation", S.SENDING, [transferred(0, more=True), *([Transfer(handle=0, more=True)] * 8)],
        A.SESSION, WINDOW_VIOLATION),
    Row("a transfer without credit", S.BEGUN, [attached(Role.SENDER, "nobody"), transferred()], A.LINK, TRANSFER_LIMIT),
    Row("a delivery without id", S.SENDING, [transferred(delivery_id=None)], A.SESSION, INVALID_FIELD),
    Row("a delivery without tag", S.SENDING, [transferred(delivery_tag=None)], A.SESSION, INVALID_FIELD),
    Row("a tag of 33 octets", S.SENDING, [frame(listed(0x14, b"\x43\x43\xa0\x21" + bytes(33) + b"\x43", 4))],
        A.CONNECTION, INVALID_FIELD),
    Row("a delivery-id in use", S.SENDING,
        [transferred(0), transferred(0, delivery_tag=b"b")], A.SESSION, INVALID_FIELD),
    Row("a delivery-tag in use", S.SENDING, [transferred(0, delivery_tag=b"t"), transferred(1, delivery_tag=b"t")],
        A.LINK, NOT_ALLOWED),
    Row("another id in mid-delivery", S.SENDING, [transferred(0, more=True), transferred(1, delivery_tag=bytes(4))],
        A.SESSION, INVALID_FIELD),
    Row("another tag in mid-delivery", S.SENDING, [transferred(0, more=True), transferred(0, delivery_tag=b"b")],
        A.SESSION, INVALID_FIELD),
    Row("another format in mid-delivery", S.SENDING, [transferred(0, more=True), transferred(0, message_format=1)],
        A.SESSION, INVALID_FIELD),
    Row("mode second on a link of mode first", S.SENDING,
        [transferred(rcv_settle_mode=ReceiverSettleMode.SECOND)], A.LINK, INVALID_FIELD),
    Row("settled on a link of unsettled ones", S.SENDING, [transferred(settled=True)], A.LINK, INVALID_FIELD,
        attach={"snd_settle_mode": SenderSettleMode.UNSETTLED}),
    Row("a transfer with a state of an extension", S.SENDING, [transferred(state=UNKNOWN)], A.NOTHING),
    Row("a transfer longer than its frame", S.SENDING, [frame(b"\x00\x53\x14\xc0\x40\x04\x43\x43\xa0\x01t\x43")],
        A.CONNECTION, DECODE_ERROR),
    Row("a transfer with fewer fields than it says", S.SENDING, [frame(listed(0x14, b"\x43\x43", 3))],
        A.CONNECTION, DECODE_ERROR),
    Row("a transfer with a field too many", S.SENDING,
        [frame(listed(0x14, b"\x43\x43\xa0\x01t\x43" + b"\x40" * 8, 12))], A.CONNECTION, DECODE_ERROR),
    Row("a transfer without handle", S.SENDING, [frame(listed(0x14, b"\x40\x43\xa0\x01t\x43", 4))],
        A.CONNECTION, INVALID_FIELD),
    Row("a transfer of a transaction that is none", S.SENDING,
        [transferred(state=TransactionalState(txn_id=b"t"))], A.LINK, "amqp:transaction:unknown-id"),
    Row("a message that is too large", S.SENDING,
        [frame(transferred(), bytes(MAX_MESSAGE_SIZE + 1))], A.LINK, TOO_LARGE),
    Row("one that becomes so", S.SENDING,
        [frame(transferred(more=True), bytes(600)), frame(Transfer(handle=0, more=True), bytes(401))],
        A.LINK, TOO_LARGE),
    Row("a sender that counts beyond its limit", S.SENDING, [flow(handle=0, delivery_count=1000, link_credit=0)],
        A.LINK, TRANSFER_LIMIT),
    Row("a sender that counts backwards", S.SENDING, [flow(handle=0, delivery_count=2**32 - 9, link_credit=9)],
        A.NOTHING),
    Row("a delivery that is aborted at once", S.SENDING,
        [frame(transferred(aborted=True, more=True), b"x")], A.NOTHING),
    # §2.6.13: the delivery is not in our unsettled map, and must be ignored.
    Row("a resumed delivery that nobody knows", S.SENDING, [transferred(resume=True)], A.NOTHING),
    # The receiver judges a message; one with a malformed head is relayed unchanged.
    Row("a message that is none", S.SENDING, [frame(transferred(), b"\xff\x00\xff" * 20)], A.NOTHING),
    Row("a message cut in its header", S.SENDING, [frame(transferred(), b"\x00\x53\x70\xd0\xff")], A.NOTHING),
    Row("an empty message", S.SENDING, [transferred()], A.NOTHING),
    # The end of the link is plain; its reason is not read.
    Row("a detach with three thousand values in its error", S.SENDING,
        [Detach(handle=0, error=Error(condition=Symbol("x:y"), info=LISTS))], A.NOTHING),
    Row("half a message and goodbye", S.SENDING,
        [frame(transferred(more=True), b"\x00\x53"), Detach(handle=0)], A.NOTHING),
]  # fmt: skip

ON_RECEIVERS = [
    Row("a transfer to us on its receiver", S.RECEIVING, [transferred()], A.SESSION, NOT_ALLOWED),
    Row("a disposition of a transaction that is none", S.RECEIVING,
        [Disposition(role=Role.RECEIVER, first=0, settled=True, state=TransactionalState(txn_id=b"t"))],
        A.LINK, "amqp:transaction:unknown-id"),
    Row("a flow within a transaction", S.RECEIVING,
        [flow(next_incoming_id=3, handle=0, delivery_count=3, link_credit=9, properties={Symbol("txn-id"): b"t"})],
        A.LINK, "amqp:not-implemented"),
    Row("dispositions with states of an extension", S.RECEIVING,
        [Disposition(role=Role.RECEIVER, first=0, last=2, settled=settled, state=UNKNOWN) for settled in (False, True)],
        A.NOTHING),
    Row("an outcome twice", S.RECEIVING,
        [Disposition(role=Role.RECEIVER, first=0, last=2, settled=True, state=Accepted())] * 2, A.NOTHING),
    Row("more credit than there are numbers", S.RECEIVING,
        [flow(next_incoming_id=3, handle=0, delivery_count=3, link_credit=2**32 - 1)], A.NOTHING),
    Row("credit taken back and forth", S.RECEIVING,
        [flow(next_incoming_id=3, handle=0, delivery_count=3, link_credit=each) for each in (0, 50, 0, 2**31, 0)],
        A.NOTHING),
    Row("a count that is not ours", S.RECEIVING,
        [flow(next_incoming_id=3, handle=0, delivery_count=2**31, link_credit=5)], A.NOTHING),
    Row("drains without end", S.RECEIVING,
        [flow(next_incoming_id=3, handle=0, delivery_count=3, link_credit=each % 2, drain=True) for each in range(100)],
        A.NOTHING),
    Row("a window that was wider", S.RECEIVING, [flow(next_incoming_id=0, incoming_window=1)], A.NOTHING),
    Row("a flow for transfers to come", S.RECEIVING, [flow(next_incoming_id=4)], A.SESSION, INVALID_FIELD),
    Row("attached twice by name", S.RECEIVING, [attached(Role.RECEIVER, "feed", handle=1), flow(handle=1)], A.LINK,
        "amqp:link:stolen"),
]  # fmt: skip

ROWS = [*HEADERS, *BEFORE_OPEN, *ON_CONNECTIONS, *ON_SESSIONS, *ON_SENDERS, *ON_RECEIVERS]
