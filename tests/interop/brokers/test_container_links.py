"""A mesh beside RabbitMQ: links from queues to addresses and back, at least once, whatever fails."""

from __future__ import annotations

import random
import socket
from collections import Counter
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest
import trio

from amqpmesh import (
    AddressConfig,
    Backoff,
    ConnectorConfig,
    ConnectorTlsConfig,
    ContainerLinkState,
    LinkConfig,
    LinkDetachedError,
    ListenerConfig,
    MeshConfig,
    Message,
    OutcomeError,
    PasswordConfig,
    RedirectConfig,
    RejectedError,
    Router,
    connect,
)
from tests.interop.brokers.conftest import BREAKING, PASSWORD, USER
from tests.interop.brokers.declaring import Declaring

pytestmark = pytest.mark.interop


def links_for(drained, fed):
    """Return links that receive from these queues and send to them."""
    return (
        *(LinkConfig(connector="broker", source=queue, address="incoming") for queue in drained),
        LinkConfig(connector="broker", target=fed, address="outgoing"),
    )


DRAINED = ("/amq/queue/drained", "/amq/queue/drained-quorum")
LINKS = links_for(DRAINED, "/amq/queue/fed")
MESH = MeshConfig(insecure=True)


class Wires:
    """TCP connections that can be cut."""

    def __init__(self):
        self._streams = []

    async def open(self, endpoint):
        """Open a connection, as a router's `open_stream`."""
        stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
        self._streams.append(stream)
        return stream

    def cut(self):
        """Cut all open connections."""
        for stream in self._streams:
            if stream.socket.fileno() != -1:
                stream.socket.shutdown(socket.SHUT_RDWR)
        self._streams.clear()


async def until(condition):
    while not condition():
        await trio.sleep(0.005)


def links_of(router):
    return router.statistics().container_links


async def until_attached(router):
    await until(lambda: all(each.state is ContainerLinkState.ATTACHED for each in links_of(router)))


@asynccontextmanager
async def mesh(rabbitmq, *links, wires=None):
    """Start routers A, which has links to the broker, and B, which has the clients."""
    broker = ConnectorConfig(url=rabbitmq.url, name="broker", role="container")
    listener = ListenerConfig(url="amqp://127.0.0.1:0", role="mesh")
    async with (
        Router(
            id="A",
            mesh=MESH,
            drain=0.5,
            listeners=[listener],
            connectors=[broker],
            container_links=links or LINKS,
            open_stream=(wires or Wires()).open,
            backoff=Backoff(longest=0.5),
        ) as near,
        Router(id="B", mesh=MESH, drain=0.5, connectors=[near.listeners[0].url]) as far,
    ):
        await until(lambda: any(each.up for each in far.statistics().neighbours))
        if not links:
            await until_attached(near)
        yield near, far


async def fill(rabbitmq, queue, bodies):
    async with connect(rabbitmq.url) as connection, connection.sender(queue) as sender:
        sent = [await sender.transfer(Message(body, durable=True)) for body in bodies]
        for each in sent:
            await each.outcome()


async def left_in(rabbitmq, queue):
    """Take all messages that wait there, and return their bodies."""
    async with connect(rabbitmq.url) as connection, connection.receiver(queue) as receiver:
        await fill(rabbitmq, queue, ["the last one"])
        bodies = Counter()
        while True:
            async with await receiver.receive() as message:
                if message.body == "the last one":
                    return bodies
                bodies[message.body] += 1


async def test_what_the_broker_hears_is_what_the_receiver_said(rabbitmq):
    async with mesh(rabbitmq) as (_, far):
        await fill(rabbitmq, DRAINED[0], ["accepted", "rejected", "released", "failed"])
        async with far.receiver("incoming", credit=4) as receiver:
            first = {}
            for _ in range(4):
                delivery = await receiver.receive()
                first[delivery.message.body] = delivery
            first["accepted"].accept()
            first["rejected"].reject("amqp:not-allowed", "spam")
            first["released"].release()
            first["failed"].modify(delivery_failed=True)  # an outcome that this broker lacks: it puts the message back
            again = Counter()
            for _ in range(2):
                async with await receiver.receive() as message:
                    again[message.body] += 1
            assert again == Counter(["released", "failed"])
            await until(lambda: not far.statistics().router.relays)
    assert await left_in(rabbitmq, DRAINED[0]) == Counter()


async def test_accepted_means_that_the_broker_has_it(rabbitmq):
    async with mesh(rabbitmq) as (_, far), far.sender("outgoing") as sender:
        for number in range(20):
            await sender.send(Message(str(number), durable=True))
    assert await left_in(rabbitmq, "/amq/queue/fed") == Counter(map(str, range(20)))


async def test_a_queue_that_is_not_there_is_told_and_waited_for_and_hurts_no_other_link(rabbitmq):
    missing = LinkConfig(connector="broker", source="/amq/queue/missing", address="nothing")
    async with mesh(rabbitmq, *LINKS, missing) as (near, far):
        await until(lambda: links_of(near)[3].failures >= 3)
        stands = links_of(near)[3]
        assert stands.reason is not None
        assert stands.reason.startswith("the peer ended the session (amqp:not-found)")
        assert {each.state for each in links_of(near)[:3]} == {ContainerLinkState.ATTACHED}
        async with far.sender("outgoing") as sender:
            await sender.send(b"alive")
    assert await left_in(rabbitmq, "/amq/queue/fed") == Counter([b"alive"])


