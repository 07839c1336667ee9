"""The records of routers as messages at `$telemetry`: at one router, over a mesh, by tenants; nobody waits for them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from amqpmesh import Connection, LinkDetachedError, Message, Receiver
from amqpmesh.router.client.sender import Sender
from amqpmesh.router.config.file import (
    AddressConfig,
    ConnectorConfig,
    ListenerConfig,
    MeshConfig,
    PolicyConfig,
    TelemetryConfig,
)
from amqpmesh.router.logs.event_log import event_of
from amqpmesh.router.message.outcomes import OutcomeError
from amqpmesh.router.runtime import telemetry_publisher
from amqpmesh.router.runtime.router import Router
from amqpmesh.router.telemetry.live_segments import FOREIGN, MOST
from amqpmesh.router.telemetry.schema import Kind
from amqpmesh.router.telemetry.segments import Block, Damage, read
from tests.support.data.recordings import blocks, hops_in
from tests.support.peers.library_client import Roads
from tests.support.tasks.until import until

FLUSH = 0.02


class Place:
    """Routers in a line, each with a listener for every tenant."""

    def __init__(self, roads: Roads, routers: dict[str, Router]) -> None:
        self.roads = roads
        self.routers = routers

    def client(self, router: str = "A", tenant: str = "all") -> Connection:
        url = f"amqp://{tenant}.{router.lower()}.example:5672"
        self.roads.lead_to(self.routers[router], url, ListenerConfig(url="amqp://127.0.0.1:0", name=tenant))
        return self.roads.connect(url)


@asynccontextmanager
async def place(
    folder: Path, names: str = "A", policy: str = "", addresses: Sequence[AddressConfig] = (), **telemetry: Any
) -> AsyncIterator[Place]:
    """Run routers that record and publish."""
    rules = folder / "policy.toml"
    rules.write_text(policy)
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        roads, routers = Roads(nursery), dict[str, Router]()
        for before, name in zip(" " + names, names, strict=False):
            wire = f"amqp://127.0.0.1:{5700 + ord(before)}"
            routers[name] = router = Router(
                id=name,
                policy=PolicyConfig(file=rules) if policy else None,
                drain=0.0,
                addresses=addresses,
                mesh=MeshConfig(insecure=True) if len(names) > 1 else None,
                connectors=[ConnectorConfig(url=wire, name="wire", role="mesh")] if before != " " else [],
                open_stream=roads.open,
                telemetry=TelemetryConfig(directory=folder / name, **{"publish": True, "flush": FLUSH, **telemetry}),
            )
            await stack.enter_async_context(router)
            door = f"amqp://127.0.0.1:{5700 + ord(name)}"
            roads.lead_to(router, door, ListenerConfig(url=door, name="door", role="mesh"))
        await until(lambda: all(len(each.statistics().routes) == len(names) - 1 for each in routers.values()))
        yield Place(roads, routers)
        nursery.cancel_scope.cancel()


class Heard:
    """Blocks of the segments that a receiver gets."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.blocks: list[Block] = []
        self.links: dict[tuple[str, int], dict[str, Any]] = {}
        self.hops: list[tuple[str, dict[str, int]]] = []

    async def hear(self) -> None:
        """Take one message."""
        delivery = await self._receiver.receive()
        assert delivery.message.content_type == telemetry_publisher.CONTENT_TYPE
        damage = Damage()
        found = list(read(delivery.message.body, damage))
        assert damage == Damage()
        assert (found[0].kind, found[-1].kind) == (Kind.SEGMENT, Kind.END)
        (told,), (end,) = found[0].records(), found[-1].records()
        router = delivery.message.application_properties["router"]
        assert told["router"] == router
        assert end["hops"] == sum(each.count for each in found if each.kind == Kind.HOP)
        self.blocks += found
        explained = {link["number"]: link for each in found if each.kind == Kind.LINK for link in each.records()}
        for hop in hops_in(found):
            self.hops.append((router, hop))
            assert (hop["address"] or hop["incoming"]) in explained  # each segment explains what it names
        self.links |= {(router, number): link for number, link in explained.items()}

    async def until(self, count: int) -> None:
        """Take messages until so many hop records have come."""
        while len(self.hops) < count:
            await self.hear()

    def addresses(self) -> set[str]:
        """Return the addresses that anything is told about."""
        kinds = (Kind.LINK, Kind.EVENT, Kind.COUNTS)
        told = (record["address"] for each in self.blocks if each.kind in kinds for record in each.records())
        return {each for each in told if each is not None}


