"""Clauses of the standard for clients and senders of messages (§3.2.4, §3.5.3, part 5)."""

import ssl
from contextlib import suppress

import pytest
import trio
import trustme
from trio.testing import MockClock, memory_stream_pair

from amqpmesh import Message, connect
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.connection import Connection as Engine
from amqpmesh.router.amqp.connection_settings import ConnectionSettings
from amqpmesh.router.amqp.errors import CommandError, SaslError
from amqpmesh.router.amqp.events import ConnectionOpened
from amqpmesh.router.amqp.negotiation import Negotiation
from amqpmesh.router.amqp.sasl.exchange import SaslServer
from amqpmesh.router.amqp.standard.conditions import LinkCondition
from amqpmesh.router.amqp.standard.definitions import Error, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.messaging import AmqpSequence, AmqpValue, Data, Source, Target
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Detach, Disposition, End, Open, Transfer
from amqpmesh.router.amqp.standard.sections import decode_sections
from amqpmesh.router.config.urls import Endpoint
from amqpmesh.router.config.users import Users
from tests.support.peers.library_client import Host, Roads
from tests.support.peers.scripted_stream import AMQP, Peer, begun, credit

NAME = "router.example"


class Wire:
    """A stream in memory from a client to a server."""

    def __init__(self) -> None:
        self.ours, self.theirs = memory_stream_pair()

    async def open(self, _endpoint: Endpoint) -> trio.abc.Stream:
        return self.ours


async def serve(stream: trio.abc.Stream, *mechanisms: str) -> SaslServer:
    """Run a server that offers these mechanisms, until the client has gone."""
    sasl = SaslServer(mechanisms, Users({}))
    negotiation = Negotiation(server=True, sasl=sasl, sasl_required=True)
    engine = Engine(ConnectionSettings(container_id="server"), negotiation, trio.current_time())
    with suppress(trio.BrokenResourceError):
        while data := await stream.receive_some():
            for event in engine.receive(bytes(data), trio.current_time()):
                if isinstance(event, ConnectionOpened):
                    engine.open()
            await stream.send_all(engine.data_to_send(trio.current_time()))
            if engine.finished:
                break
    await stream.aclose()
    return sasl


async def test_a_receiver_of_a_dynamic_node_names_no_address(autojump_clock: MockClock) -> None:
    wire = Wire()

    async def receive() -> None:
        async with (
            connect("amqp://localhost", mechanisms=[], open_stream=wire.open) as connection,
            connection.receiver(None) as receiver,
        ):
            assert receiver.address == "made"
            given.set()

    given = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        peer = Peer(wire.theirs)
        assert await peer.expect_header() == AMQP
        await peer.write(AMQP, Open(container_id="server"))
        await peer.expect(Open)
        await peer.expect(Begin)
        await peer.write(begun(0))
        attach = await peer.expect(Attach)
        assert attach.source == Source(dynamic=True)
        made = Source(address="made", dynamic=True)
        await peer.write(Attach(name=attach.name, handle=0, role=Role.SENDER, source=made, initial_delivery_count=0))
        await given.wait()
        nursery.cancel_scope.cancel()


async def test_tls_and_sasl_name_the_host_of_the_url(autojump_clock: MockClock) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert(NAME)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    named: list[str | None] = []
    context.sni_callback = lambda _ssl, name, _context: named.append(name)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    wire = Wire()
    outcome: list[SaslServer] = []

    async def answer() -> None:
        stream = trio.SSLStream(wire.theirs, context, server_side=True, https_compatible=True)
        outcome.append(await serve(stream, "ANONYMOUS"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        async with connect(f"amqps://{NAME}", tls=trusting, open_stream=wire.open):
            pass
    assert named == [NAME]
    assert outcome[0].hostname == NAME


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (("ANONYMOUS", "PLAIN", "SCRAM-SHA-1", "SCRAM-SHA-256"), "SCRAM-SHA-256"),
        (("ANONYMOUS", "PLAIN", "SCRAM-SHA-1"), "SCRAM-SHA-1"),
        (("ANONYMOUS", "PLAIN"), "PLAIN"),
    ],
)
async def test_of_what_a_server_offers_a_client_uses_the_strongest(
    offered: tuple[str, ...], chosen: str, autojump_clock: MockClock
) -> None:
    wire = Wire()
    outcome: list[SaslServer] = []

    async def answer() -> None:
        outcome.append(await serve(wire.theirs, *offered))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        with pytest.raises(SaslError):  # the server does not know ada
            async with connect("amqp://127.0.0.1", user="ada", password="lovelace", open_stream=wire.open):
                pass
    assert outcome[0].mechanism == chosen