async def test_with_a_password_under_tls(rabbitmq, credentials, tmp_path):
    (tmp_path / "password").write_text(PASSWORD)
    broker = ConnectorConfig(
        url=rabbitmq.tls_url,
        name="broker",
        role="container",
        tls=ConnectorTlsConfig(trust=Path(credentials.trust)),
        user=USER,
        password=PasswordConfig(file=tmp_path / "password"),
    )
    async with Router(id="A", connectors=[broker], container_links=LINKS[2:]) as router:
        await until_attached(router)


async def test_a_drain_and_credit_that_lies_idle_leave_the_brokers_links_alone(rabbitmq):
    async with mesh(rabbitmq) as (near, far):
        attached = [each.since for each in links_of(near)]
        async with far.receiver("incoming", credit=0) as receiver:
            for _ in range(3):
                receiver.flow(5)
                with trio.move_on_after(2.0):
                    await receiver.drain()
        async with far.receiver("incoming", credit=5) as receiver, far.sender("incoming") as sender:
            for _ in range(100):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(sender.send, b"by another")
                    async with await receiver.receive() as message:
                        assert message.body == b"by another"
            for queue in DRAINED:
                await fill(rabbitmq, queue, [f"{queue} {number}" for number in range(50)])
            bodies = Counter()
            for _ in range(100):
                async with await receiver.receive() as message:
                    bodies[message.body] += 1
        assert bodies == Counter(f"{queue} {number}" for queue in DRAINED for number in range(50))
        assert [each.since for each in links_of(near)] == attached


async def test_consumers_that_come_and_go_lose_nothing_and_the_links_stay(rabbitmq):
    chance = random.Random(1)
    async with mesh(rabbitmq) as (near, far):
        attached = [each.since for each in links_of(near)]
        expected = [f"{queue} {number}" for queue in DRAINED for number in range(1000)]
        for queue in DRAINED:
            await fill(rabbitmq, queue, [body for body in expected if body.startswith(f"{queue} ")])
        bodies = Counter()
        while len(bodies) < len(expected):
            async with far.receiver("incoming", credit=chance.choice([1, 10, 50, 200])) as receiver:
                with trio.move_on_after(chance.uniform(0.01, 0.3)):
                    while True:
                        delivery = await receiver.receive()
                        delivery.accept()
                        bodies[delivery.message.body] += 1
        assert bodies == Counter(expected)
        assert [each.since for each in links_of(near)] == attached