async def pass_messages(sender: Sender, receiver: Receiver, count: int) -> None:
    """Pass messages that are accepted."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_take, receiver, count)
        for number in range(count):
            await sender.send(number)


async def _take(receiver: Receiver, count: int) -> None:
    for _ in range(count):
        (await receiver.receive()).accept()


async def listened(router: Router, name: str = "$telemetry") -> None:
    """Wait until the thread that writes knows that somebody listens."""
    writer = router._observers.telemetry
    assert writer is not None
    tenant = name.partition("/")[2]
    await until(lambda: tenant in writer._wanted)


async def test_whoever_listens_gets_whole_segments_and_nothing_about_these_messages(tmp_path: Path) -> None:
    async with (
        place(tmp_path) as here,
        here.client() as client,
        client.receiver("q") as receiver,
        client.sender("q") as sender,
    ):
        await pass_messages(sender, receiver, 3)  # nobody listens yet
        async with client.receiver("$telemetry") as live, client.receiver("$telemetry") as second:
            await listened(here.routers["A"])
            await pass_messages(sender, receiver, 20)
            heard = [Heard(live), Heard(second)]
            for each in heard:
                await each.until(20)
                assert "$telemetry" not in each.addresses()
    found = blocks(tmp_path / "A")
    recorded = hops_in(found)
    assert len(recorded) == 23
    for each in heard:
        first = next(block.first for block in each.blocks if block.kind == Kind.HOP)
        # Records have the numbers that they have on the disk.
        assert [hop for _, hop in each.hops] == recorded[first : first + len(each.hops)]
    told = [record for each in found if each.kind in (Kind.LINK, Kind.EVENT, Kind.COUNTS) for record in each.records()]
    assert "$telemetry" not in {each["address"] for each in told}


async def test_one_receiver_hears_all_routers_of_a_mesh(tmp_path: Path) -> None:
    async with (
        place(tmp_path, "ABC") as here,
        here.client("A") as near,
        here.client("C") as far,
        near.sender("q") as sender,
        far.receiver("q") as receiver,
        far.receiver("$telemetry") as live,
    ):
        for each in here.routers.values():
            await listened(each)
        await pass_messages(sender, receiver, 10)
        heard = Heard(live)
        await heard.until(30)
        assert sorted(router for router, _ in heard.hops) == ["A"] * 10 + ["B"] * 10 + ["C"] * 10
        assert {hop["counter"] for _, hop in heard.hops} == {hop["counter"] for each, hop in heard.hops if each == "B"}
        assert "$telemetry" not in heard.addresses()


POLICY = "".join(
    f'[[tenant]]\nname = "{each}"\nmatch = [{{ listener = "{each}" }}]\n'
    f'[[group]]\ntenant = "{each}"\nname = "all"\nsend = ["#"]\nreceive = ["#"]\nmay = ["anonymous"]\n'
    f"telemetry = {right}\n"
    for each, right in (("operator", "true"), ("apples", "true"), ("pears", "false"))
)


async def test_a_tenant_hears_its_own_part_and_the_operator_all(tmp_path: Path) -> None:
    async with (
        place(tmp_path, "AB", POLICY) as here,
        here.client("A", "apples") as apples,
        here.client("B", "pears") as pears,
        here.client("B", "operator") as operator,
        apples.receiver("fruit") as of_apples,
        apples.sender("fruit") as apple_sender,
        pears.receiver("fruit") as of_pears,
        pears.sender("fruit") as pear_sender,
        apples.receiver("$telemetry/apples") as own,
        operator.receiver("$telemetry") as all_of_it,
    ):
        for name in ("$telemetry", "$telemetry/apples"):
            for router in here.routers.values():
                await listened(router, name)
        await pass_messages(pear_sender, of_pears, 4)
        await pass_messages(apple_sender, of_apples, 5)
        part, whole = Heard(own), Heard(all_of_it)
        await part.until(5)
        await whole.until(9)
        assert {each["tenant"] for each in part.links.values()} == {"apples"}
        firsts = [block.first for block in part.blocks if block.kind == Kind.HOP]
        assert firsts[0] == 0  # its records have numbers of their own
        assert len(part.hops) == 5
        assert {each["tenant"] for each in whole.links.values()} == {"apples", "pears"}
        for client, name in (
            (apples, "$telemetry"),
            (apples, "$telemetry/pears"),
            (apples, "$telemetry/apples@A"),
            (pears, "$telemetry/pears"),
        ):
            with pytest.raises(LinkDetachedError, match="unauthorized-access|not-found"):
                async with client.receiver(name):
                    pass


async def test_the_operator_hears_the_part_of_any_tenant(tmp_path: Path) -> None:
    async with (
        place(tmp_path, policy=POLICY) as here,
        here.client("A", "pears") as pears,
        here.client("A", "operator") as operator,
        pears.receiver("fruit") as receiver,
        pears.sender("fruit") as sender,
        operator.receiver("$telemetry/pears") as live,
    ):
        await listened(here.routers["A"], "$telemetry/pears")
        await pass_messages(sender, receiver, 3)
        heard = Heard(live)
        await heard.until(3)
        assert {each["tenant"] for each in heard.links.values()} == {"pears"}


async def test_a_delivery_has_one_key_at_all_routers_that_its_tenant_hears_and_it_tells_no_count(
    tmp_path: Path,
) -> None:
    async with (
        place(tmp_path, "AB", POLICY) as here,
        here.client("A", "apples") as near,
        here.client("B", "apples") as far,
        here.client("A", "operator") as operator,
        far.receiver("fruit") as receiver,
        near.sender("fruit") as sender,
        near.receiver("$telemetry/apples") as own,
        operator.receiver("$telemetry") as all_of_it,
    ):
        for name in ("$telemetry", "$telemetry/apples"):
            for router in here.routers.values():
                await listened(router, name)
        await pass_messages(sender, receiver, 5)
        part, whole = Heard(own), Heard(all_of_it)
        await part.until(10)
        await whole.until(10)
        keys, counted = (
            {name: [hop["counter"] for router, hop in each.hops if router == name] for name in "AB"}
            for each in (part, whole)
        )
        assert keys["A"] == keys["B"]
        assert counted["A"] == counted["B"] == sorted(counted["A"])
        assert len(set(keys["A"])) == 5
        assert not set(keys["A"]) & set(counted["A"])
        assert {number for _, number in part.links}.isdisjoint(number for _, number in whole.links)
        own_lanes, lanes = (
            {
                name: {
                    link["name"] for (router, _), link in each.links.items() if link["from_router"] and router == name
                }
                for name in "AB"
            }
            for each in (part, whole)
        )
        assert own_lanes["A"] == own_lanes["B"]
        assert len(own_lanes["A"]) == len(lanes["A"]) > 0
        assert own_lanes["A"].isdisjoint(lanes["A"]), "their names count lanes"
        told = [each for each in part.blocks if each.kind in (Kind.EVENT, Kind.COUNTS)]
        assert lanes["A"].isdisjoint(record["link"] for each in told for record in each.records())


SHARED = POLICY.replace(
    'match = [{ listener = "apples" }]\n',
    'match = [{ listener = "apples" }]\nexports = [{ pattern = "fruit", to = "pears", may = ["send", "receive"] }]\n',
).replace(
    'match = [{ listener = "pears" }]\n',
    'match = [{ listener = "pears" }]\nimports = [{ pattern = "fruit", from = "apples" }]\n',
)


async def test_a_tenant_sees_no_links_of_others_that_its_deliveries_come_from_or_go_to(tmp_path: Path) -> None:
    async with (
        place(tmp_path, policy=SHARED.replace("telemetry = false", "telemetry = true")) as here,
        here.client("A", "apples") as apples,
        here.client("A", "pears") as pears,
        apples.sender("fruit") as of_apples,
        pears.sender("fruit") as of_pears,
        pears.sender(None) as anonymous,
        apples.receiver("$telemetry/apples") as one,
        pears.receiver("$telemetry/pears") as other,
    ):
        for name in ("$telemetry/apples", "$telemetry/pears"):
            await listened(here.routers["A"], name)
        async with pears.receiver("fruit") as receiver:
            await pass_messages(of_apples, receiver, 3)
        async with apples.receiver("fruit") as receiver:
            await pass_messages(of_pears, receiver, 4)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_take, receiver, 1)
                await anonymous.send(Message("x", to="fruit"))
        for live, count in ((one, 4), (other, 4)):
            heard = Heard(live)
            await heard.until(count)
            named = {number for _, number in heard.links}
            for _, hop in heard.hops:
                assert {hop["incoming"], hop["outgoing"], hop["address"]} <= {0, *named}
            assert heard.links["A", FOREIGN]["name"] == ""


async def test_those_whom_no_policy_rules_hear_nothing_under_one(tmp_path: Path) -> None:
    async with place(tmp_path, policy=POLICY) as here:
        url = "amqp://wire.example:5672"
        here.roads.lead_to(here.routers["A"], url, ListenerConfig(url="amqp://127.0.0.1:0", name="wire", role="mesh"))
        async with here.roads.connect(url) as stranger:
            with pytest.raises(LinkDetachedError, match="unauthorized-access"):
                async with stranger.receiver("$telemetry"):
                    pass


async def test_a_dead_letter_does_not_come_there(tmp_path: Path) -> None:
    mortal = AddressConfig(pattern="q", redeliver=True, attempts=1, dead_letter="$telemetry")
    async with (
        place(tmp_path, addresses=[mortal]) as here,
        here.client() as client,
        client.receiver("q") as receiver,
        client.sender("q") as sender,
        client.receiver("$telemetry") as live,
    ):
        await listened(here.routers["A"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_reject, receiver)
            with pytest.raises(OutcomeError):
                await sender.send(Message("a letter", content_type="text/plain"))
        await Heard(live).until(1)  # each message on the way to the record of it is a segment


async def _reject(receiver: Receiver) -> None:
    (await receiver.receive()).reject()


async def test_a_hundred_thousand_links_that_are_counted_at_once_make_several_messages(tmp_path: Path) -> None:
    async with (
        place(tmp_path) as here,
        here.client() as client,
        client.receiver("$telemetry", credit=100) as live,
    ):
        router = here.routers["A"]
        await listened(router)
        writer = router._observers.telemetry
        assert writer is not None
        count = 20_000
        writer.take(Kind.EVENT, [{"address": None, "tenant": None, "link": "x" * 200} for _ in range(count)])
        heard = 0
        while heard < count:
            body = (await live.receive()).message.body
            assert len(body) < 2 * MOST
            found = read(body, Damage())
            heard += sum(len(each.records()) for each in found if each.kind == Kind.EVENT)


async def test_a_group_that_loses_the_right_loses_the_link(tmp_path: Path) -> None:
    rules = tmp_path / "policy.toml"
    async with (
        place(tmp_path, policy=POLICY) as here,
        here.client("A", "apples") as apples,
        apples.receiver("$telemetry/apples") as own,
    ):
        rules.write_text(POLICY.replace("telemetry = true", "telemetry = false"))
        here.routers["A"].reload()
        with pytest.raises(LinkDetachedError, match="unauthorized-access"):
            await own.receive()


@pytest.mark.parametrize("policy", ["", POLICY], ids=["without a policy", "with one"])
async def test_only_routers_send_there(tmp_path: Path, policy: str) -> None:
    async with (
        place(tmp_path, policy=policy) as here,
        here.client("A", "apples") as client,
        client.receiver("$telemetry/apples") as live,
        client.sender(None) as anonymous,
    ):
        for name in ("$telemetry", "$telemetry/apples", "$telemetry@A"):
            with pytest.raises(LinkDetachedError, match="unauthorized-access|not-found"):
                async with client.sender(name):
                    pass
            with pytest.raises(OutcomeError, match="unauthorized-access|not-found"):
                await anonymous.send(Message("invented", to=name))
        with trio.move_on_after(5 * FLUSH):
            heard = Heard(live)
            while True:
                await heard.hear()  # whatever comes is a segment of the router


async def test_nobody_waits_for_a_receiver_that_takes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "amqpmesh")
    async with (
        place(tmp_path, memory=2**16) as here,
        here.client() as client,
        client.receiver("q") as receiver,
        client.sender("q") as sender,
        client.receiver("$telemetry", credit=0) as live,
    ):
        router = here.routers["A"]
        await listened(router)
        publisher = router._observers._publisher
        for number in range(100):
            publisher.offer("", f"{number}", bytes(10_000))
        await until(lambda: publisher.dropped)
        assert publisher.dropped >= 93
        await until(lambda: router.statistics().router.unpublished == publisher.dropped)
        assert sum(feed.octets for feed in publisher._feeds.values()) <= 2**16
        await pass_messages(sender, receiver, 50)
        live.flow(1_000)
        await receive_segment(live, sender, receiver)
    assert any(event_of(each) == "telemetry not published" for each in caplog.records)


async def receive_segment(live: Receiver, sender: Sender, receiver: Receiver) -> None:
    """Pass messages until a segment tells of one."""
    while True:
        await pass_messages(sender, receiver, 1)
        delivery = await live.receive()
        if any(block.kind == Kind.HOP for block in read(delivery.message.body, Damage())):
            return


async def test_a_router_that_publishes_no_more_leaves_the_address(tmp_path: Path) -> None:
    async with (
        place(tmp_path) as here,
        here.client() as client,
        client.receiver("q") as receiver,
        client.sender("q") as sender,
        client.receiver("$telemetry") as live,
    ):
        router = here.routers["A"]
        config = router.config
        assert config.telemetry is not None
        for telemetry in (replace(config.telemetry, publish=False), None):
            await router.apply(config)
            await receive_segment(live, sender, receiver)
            assert len(own_links(router)) == 1
            await router.apply(replace(config, telemetry=telemetry))
            await until(lambda: not own_links(router))


def own_links(router: Router) -> list[str]:
    """Return the names of the links by which a router publishes."""
    assert router._core is not None
    node = router._core.context.nodes.find("", "$telemetry")
    return [] if node is None else [each.endpoint.name for each in node.incoming]


async def test_publishing_comes_and_goes_by_a_changed_configuration(tmp_path: Path) -> None:
    async with (
        place(tmp_path, publish=False) as here,
        here.client() as client,
        client.receiver("q") as receiver,
        client.sender("q") as sender,
        client.receiver("$telemetry") as live,
    ):
        router = here.routers["A"]
        await pass_messages(sender, receiver, 5)
        config = router.config.telemetry
        assert config is not None
        for publish in (True, False, True):
            applied = await router.apply(replace(router.config, telemetry=replace(config, publish=publish)))
            assert [each.key for each in applied.differences] == ["telemetry.publish"]
        await listened(router)
        await pass_messages(sender, receiver, 5)
        heard = Heard(live)
        await heard.until(5)
        assert {link["name"] for link in heard.links.values()} >= {receiver.name, sender.name}


async def test_others_have_turns_while_thousands_of_tenants_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry_publisher, "TENANTS_A_STEP", 10)
    numbers = range(100, 150)
    tenants = "".join(f'[[tenant]]\nname = "t{each}"\nmatch = [{{ listener = "t{each}" }}]\n' for each in numbers)
    groups = "".join(f'[[group]]\ntenant = "t{each}"\nname = "all"\ntelemetry = true\n' for each in numbers)
    async with place(tmp_path, policy=tenants + groups) as found:
        writer = found.routers["A"]._observers.telemetry
        assert writer is not None
        async with found.client(tenant="t149") as one, one.receiver("$telemetry/t149"):
            turns = 0

            async def count() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await trio.lowlevel.checkpoint()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(count)
                assert await writer._publisher.wanted() == {"t149"}
                nursery.cancel_scope.cancel()
            assert turns >= 4  # of five; in the round of the last one, the other task may come first
