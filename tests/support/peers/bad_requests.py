"""Requests that no service can understand or answer, and a peer that sends them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from uuid import UUID

import trio

from amqpmesh.router.amqp.codec.types import Array, Described, Primitive, Symbol, ULong
from amqpmesh.router.amqp.codec.values import encode
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.messaging import AmqpSequence, AmqpValue, Data
from amqpmesh.router.amqp.standard.performatives import Disposition, Transfer
from amqpmesh.router.client.connect import Connection
from amqpmesh.router.message.content import Message
from tests.support.peers.scripted_stream import Peer, frame

PATIENCE: Final = 60.0
"""Seconds in which a service decides about a request; virtual ones, where the test has such."""

BODIES: Final[Mapping[str, Any]] = {
    "nothing": None,
    "a truth": True,
    "a large number": 2**62,
    "a negative number": -1,
    "infinity": float("inf"),
    "a large double": 1e300,
    "a text": "\0 \U0001f680 ß",
    "a long text": "x" * 200_000,
    "a symbol": Symbol("symbol"),
    "octets that are no text": b"\xff\xfe",
    "no octets": b"",
    "a UUID": UUID(int=0),
    "a list": [1, [2, [3]]],
    "a map": {"a": 1, 2: None},
    "a large map": {f"key {number}": number for number in range(9_000)},
    "a huge map": dict.fromkeys(range(50_000)),
    "an array": Array(Primitive.LONG, [1, 2]),
    "a described value": Described(Symbol("com.example:thing:list"), []),
    "binary as a value": AmqpValue(value=b"x"),
    "a sequence": AmqpSequence(value=[1, 2]),
    "two sequences": (AmqpSequence(value=[]), AmqpSequence(value=[])),
    "two sections of data": (Data(value=b"a"), Data(value=b"b")),
}

REPLY_TOS: Final[Mapping[str, str | None]] = {
    "none": None,
    "an empty one": "",
    "where nobody listens": "nobody/listens/here",
    "an over-long one": "x" * 100_000,
    "no printable one": "\0\n\x1b[31m",
    "a name of the router's own": "$elsewhere",
    "its management": "$management",
    "a dynamic node that is not there": "amqp:/_dynamic/nobody",
}

AMQP_VALUE: Final = b"\x00\x53\x77"
"""The beginning of an amqp-value section (§3.2.8)."""


def nested(depth: int) -> bytes:
    """Return a list in a list, and so on."""
    octets = b"\x40"
    for _ in range(depth):
        octets = b"\xd0" + (4 + len(octets)).to_bytes(4, "big") + (1).to_bytes(4, "big") + octets
    return octets


def bare(*fields: Any) -> bytes:
    """Return a message with a text, whose properties have these fields, of any types."""
    return b"\x00\x53\x73" + encode(list(fields)) + AMQP_VALUE + encode("x")


UNDECODABLE: Final[Mapping[str, bytes]] = {
    "nothing at all": b"",
    "no sections": b"\xff" * 100,
    "half a section": AMQP_VALUE + b"\xa1\x05ab",
    "no body": b"\x00\x53\x73\x45",
    "two bodies": 2 * (AMQP_VALUE + b"\x40"),
    "a section out of order": AMQP_VALUE + b"\x40\x00\x53\x70\x45",
    "a key twice": AMQP_VALUE + b"\xc1\x07\x04" + b"\xa1\x01a" * 2,
    "no UTF-8": AMQP_VALUE + b"\xa1\x02\xff\xfe",
    "lists in lists": AMQP_VALUE + nested(3_000),
    "a correlation-id that is a number with a fraction": bare(None, None, None, None, "x", 1.5),
    "a correlation-id that is a list": bare(None, None, None, None, "x", [1]),
    "a message-id that is a truth": bare(True, None, None, None, "x"),
    "a reply-to that is a number": bare(None, None, None, None, 7),
    "a reply-to that is binary": bare(None, None, None, None, b"x"),
}


def payloads(answers: str, own: str) -> Iterator[tuple[str, bytes]]:
    """Yield the fault of each bad request, and its octets.

    Args: answers: an address that can be replied to. own: the service's.
    """
    for name, body in BODIES.items():
        yield f"a body: {name}", Message(body, reply_to=answers, correlation_id=name).encode()
    for name, reply_to in {**REPLY_TOS, "the service itself": own}.items():
        yield f"a reply-to: {name}", Message("x", reply_to=reply_to, message_id=UUID(int=1)).encode()
    for correlation_id in (ULong(2**64 - 1), UUID(int=2), b"\xff", "", "x" * 50_000):
        yield (
            f"a correlation-id: {correlation_id!r:.20}",
            Message("x", reply_to=answers, correlation_id=correlation_id).encode(),
        )
    properties = {f"key {number}": number for number in range(5_000)}
    yield "many application-properties", Message("x", reply_to=answers, application_properties=properties).encode()
    for name, payload in UNDECODABLE.items():
        yield f"undecodable: {name}", payload


async def send_all(connection: Connection, address: str) -> None:
    """Send all of them, settled and unsettled, and assert that each is decided. One asks for answers, and reads
    none.
    """
    async with (
        connection.receiver(None) as answers,
        connection.receiver(None, credit=0) as silent,
        connection.sender(address) as sender,
    ):
        assert answers.address is not None
        assert silent.address is not None
        for reply_to in (answers.address, silent.address):
            for name, payload in payloads(reply_to, address):
                for settled in (False, True):
                    with trio.move_on_after(PATIENCE) as patience:
                        sent = await sender.transfer_payload(payload, settled=settled)
                        if not settled:
                            await sent.outcome()
                    assert not patience.cancelled_caught, f"it stalls: {name}"


async def send_other_formats(peer: Peer, address: str) -> None:
    """Send messages of other message-formats (§2.8.11) over a connection of their own."""
    await peer.attach(Role.SENDER, address)
    for number, message_format in enumerate((1, 2**32 - 1)):
        while peer.limit <= number:
            assert await peer.next_frame() is not None
        transfer = Transfer(handle=0, delivery_id=number, delivery_tag=bytes([number]), message_format=message_format)
        await peer.write(frame(transfer, Message("x", reply_to="x").encode()))
        with trio.fail_after(PATIENCE):
            await peer.expect(Disposition)
    await peer.close()