@pytest.mark.parametrize("breaks", BREAKING)
async def test_nothing_is_lost_when_it_breaks_in_the_middle(breaks, rabbitmq):
    count = 300
    wires = Wires()
    arrived, failed = Counter(), Counter()
    drained = [f"/amq/queue/{breaks}-{name}" for name in ("drained", "drained-quorum")]
    fed = f"/amq/queue/{breaks}-fed"
    expected = {queue: [f"{queue} {number}" for number in range(count)] for queue in drained}
    outgoing = [str(number) for number in range(count)]

    async def receive(router):
        async with router.receiver("incoming", credit=20) as receiver:
            async for delivery in receiver:
                async with delivery as message:
                    arrived[message.body] += 1
                    await trio.sleep(0.002)

    async def send(router, bodies):
        async with router.sender("outgoing") as sender:
            for body in bodies:
                while True:
                    try:
                        await sender.send(Message(body, durable=True))
                        break
                    except RejectedError:
                        raise
                    except OutcomeError:
                        failed[body] += 1

    async with mesh(rabbitmq, *links_for(drained, fed), wires=wires) as (near, far), trio.open_nursery() as receiving:
        await until_attached(near)
        for queue, bodies in expected.items():
            await fill(rabbitmq, queue, bodies)
        receiving.start_soon(receive, far)
        async with trio.open_nursery() as sending:
            for part in range(5):
                sending.start_soon(send, far, outgoing[part::5])
            await until(lambda: len(arrived) > count // 4)
            if breaks == "broker":
                await trio.to_thread.run_sync(rabbitmq.kill)
                await until(lambda: all(each.state is ContainerLinkState.DISCONNECTED for each in links_of(near)))
                await trio.to_thread.run_sync(rabbitmq.start)
            else:
                for _ in range(3):
                    wires.cut()
                    await trio.sleep(0.2)
            await until_attached(near)
        await until(lambda: len(arrived) == 2 * count)
        receiving.cancel_scope.cancel()
    assert set(arrived) == {body for bodies in expected.values() for body in bodies}
    left = await left_in(rabbitmq, fed)
    assert set(left) == set(outgoing)
    assert all(times <= 1 + failed[body] for body, times in left.items())
    for queue in drained:  # messages in doubt at the end, if their outcomes had not reached the broker
        assert set(await left_in(rabbitmq, queue)) <= set(expected[queue])


async def test_a_queue_that_is_to_last_is_asked_for_as_such(rabbitmq):
    # A name without a path declares a queue, which is durable if the terminus is.
    lasting = LinkConfig(
        connector="broker",
        source="/queue/lasting-by-link",
        address="incoming",
        capabilities=("queue",),
        durable="configuration",
        expiry_policy="never",
    )
    async with mesh(rabbitmq, lasting) as (near, far):
        await until_attached(near)
        await trio.to_thread.run_sync(rabbitmq.kill)
        await trio.to_thread.run_sync(rabbitmq.start)
        await until_attached(near)
        await fill(rabbitmq, "/amq/queue/lasting-by-link", ["there"])
        async with far.receiver("incoming") as receiver, await receiver.receive() as message:
            assert message.body == "there"


# ---------------------------------------------------------------------------------------------------------- on demand


@asynccontextmanager
async def led_to(rabbitmq):
    """Start routers A, some of whose addresses are the broker's queues by name, and B, without such addresses."""
    port = int(rabbitmq.url.rpartition(":")[2])
    queues = AddressConfig(
        pattern="/amq/queue/#", redirect=RedirectConfig(network_host="127.0.0.1", port=port, follow="router")
    )
    audit = AddressConfig(
        pattern="audit",
        redirect=RedirectConfig(network_host="127.0.0.1", port=port, address="/amq/queue/asked-for", follow="router"),
    )
    listener = ListenerConfig(url="amqp://127.0.0.1:0", role="mesh")
    async with (
        Router(id="A", mesh=MESH, drain=0.5, listeners=[listener], addresses=(queues, audit)) as near,
        Router(id="B", mesh=MESH, drain=0.5, connectors=[near.listeners[0].url]) as far,
    ):
        await until(lambda: any(each.distance is not None for each in far.statistics().routes))
        yield near, far


async def test_a_router_goes_to_the_broker_in_the_place_of_its_clients_and_of_its_mesh(rabbitmq):
    async with led_to(rabbitmq) as (near, far):
        async with near.sender("/amq/queue/asked-for") as one, far.sender("audit") as other:
            for number in range(20):
                await one.send(Message(f"one {number}", durable=True))
                await other.send(Message(f"other {number}", durable=True))
        received = Counter()
        async with (
            near.receiver("/amq/queue/asked-for", credit=5) as here,
            far.receiver("/amq/queue/asked-for@A", credit=5) as there,
        ):

            async def take(receiver):
                async for delivery in receiver:
                    async with delivery as message:
                        received[message.body] += 1

            async with trio.open_nursery() as nursery:
                nursery.start_soon(take, here)
                nursery.start_soon(take, there)
                with trio.move_on_after(15):  # then the assertions below show what arrived, and where the rest is
                    await until(lambda: received.total() >= 40)
                stands = (near.statistics(), far.statistics())
                nursery.cancel_scope.cancel()
        assert received == Counter(f"{who} {number}" for who in ("one", "other") for number in range(20)), stands
        await until(lambda: not near.statistics().router.relays)
    assert await left_in(rabbitmq, "/amq/queue/asked-for") == Counter()


async def test_a_receiver_of_a_queue_that_is_not_there_hears_it_from_the_broker(rabbitmq):
    async with led_to(rabbitmq) as (near, _), near.sender("/amq/queue/asked-for") as sender:
        await sender.send("before")
        with pytest.raises(LinkDetachedError, match="does not take the link") as missing:
            async with near.receiver("/amq/queue/missing") as receiver:
                await receiver.receive()
        assert missing.value.error.condition == "amqp:not-found"
        await sender.send("after")
    assert await left_in(rabbitmq, "/amq/queue/asked-for") == Counter(["before", "after"])


@pytest.fixture
def declaring(rabbitmq):
    port = int(rabbitmq.url.rpartition(":")[2])
    with closing(Declaring(port, USER, PASSWORD)) as connection:
        yield connection


async def test_nothing_is_accepted_for_a_queue_that_is_not_there_or_goes(rabbitmq, declaring):
    queue = "comes-and-goes"
    link = LinkConfig(connector="broker", target=f"/amq/queue/{queue}", address="outgoing")

    def is_missed(router):
        return "the node is not there (amqp:not-found)" in (links_of(router)[0].reason or "")

    with trio.fail_after(60):
        async with mesh(rabbitmq, link) as (near, far), far.sender("outgoing") as sender:
            await until(lambda: is_missed(near))
            assert sender.credit == 0
            declaring.declare(queue)
            await sender.send("accepted, and gone with its queue")
            assert links_of(near)[0].unwatched is None
            declaring.delete(queue)
            with suppress(OutcomeError), trio.move_on_after(10.0):
                await sender.send("refused")
                raise AssertionError("accepted, and there is no queue")
            await until(lambda: is_missed(near))
            declaring.declare(queue)
            await sender.send("kept")
    assert await left_in(rabbitmq, f"/amq/queue/{queue}") == Counter(["kept"])
