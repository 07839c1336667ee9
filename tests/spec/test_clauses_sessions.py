"""Clauses of the standard for sessions at either end (§2.7.2), and for maps (§1.6.23)."""

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from amqpmesh import Router
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.codec.values import decode, encode
from amqpmesh.router.amqp.errors import ProtocolError
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Open,
    Performative,
    Transfer,
    decode_performative,
    encode_performative,
)
from tests.support.peers.library_client import Host, Roads
from tests.support.peers.scripted import begun
from tests.support.peers.scripted_stream import AMQP, Peer, attached, connected, credit, frame

CAPABILITIES = tuple(map(Symbol, ("ANONYMOUS-RELAY", "SHARED-SUBS", "DELAYED_DELIVERY", "queue", "com.example:other")))
DATA = b"\x00\x53\x75\xa0\x02hi"


# --------------------------------------------------------------------------------------------- capabilities of sessions


async def heard_from_a_router(nursery: trio.Nursery, *offered: Symbol) -> list[Performative]:
    """Return all frames of a router to a peer that sends and receives, and offers these session capabilities."""
    async with Router(id="A") as router:
        peer = connected(nursery, router)
        await peer.write(AMQP, Open(container_id="peer"), begun(offered_capabilities=offered))
        await peer.write(attached(Role.SENDER, "q"), attached(Role.RECEIVER, "q", handle=1), credit(10, handle=1))
        assert await peer.expect_header() == AMQP
        heard: list[Performative] = []
        await until(peer, Transfer, heard, sending=True)
        await peer.write(Detach(handle=0), Detach(handle=1), End())
        await until(peer, End, heard)
        await peer.close()
    return heard


async def until(peer: Peer, kind: type[Performative], heard: list[Performative], *, sending: bool = False) -> None:
    """Read frames up to one of a kind. Args: sending: send a message as soon as there is credit for it."""
    while not (heard and isinstance(heard[-1], kind)):
        if sending and peer.limit:
            sending = False
            transfer = Transfer(handle=0, delivery_id=0, delivery_tag=b"0", message_format=0, settled=True)
            await peer.write(frame(transfer, DATA))
        found = await peer.next_frame()
        assert found is not None
        heard.append(found[0])


async def heard_from_a_client(nursery: trio.Nursery, *offered: Symbol) -> list[Performative]:
    """Return all frames of a client on a session, on which the peer offers these capabilities."""
    roads, heard = Roads(nursery), []
    over = trio.Event()

    async def serve(stream: trio.abc.Stream) -> None:
        host = Host(stream)
        heard.append(await host.open())
        heard.append(await host.begin(offered_capabilities=offered))
        heard.append(await host.attach())
        await host.write(credit(1))
        for kind, answer in ((Transfer, None), (Detach, Detach(handle=0, closed=True)), (End, End()), (Close, Close())):
            heard.append(await host.expect(kind))
            if answer is not None:
                await host.write(answer)
        over.set()
        await stream.aclose()

    roads.lead_to(serve)
    async with roads.connect(id="client", mechanisms=()) as connection, connection.sender("q", name="s") as sender:
        await sender.send("hi", settled=True)
    await over.wait()
    return heard


@pytest.mark.parametrize("heard_from", [heard_from_a_router, heard_from_a_client], ids=["router", "client"])
async def test_what_a_session_offers_and_nobody_desired_changes_nothing(
    heard_from: Callable[..., Awaitable[list[Performative]]], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    with trio.fail_after(60):
        plain, offered = await heard_from(nursery), await heard_from(nursery, *CAPABILITIES)
    assert plain == offered
    assert {type(each) for each in plain} >= {Begin, Attach, Transfer, Detach, End}
    (begin,) = (each for each in plain if isinstance(each, Begin))
    assert begin.desired_capabilities == ()


# ----------------------------------------------------------------------------------------------------------------- maps


def with_properties(properties: bytes) -> bytes:
    """Return an `open` with these octets as properties (§2.7.1)."""
    fields = encode("peer") + b"\x40" * 8 + properties
    return b"\x00\x53\x10\xd0" + (4 + len(fields)).to_bytes(4, "big") + (10).to_bytes(4, "big") + fields


@pytest.mark.parametrize("items", range(7))
@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_map_with_an_odd_count_is_refused_whatever_it_holds(count: int, items: int) -> None:
    content = b"".join(b"\x40" if at % 2 else b"\xa3\x01" + b"abcd"[at // 2 : at // 2 + 1] for at in range(items))
    octets = b"\xc1" + bytes((1 + len(content), count)) + content
    for read, data in ((decode, octets), (decode_performative, with_properties(octets))):
        with pytest.raises(ProtocolError) as refused:
            read(data)
        assert refused.value.condition == "amqp:decode-error"
    even = b"\xc1" + bytes((1 + len(content), items)) + content
    if items % 2 == 0:
        assert len(decode_performative(with_properties(even))[0].properties) == items // 2


@pytest.mark.parametrize("size", [0, 1, 2, 100, 300])
def test_a_map_is_written_with_a_key_for_each_value(size: int) -> None:
    entries = {Symbol(f"key {number}"): None if number % 2 else number for number in range(size)}
    written = encode(entries)
    assert written[0] in (0xC1, 0xD1)
    count = written[2] if written[0] == 0xC1 else int.from_bytes(written[5:9], "big")
    assert count == 2 * size
    if size:
        opened = encode_performative(Open(container_id="peer", properties=entries))
        assert written in opened