@pytest.mark.parametrize("body", [b"octets", "text", None, {"a": 1}, (Data(b"a"), Data(b"b"))])
def test_a_message_says_nothing_of_its_body_that_the_program_did_not(body: object) -> None:
    assert {type(section) for section in decode_sections(Message(body).encode())} <= {Data, AmqpValue}
    named = Message.decode(Message(body, subject="s").encode())
    assert (named.content_type, named.content_encoding) == (None, None)


def test_a_content_encoding_goes_with_octets_and_is_never_identity() -> None:
    for octets in (b"...", bytearray(b"..."), (Data(b"."), Data(b"."))):
        message = Message(octets, content_type="text/plain", content_encoding="gzip")
        assert Message.decode(message.encode()).content_encoding == "gzip"
        message.content_encoding = "identity"
        with pytest.raises(CommandError, match="identity"):
            message.encode()
    for value in ("text", None, [1], AmqpValue(value=b"..."), AmqpSequence(value=[])):
        with pytest.raises(CommandError, match="content_encoding"):
            Message(value, content_encoding="gzip").encode()


@pytest.mark.parametrize("role", Role)
async def test_a_link_that_is_resumed_after_an_error_has_a_map(
    nursery: trio.Nursery, autojump_clock: MockClock, role: Role
) -> None:
    roads = Roads(nursery)
    attaches: list[Attach] = []
    is_done = trio.Event()

    async def serve_client(stream: trio.abc.Stream) -> None:
        host = Host(stream)
        await host.open()
        await host.begin()
        lasting = {"source": Source(address="q", timeout=60), "target": Target(address="q", timeout=60)}
        attaches.append(await host.attach(**lasting))
        if role is Role.SENDER:
            await host.write(credit(1), channel=host.channel)
            await host.expect(Transfer)
        forced = Error(condition=LinkCondition.DETACH_FORCED)
        await host.write(Detach(handle=0, error=forced), channel=host.channel)
        await host.expect(Detach)
        await host.expect(End)  # the client begins another session for it
        await host.write(End(), channel=host.channel)
        await host.begin()
        attaches.append(await host.expect(Attach))
        is_done.set()

    roads.lead_to(serve_client)
    with trio.CancelScope() as scope:
        async with roads.connect(reconnect=True, mechanisms=(), idle_time_out=None) as connection:
            if role is Role.SENDER:
                async with connection.sender("q", resume=60.0) as sender, trio.open_nursery() as sending:
                    sending.start_soon(sender.send, "hello")
                    await is_done.wait()
                    scope.cancel()
            else:
                async with connection.receiver("q", resume=60.0):
                    await is_done.wait()
                    scope.cancel()
    first, second = attaches
    assert first.unsettled is None, "there is no history"
    assert second.unsettled is not None
    assert len(dict(second.unsettled.items())) == (role is Role.SENDER)


async def test_what_only_a_sender_has_is_sent_again_as_a_new_delivery_of_the_same_tag(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    found: list[tuple[Transfer, bytes]] = []
    is_done = trio.Event()

    async def serve_client(stream: trio.abc.Stream) -> None:
        host = Host(stream)
        await host.open()
        await host.begin()
        attach = await host.attach(
            target=Target(address="q", timeout=60),
            unsettled={} if found else None,
            offered_capabilities=(Symbol("amqpmesh:whole"),),
        )
        assert (attach.unsettled is None) == (not found)
        await host.write(credit(1), channel=host.channel)
        found.append((await host.expect(Transfer), host.payload))
        if len(found) == 1:
            await roads.cut()
            return  # our map is empty the next time: nothing of it has come
        number = found[1][0].delivery_id
        assert number is not None
        said = Disposition(role=Role.RECEIVER, first=number, state=Accepted())
        await host.write(said, channel=host.channel)
        assert (await host.expect(Disposition)).settled
        is_done.set()

    roads.lead_to(serve_client)
    with trio.CancelScope() as scope:
        async with (
            roads.connect(reconnect=True, mechanisms=(), idle_time_out=None) as connection,
            connection.sender("q", exactly_once=True) as sender,
        ):
            await sender.send("hello")
            await is_done.wait()
            scope.cancel()
    (first, payload), (second, again) = found
    assert second.delivery_tag == first.delivery_tag
    assert not second.resume, "a receiver ignores what is resumed and not in its map"
    assert again == payload
