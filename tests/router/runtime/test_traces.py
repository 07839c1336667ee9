"""Traces of messages over routers of a mesh, in virtual time, as clients ask for them at `$management`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import trio
from trio.testing import MockClock

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.messaging import DistributionMode, Source
from amqpmesh.router.client.connect import Connection
from amqpmesh.router.client.receiver import Receiver
from amqpmesh.router.config.file import AddressConfig, ConnectorConfig, ListenerConfig, MeshConfig
from amqpmesh.router.config.observability import TracingConfig
from amqpmesh.router.management.service import ADDRESS
from amqpmesh.router.management.trace import MARK, events_request, start_request
from amqpmesh.router.message.content import Message
from amqpmesh.router.runtime.router import Router
from tests.router.runtime.test_tenant_views import mesh as tenants
from tests.router.runtime.test_tenant_views import policy, status
from tests.support.peers.library_client import Roads
from tests.support.tasks.until import until

Events = list[dict[str, Any]]


class Line:
    """Routers in a line, each a neighbour of the one before, and clients there."""

    def __init__(self, roads: Roads, routers: dict[str, Router]) -> None:
        self.roads = roads
        self.routers = routers

    def client(self, router: str, **options: Any) -> Connection:
        url = f"amqp://{router.lower()}.example:5672"
        self.roads.lead_to(self.routers[router], url, ListenerConfig(url="amqp://127.0.0.1:0", name="amqp"))
        return self.roads.connect(url, **options)

    async def known(self, address: str) -> None:
        """Wait until all routers know of a receiver of an address."""

        def is_known(router: Router) -> bool:
            told = router.statistics()
            here = any(each.name == address and each.consumers for each in told.addresses)
            return here or any(each.name == address for each in told.adverts)

        for each in self.routers.values():
            await until(lambda: is_known(each))  # noqa: B023

    def sends_by(self, kind: str, router: str) -> bool:
        """Tell whether a lane of a kind leaves a router."""
        lanes = self.routers[router].statistics().lanes
        return any(each.kind == kind and each.direction == "outgoing" and each.credit for each in lanes)


@asynccontextmanager
async def line(names: str, **settings: Any) -> AsyncIterator[Line]:
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        roads, routers = Roads(nursery), dict[str, Router]()
        for before, name in zip(" " + names, names, strict=False):
            door = ListenerConfig(url=f"amqp://127.0.0.1:{5700 + ord(name)}", name="door", role="mesh")
            wire = f"amqp://127.0.0.1:{5700 + ord(before)}"
            routers[name] = router = Router(
                id=name,
                epoch=1,
                drain=0.0,
                mesh=MeshConfig(insecure=True),
                connectors=[ConnectorConfig(url=wire, name="wire", role="mesh")] if before != " " else [],
                open_stream=roads.open,
                **settings,
            )
            await stack.enter_async_context(router)
            roads.lead_to(router, str(door.url), door)
        everybody = set(names)
        for router in routers.values():
            await until(lambda: {router.id, *(each.router for each in router.statistics().routes)} >= everybody)  # noqa: B023
        yield Line(roads, routers)
        nursery.cancel_scope.cancel()


def body(answer: Message) -> Any:
    assert answer.application_properties["statusCode"] == 200, answer.application_properties
    return answer.body


async def begun(client: Connection, address: str, at: str = "", *, follows_next: bool = False) -> str:
    async with client.requester(ADDRESS + at) as management:
        asked = start_request(address, follows_next=follows_next, wait=5.0)
        return str(body(await management.request(asked))["trace"])


async def told(client: Connection, trace: str, at: str = "") -> Events:
    """Return all events of a trace at one router, once it is over there."""
    async with client.requester(ADDRESS + at) as management:
        while True:
            found = body(await management.request(events_request(trace, 0)))
            if found["over"]:
                return list(found["events"])
            await trio.sleep(0.1)


def kinds(events: Events) -> list[str]:
    return [each["event"] for each in events]


async def receiving(receiver: Receiver, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Accept all messages."""
    task_status.started()
    async for delivery in receiver:
        delivery.accept()


class Read(NamedTuple):
    """A line of routers with a client at the first one, and another at the last one, which receives from `orders`."""

    mesh: Line
    asking: Connection
    orders: Receiver


@asynccontextmanager
async def read(names: str, *, accepts: bool = True, credit: int = 10) -> AsyncIterator[Read]:
    """Provide such a line. Args: accepts: all messages are accepted. credit: at first."""
    async with (
        trio.open_nursery() as nursery,
        line(names) as mesh,
        mesh.client("A", id="writer") as asking,
        mesh.client(names[-1], id="reader") as there,
        there.receiver("orders", credit=credit, name="r") as orders,
    ):
        if accepts:
            await nursery.start(receiving, orders)
        await mesh.known("orders")
        yield Read(mesh, asking, orders)
        nursery.cancel_scope.cancel()


async def keeping(
    client: Connection, address: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Keep a sender attached."""
    async with client.sender(address):
        task_status.started()
        await trio.sleep_forever()


async def test_a_message_is_followed_over_three_routers(autojump_clock: MockClock) -> None:
    async with read("ABC", accepts=False) as (mesh, asking, orders):
        trace = await begun(asking, "orders")
        delivery = await orders.receive()
        assert delivery.message.message_annotations == {MARK: trace}
        assert not delivery.message.delivery_annotations
        await trio.sleep(0.5)
        delivery.accept()
        a, b, c = [await told(asking, trace, at) for at in ("", "@B", "@C")]
    step = ["came", "chosen", "left", "outcome", "told", "ended"]
    assert kinds(a) == ["begun", "came", "routed", *step[1:]]
    assert (kinds(b), kinds(c)) == (step, step)
    assert (a[2]["to"], a[2]["rule"], a[2]["cost"]) == ("C", "balanced", 2)
    assert [(each[-4]["to"], each[-4]["router"]) for each in (a, b, c)] == [("B", True), ("C", True), ("reader", False)]
    assert [(each["from"], each["lane"], each["far"]) for each in (b[0], c[0])] == [
        ("A", "anycast", "C"),
        ("B", "anycast", "C"),
    ]
    assert (c[2]["link"], "key" in c[2], b[2]["key"]) == ("r", False, a[-4]["key"])
    for events in (a, b, c):
        (outcome,) = (each for each in events if each["event"] == "outcome")
        (left,) = (each for each in events if each["event"] == "left")
        assert (outcome["outcome"], round(outcome["at"] - left["at"], 3)) == ("accepted", 0.5)
    assert all(len(router._core.context.traces.relays) == 0 for router in mesh.routers.values() if router._core)


async def test_a_wait_for_credit_is_told_with_its_reason(autojump_clock: MockClock) -> None:
    async with read("AB", accepts=False, credit=0) as (_, asking, orders):
        trace = await begun(asking, "orders")
        await trio.sleep(2.0)
        orders.flow(1)
        (await orders.receive()).accept()
        events = await told(asking, trace)
    reasons = [each["reason"] for each in events if each["event"] == "waits"]
    assert reasons[-1] == "receivers at other routers give no credit"
    (came,) = (each for each in events if each["event"] == "came")
    assert 2.0 <= came["at"] < 2.2
    assert events[-2]["outcome"] == "accepted"


async def test_a_message_that_waits_in_a_router_is_told_with_its_reason(autojump_clock: MockClock) -> None:
    async with read("AB", accepts=False, credit=0) as (_, asking, orders), asking.sender(None) as sender:
        trace = await begun(asking, "orders", at="@B", follows_next=True)
        sent = await sender.transfer(Message(to="orders"))
        await trio.sleep(0.3)
        orders.flow(1)
        (await orders.receive()).accept()
        await sent.outcome()
        there_events = await told(asking, trace, "@B")
    assert kinds(there_events) == ["begun", "came", "waits", "chosen", "left", "outcome", "told", "ended"]
    assert there_events[1]["lane"] == "transit"
    assert there_events[2]["reason"] == "receivers give no credit"
    assert (round(there_events[3]["waited"], 3), there_events[3]["waited_for"]) == (0.3, "receivers give no credit")


async def test_without_a_receiver_it_is_given_up(autojump_clock: MockClock) -> None:
    async with line("A") as mesh, mesh.client("A") as asking:
        trace = await begun(asking, "nobody")
        began = trio.current_time()
        events = await told(asking, trace)
        assert 5.0 <= trio.current_time() - began < 5.5
        assert kinds(events) == ["begun", "waits", "failed"]
        assert (events[1]["reason"], events[2]["reason"]) == ("no receiver anywhere", "no credit")
        trace = await begun(asking, "nobody", follows_next=True)
        assert (await told(asking, trace))[-1]["reason"] == "no message has come"


async def test_a_multicast_has_a_branch_for_each_receiver(autojump_clock: MockClock) -> None:
    news = AddressConfig(pattern="news", distribution=Distribution.MULTICAST)
    async with (
        trio.open_nursery() as nursery,
        line("ABC", addresses=(news,)) as mesh,
        mesh.client("A") as asking,
        mesh.client("B") as near,
        mesh.client("C") as far,
        asking.receiver("news") as here,
        near.receiver("news") as middle,
        far.receiver("news") as end,
    ):
        await nursery.start(keeping, asking, "news")  # the lanes of the tree stay while there is a sender
        await until(lambda: all(mesh.sends_by("tree", each) for each in "AB"))
        trace = await begun(asking, "news")
        for receiver in (here, middle, end):
            delivery = await receiver.receive()
            assert not delivery.message.delivery_annotations
            assert delivery.message.message_annotations == {MARK: trace}
            delivery.accept()
        a, b, c = [await told(asking, trace, at) for at in ("", "@B", "@C")]
        nursery.cancel_scope.cancel()
    for events, routers in ((a, [False, True]), (b, [False, True]), (c, [False])):
        left = [each for each in events if each["event"] == "left"]
        assert sorted(each["router"] for each in left) == routers
        assert [each["branch"] for each in left] == [*range(1, len(left) + 1)]
        assert sorted(each["branch"] for each in events if each["event"] == "outcome") == [*range(1, len(left) + 1)]
    assert (b[0]["lane"], c[0]["from"]) == ("tree", "B")


async def test_a_receiver_of_copies_sees_no_mark(autojump_clock: MockClock) -> None:
    news = AddressConfig(pattern="news", distribution=Distribution.MULTICAST)
    browsing = Source(address="news", distribution_mode=DistributionMode.COPY)
    async with (
        trio.open_nursery() as nursery,
        line("AB", addresses=(news,)) as mesh,
        mesh.client("A") as asking,
        mesh.client("B") as far,
        asking.receiver("news") as here,
        asking.receiver("news", source=browsing) as browser,
        far.receiver("news") as end,
    ):
        await nursery.start(keeping, asking, "news")
        await until(lambda: mesh.sends_by("tree", "A"))
        trace = await begun(asking, "news")
        for receiver in (here, browser, end):
            delivery = await receiver.receive()
            assert delivery.message.message_annotations == {MARK: trace}
            assert not delivery.message.delivery_annotations
            delivery.accept()
        a, b = [await told(asking, trace, at) for at in ("", "@B")]
        assert [each.get("copy") for each in a if each["event"] == "left"] == [None, None, True]
        assert kinds(b)[-1] == "ended"
        nursery.cancel_scope.cancel()


async def test_the_next_message_that_comes_is_followed_and_the_kernel_goes_on(autojump_clock: MockClock) -> None:
    async with read("AB") as (mesh, asking, _), asking.sender("orders", name="s") as sender:

        def decided() -> int:
            (address,) = (each for each in mesh.routers["A"].statistics().addresses if each.name == "orders")
            return address.decided

        for _ in range(5):
            await sender.send(Message(b"before"))
        count = decided()
        for _ in range(5):
            await sender.send(Message(b"before"))
        assert decided() == count
        trace = await begun(asking, "orders", follows_next=True)
        await sender.send(Message(b"followed"))
        a, b = [await told(asking, trace, at) for at in ("", "@B")]
        assert kinds(a) == ["begun", "came", "routed", "chosen", "left", "outcome", "told", "ended"]
        assert (a[1]["from"], a[1]["link"]) == ("writer", "s")
        assert kinds(b) == ["came", "chosen", "left", "outcome", "told", "ended"]
        await sender.send(Message(b"after"))
        count = decided()
        for _ in range(5):
            await sender.send(Message(b"after"))
        assert decided() == count


async def test_the_next_message_of_an_anonymous_sender_is_followed(autojump_clock: MockClock) -> None:
    async with read("ABC") as (_, asking, orders), asking.sender(None) as sender:
        while not isinstance(await (await sender.transfer(Message(b"before", to="orders"))).outcome(), Accepted):
            await trio.sleep(0.1)  # B has no path yet
        for _ in range(5):
            await sender.send(Message(b"before", to="orders"))
        trace = await begun(asking, "orders", follows_next=True)
        await sender.send(Message(b"other", to=orders.address))
        a, b, c = [await told(asking, trace, at) for at in ("", "@B", "@C")]
        assert [each[-4]["lane"] for each in (a, b)] == ["transit", "transit"]
        assert (c[0]["address"], c[-4]["router"]) == ("orders", False)


async def test_a_message_of_many_frames_is_followed_to_its_outcome(autojump_clock: MockClock) -> None:
    async with read("AB") as (_, asking, _), asking.sender("orders") as sender:
        await sender.send(Message(b"x" * 300_000))
        trace = await begun(asking, "orders", follows_next=True)
        await sender.send(Message(b"x" * 300_000))
        for events in [await told(asking, trace, at) for at in ("", "@B")]:
            assert [each for each in kinds(events) if each in ("left", "outcome", "told", "ended")] == [
                "left",
                "outcome",
                "told",
                "ended",
            ]


async def test_a_message_that_is_lost_with_its_router_ends_where_that_is_known(autojump_clock: MockClock) -> None:
    async with read("ABC", accepts=False) as (mesh, asking, orders):
        trace = await begun(asking, "orders")
        await orders.receive()
        await mesh.routers["C"].drain()
        a, b = [await told(asking, trace, at) for at in ("", "@B")]
    assert next(each for each in b if each["event"] == "lost")["outcome"] == "modified"
    assert next(each for each in a if each["event"] == "told")["outcome"] == "modified"


async def test_a_router_that_does_not_follow_passes_the_mark_on(autojump_clock: MockClock) -> None:
    async with read("ABC") as (mesh, asking, _):
        core = mesh.routers["B"]._core
        assert core is not None
        core.context.traces.begin = lambda *_: None  # type: ignore[method-assign]  # as if it knew of no traces
        trace = await begun(asking, "orders")
        assert kinds(await told(asking, trace))[-3:] == ["outcome", "told", "ended"]
        assert kinds(await told(asking, trace, "@C"))[0] == "came"
        async with asking.requester(f"{ADDRESS}@B") as management:
            assert status(await management.request(events_request(trace, 0))) == 404


async def test_a_mark_of_a_client_is_no_mark(autojump_clock: MockClock) -> None:
    async with read("AB") as (_, asking, _), asking.sender("orders") as sender:
        await sender.send(Message(b"x", delivery_annotations={"x-opt-mesh-trace": b"0123456789abcdef"}))
        for at in ("", "@A", "@B"):
            async with asking.requester(f"{ADDRESS}{at}") as management:
                assert status(await management.request(events_request(b"0123456789abcdef".hex(), 0))) == 404


async def test_traces_are_bounded_and_forgotten(autojump_clock: MockClock) -> None:
    async with (
        line("A", tracing=TracingConfig(traces=4, events=10, keep=20.0)) as mesh,
        mesh.client("A") as asking,
        asking.requester(ADDRESS) as management,
    ):

        async def start(address: str) -> Message:
            return await management.request(start_request(address, follows_next=True, wait=5.0))

        first = str(body(await start("a"))["trace"])
        assert status(await start("a")) == 409  # another one awaits it
        for each in "bcd":
            body(await start(each))
        assert status(await start("e")) == 409
        await trio.sleep(6.0)  # they are over, and make room
        body(await start("e"))
        assert status(await management.request(events_request(first, 0))) == 404
        await trio.sleep(60.0)
        core = mesh.routers["A"]._core
        assert core is not None
        assert len(core.context.traces) == 0
        for address in ("$management", "@A", ""):
            assert status(await start(address)) == 400


async def test_more_events_than_there_is_room_for_are_counted(autojump_clock: MockClock) -> None:
    news = AddressConfig(pattern="news", distribution=Distribution.MULTICAST)
    settings: dict[str, Any] = {"addresses": (news,), "tracing": TracingConfig(events=10)}
    async with line("A", **settings) as mesh, mesh.client("A") as asking, AsyncExitStack() as stack:
        receivers = [await stack.enter_async_context(asking.receiver("news")) for _ in range(8)]
        trace = await begun(asking, "news")
        for each in receivers:
            (await each.receive()).accept()
        assert len(await told(asking, trace)) == 10
        async with asking.requester(ADDRESS) as management:
            # begun, came, chosen, 8 left, 8 outcomes, told, ended
            assert body(await management.request(events_request(trace, 0)))["lost"] == 21 - 10


async def test_a_tenant_traces_its_own_addresses_and_sees_no_names_of_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with (
        trio.open_nursery() as nursery,
        tenants(policy(tmp_path), "AB") as place,
        place.client("apples", id="ann") as ann,
        place.client("apples", "B", id="reader") as reader,
        place.client("bananas", id="bob") as bob,
        place.client("operator") as root,
        reader.receiver("fruit") as fruit,
        bob.receiver("fruit"),
    ):
        await nursery.start(receiving, fruit)
        await until(lambda: bool(place.routers["A"].statistics().adverts))
        trace = await begun(ann, "fruit")
        events = await told(ann, trace)
        assert kinds(events)[-1] == "ended"
        async with bob.requester(ADDRESS) as management:
            assert status(await management.request(events_request(trace, 0))) == 404
        assert kinds(await told(root, trace))[-1] == "ended"
        # The mesh has no certificates, so that no router vouches for a client: B does not tell it.
        async with ann.requester(f"{ADDRESS}@B") as management:
            assert status(await management.request(events_request(trace, 0))) == 403
        nursery.cancel_scope.cancel()


async def test_a_trace_needs_the_rights_to_read_and_to_send(tmp_path: Path, autojump_clock: MockClock) -> None:
    rules = policy(tmp_path, apples=["read:address"], bananas=["read:link"])
    async with tenants(rules) as place, place.client("apples") as ann, place.client("bananas") as bob:
        for client in (ann, bob):
            async with client.requester(ADDRESS) as management:
                assert status(await management.request(start_request("a", follows_next=False, wait=1.0))) == 403
