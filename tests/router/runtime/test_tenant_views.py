"""`$management` as clients of tenants see it, at one router and over a mesh."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from amqpmesh.router.amqp.errors import AmqpMeshError, LinkDetachedError
from amqpmesh.router.client.connect import Connection
from amqpmesh.router.client.requester import Requester
from amqpmesh.router.config.file import ConnectorConfig, ListenerConfig, MeshConfig, PolicyConfig
from amqpmesh.router.config.urls import Endpoint
from amqpmesh.router.management.service import ADDRESS
from amqpmesh.router.management.views import Numbers
from amqpmesh.router.message.content import Message
from amqpmesh.router.message.outcomes import OutcomeError
from amqpmesh.router.runtime.router import Router
from tests.support.peers.library_client import Roads
from tests.support.tasks.until import until

MESH = MeshConfig(insecure=True)
TENANTS = ("operator", "apples", "bananas")
POLICY = "".join(f'[[tenant]]\nname = "{each}"\nmatch = [{{ listener = "{each}" }}]\n' for each in TENANTS)
ALL = 'send = ["#"]\nreceive = ["#"]\nmay = ["dynamic", "anonymous", "copy", "container"]\n'


def policy(folder: Path, **manage: Sequence[str]) -> PolicyConfig:
    """Return a policy in which each tenant may do everything, and at the management node what is given."""
    groups = (
        f'[[group]]\ntenant = "{each}"\nname = "all"\n{ALL}manage = {list(manage.get(each, ["read"]))}\n'
        for each in TENANTS
    )
    file = folder / "policy.toml"
    file.write_text(POLICY + "".join(groups).replace("'", '"'))
    return PolicyConfig(file=file)


class Tapped(Roads):
    """Roads that keep the octets which come to clients, by the URL that they asked for."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__(nursery)
        self.came: dict[str, bytearray] = {}

    async def open(self, endpoint: Endpoint) -> trio.abc.Stream:
        stream = await super().open(endpoint)
        assert isinstance(stream, trio.StapledStream)
        receive, came = stream.receive_stream.receive_some, self.came.setdefault(str(endpoint), bytearray())

        async def keep(most: int | None = None) -> bytes:
            data = await receive(most)
            came.extend(data)
            return bytes(data)

        stream.receive_stream.receive_some = keep
        return stream


class Place:
    """A mesh of routers with one listener for each tenant, and clients there."""

    def __init__(self, roads: Tapped, routers: dict[str, Router]) -> None:
        self.roads = roads
        self.routers = routers

    def client(self, tenant: str, router: str = "A", **options: Any) -> Connection:
        url = f"amqp://{tenant}.{router.lower()}.example:5672"
        listener = ListenerConfig(url="amqp://127.0.0.1:0", name=tenant, manage=tenant == "operator")
        self.roads.lead_to(self.routers[router], url, listener)
        return self.roads.connect(url, **options)


@asynccontextmanager
async def mesh(rules: PolicyConfig, names: str = "A") -> AsyncIterator[Place]:
    """Run routers in a line."""
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        roads, routers = Tapped(nursery), dict[str, Router]()
        for before, name in zip(" " + names, names, strict=False):
            door = ListenerConfig(url=f"amqp://127.0.0.1:{5700 + ord(name)}", name="door", role="mesh")
            wire = f"amqp://127.0.0.1:{5700 + ord(before)}"
            routers[name] = router = Router(
                id=name,
                epoch=1,
                policy=rules,
                drain=0.0,
                mesh=MESH if len(names) > 1 else None,
                connectors=[ConnectorConfig(url=wire, name="wire", role="mesh")] if before != " " else [],
                open_stream=roads.open,
            )
            await stack.enter_async_context(router)
            roads.lead_to(router, door.url if isinstance(door.url, str) else "", door)
        ids = set(names)
        await until(lambda: all(known(each) >= ids for each in routers.values()))
        yield Place(roads, routers)
        nursery.cancel_scope.cancel()


def known(router: Router) -> set[str]:
    return {router.id, *(each.router for each in router.statistics().routes)}


def asked(operation: str = "QUERY", **named: str) -> Message:
    return Message(application_properties={"operation": operation, **named})


def rows(answer: Message) -> list[dict[str, Any]]:
    assert answer.application_properties["statusCode"] == 200, answer.application_properties
    names = answer.body["attributeNames"]
    return [dict(zip(names, row, strict=True)) for row in answer.body["results"]]


def status(answer: Message) -> int:
    return int(answer.application_properties["statusCode"])


def kinds(found: list[dict[str, Any]]) -> Counter[str]:
    return Counter(each["type"].removeprefix("org.amqpmesh.") for each in found)


async def test_a_tenant_sees_its_own_part_and_the_operator_all(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with (
        mesh(policy(tmp_path)) as place,
        place.client("apples", id="ann") as ann,
        ann.receiver("fruit") as fruit,
        ann.requester(ADDRESS) as requests,
        place.client("bananas", id="bob") as bob,
        bob.receiver("fruit"),
        bob.sender("fruit") as sender,
        bob.receiver(None),
        place.client("operator") as root,
        root.requester(ADDRESS) as operator,
    ):
        await sender.send("for bananas", settled=True)
        seen = rows(await requests.request(asked()))
        assert kinds(seen) == {"router": 1, "connection": 1, "link": 3, "address": 2, "node": 1}
        assert {each["tenant"] for each in seen if each["tenant"] is not None} == {"apples"}
        (router,) = (each for each in seen if each["type"].endswith("router"))
        assert [router[each] for each in ("id", "connections", "links", "addresses")] == ["A", 1, 3, 2]
        assert (router["deliveries_in"], router["memory"], router["handed_over"]) == (1, None, None)
        whole = rows(await operator.request(asked()))
        assert {each["tenant"] for each in whole if each["tenant"] is not None} == {"apples", "bananas", ""}
        assert fruit.address == "fruit"


async def test_counts_stay_when_links_and_connections_are_gone(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with mesh(policy(tmp_path)) as place, place.client("apples") as ann:
        for tenant in ("apples", "bananas"):
            async with place.client(tenant) as other:
                for _ in range(2):
                    async with other.receiver("q") as receiver, other.sender("q") as sender:
                        await sender.send("x", settled=True)
                        (await receiver.receive()).accept()
        async with ann.requester(ADDRESS) as requests:
            (router,) = rows(await requests.request(asked(entityType="router")))
        assert (router["deliveries_in"], router["deliveries_out"]) == (3, 2), "and this request itself"
        assert router["presettled"] == 2


@pytest.mark.parametrize(
    ("manage", "answers"),
    [
        (["read"], {"link": 200, "address": 200, "listener": 200}),
        (["write"], {"link": 200, "address": 200, "listener": 200}),
        (["link"], {"link": 200, "address": 403, "listener": 403}),
        (["read:link", "read:address"], {"link": 200, "address": 200, "listener": 403}),
    ],
)
async def test_a_type_that_no_group_lets_a_peer_read_is_forbidden(
    manage: list[str], answers: dict[str, int], tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with (
        mesh(policy(tmp_path, apples=manage)) as place,
        place.client("apples") as ann,
        ann.requester(ADDRESS) as requests,
    ):
        for kind, expected in answers.items():
            assert status(await requests.request(asked(entityType=kind))) == expected
        readable = {kind for kind, found in answers.items() if found == 200} & {"link", "address"}
        assert kinds(rows(await requests.request(asked()))).keys() & {"link", "address"} == readable
        assert status(await requests.request(asked("READ", type="address", name="none"))) in (403, 404)


async def test_a_tenant_without_the_right_cannot_ask(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with mesh(policy(tmp_path, apples=[])) as place, place.client("apples") as ann:
        with pytest.raises(LinkDetachedError, match="not permitted"):
            async with ann.sender(ADDRESS):
                pass


async def test_what_a_writing_tenant_does_not_see_is_not_there_to_be_changed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with (
        mesh(policy(tmp_path, apples=["write"], operator=["write:connector"]), "AB") as place,
        place.client("apples", "B") as ann,
        ann.sender("mine"),
        ann.requester(ADDRESS) as requests,
        place.client("operator", "B") as root,
        root.requester(ADDRESS) as operator,
    ):
        change = Message({"cost": 7}, application_properties={"operation": "UPDATE", "identity": "connector/wire"})
        assert status(await requests.request(change)) == 404
        change.application_properties["identity"] = "address/mine"
        assert status(await requests.request(change)) == 404, "its identity has the tenant"
        change.application_properties["identity"] = "address@apples/mine"
        assert status(await requests.request(change)) == 405
        change.application_properties["identity"] = "connector/wire"
        assert status(await operator.request(change)) == 200


async def test_the_policy_is_none_of_a_tenant_to_push(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with (
        mesh(policy(tmp_path, apples=["write"], operator=["write:connector"])) as place,
        place.client("apples") as ann,
        ann.requester(ADDRESS) as requests,
    ):
        assert status(await requests.request(asked("PUSH", type="policy"))) == 403
        assert kinds(rows(await requests.request(asked())))["policy"] == 0


async def test_a_tenant_asks_another_router_of_the_mesh(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with (
        mesh(policy(tmp_path, bananas=["read:link"]), "ABC") as place,
        place.client("apples", "C", id="cid") as there,
        there.receiver("fruit/c"),
        place.client("bananas", "C") as other,
        other.receiver("secret"),
        place.client("apples", "A") as ann,
        ann.requester(f"{ADDRESS}@C") as requests,
    ):
        seen = rows(await requests.request(asked()))
        assert [each["container_id"] for each in seen if each["type"].endswith(".connection")] == ["cid"]
        assert {each["tenant"] for each in seen if each["tenant"] is not None} == {"apples"}
        assert kinds(seen)["mesh"] == kinds(seen)["neighbour"] == kinds(seen)["route"] == 0
        assert kinds(seen)["lane"] >= 1
        async with place.client("bananas", "A") as bob:
            with pytest.raises(LinkDetachedError, match="not permitted"):  # the types are not known there
                async with bob.sender(f"{ADDRESS}@C"):
                    pass
            async with bob.requester(f"{ADDRESS}@A") as own:
                assert kinds(rows(await own.request(asked()))).keys() == {"link"}


async def test_a_settled_request_is_answered_to_its_tenant(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with (
        mesh(policy(tmp_path)) as place,
        place.client("apples") as ann,
        ann.receiver(None) as answers,
        ann.sender(ADDRESS) as sender,
        place.client("bananas") as bob,
        bob.receiver("quiet"),
    ):
        request = asked(entityType="address")
        request.reply_to = answers.address
        await sender.send(request, settled=True)
        seen = rows((await answers.receive()).message)
        assert {each["tenant"] for each in seen} == {"apples"}


async def test_an_answer_reaches_no_node_of_another_tenant(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with (
        mesh(policy(tmp_path)) as place,
        place.client("apples") as ann,
        ann.sender(ADDRESS) as sender,
        place.client("bananas") as bob,
        bob.receiver(None) as dynamic,
        bob.receiver("q") as named,
        bob.requester(ADDRESS) as requests,
    ):
        assert dynamic.address is not None
        for address in (dynamic.address, "q"):
            request = asked()
            request.reply_to = address
            await sender.send(request)
        await requests.request(asked())
        for receiver in (dynamic, named):
            with trio.move_on_after(5):
                pytest.fail(f"{await receiver.receive()} came")


@given(st.lists(st.integers(0, 2**48 - 1), max_size=50, unique=True), st.binary(min_size=16, max_size=16))
def test_numbers_that_differ_differ_in_a_view(numbers: list[int], key: bytes) -> None:
    shown = [Numbers(key).of(each, "link") for each in numbers]
    assert len(set(shown)) == len(numbers)
    assert all(0 <= each < 2**48 for each in shown)


def test_a_link_and_a_connection_of_the_same_number_have_different_ones_in_a_view() -> None:
    numbers = Numbers(bytes(16))
    assert all(numbers.of(each, "link") != numbers.of(each, "connection") for each in range(1000))


def test_numbers_in_a_view_do_not_tell_their_order() -> None:
    shown = [Numbers(bytes(16)).of(each, "link") for each in range(1000)]
    rising = sum(one < other for one, other in pairwise(shown))
    assert 400 < rising < 600
    assert min(abs(one - other) for one, other in pairwise(shown)) > 2**24


# ---------------------------------------------------------------------------------------------------------- the judge

WORDS = ("queue", "topic/a", "topic/b")
ACTION = st.tuples(
    st.sampled_from("ABC"),
    st.sampled_from(TENANTS[1:]),
    st.sampled_from(["send", "receive", "ask", "stray", "dynamic"]),
)
MASKED = {"name", "identity", "number", "connection", "maker", "container_id", "address"}
MASKED |= {"octets", "octets_in", "octets_out"}  # message-ids of the clients go on from run to run


async def act(stack: AsyncExitStack, place: Place, router: str, tenant: str, action: str, number: int) -> None:
    """Let one client of a tenant do something, and stay. Many of its names have the name of its tenant."""
    client = await stack.enter_async_context(place.client(tenant, router, id=f"{tenant}-id-{number}"))
    address = WORDS[number % len(WORDS)] if number % 2 else f"{tenant}-{WORDS[number % len(WORDS)]}"
    try:
        with trio.move_on_after(1):
            if action == "receive":
                await stack.enter_async_context(client.receiver(address, name=f"{tenant}-link-{number}"))
            elif action == "dynamic":
                await stack.enter_async_context(client.receiver(None, name=f"{tenant}-link-{number}"))
            elif action == "send":
                sender = await stack.enter_async_context(client.sender(address))
                await sender.send(tenant, settled=True)
            elif action == "stray":  # to names that the others use, too
                sender = await stack.enter_async_context(client.sender(None))
                for word in WORDS:
                    await sender.transfer(Message(tenant, to=word))
            else:
                requests = await stack.enter_async_context(client.requester(f"{ADDRESS}@{'ABC'[number % 3]}"))
                await requests.request(asked())
    except (AmqpMeshError, OutcomeError):
        pass  # not every tenant has each right


def told(found: list[dict[str, Any]]) -> list[str]:
    """Return rows without what differs from run to run: times, and names that are random.

    The credit of `$management` is shared by all that ask, as the router's time is.
    """
    return sorted(
        str(
            {
                name: value
                for name, value in each.items()
                if name not in MASKED
                and not isinstance(value, float)
                and not (name == "credit" and str(each["address"]).startswith(ADDRESS))
            }
        )
        for each in found
    )


async def watched(rules: PolicyConfig, actions: list[tuple[str, str, str]]) -> tuple[list[str], dict[str, bytes]]:
    """Return what a client of `apples` sees at all routers after some actions, and all octets that came to tenants."""
    async with mesh(rules, "ABC") as place, AsyncExitStack() as stack:
        for number, (router, tenant, action) in enumerate(actions):
            if tenant:
                await act(stack, place, router, tenant, action, number)
            else:
                await trio.sleep(1)
        await trio.sleep(1)
        answers: list[str] = []
        ann = await stack.enter_async_context(place.client("apples", "A", id="apples-watcher"))
        for router in "ABC":
            requests: Requester = await stack.enter_async_context(ann.requester(f"{ADDRESS}@{router}"))
            answers += told(rows(await requests.request(asked())))
        came = {url: bytes(octets) for url, octets in place.roads.came.items() if "127.0.0.1" not in url}
        await stack.aclose()
    return answers, came


@settings(
    max_examples=4, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    actions=st.lists(ACTION, min_size=4, max_size=9),
    bananas=st.sampled_from([["read"], ["write"], ["link"], []]),
)
def test_nothing_of_another_tenant_reaches_a_peer(
    tmp_path: Path, actions: list[tuple[str, str, str]], bananas: list[str]
) -> None:
    rules = policy(tmp_path, bananas=bananas)
    alone = [(router, tenant if tenant == "apples" else "", action) for router, tenant, action in actions]

    async def look(actions: list[tuple[str, str, str]]) -> tuple[list[str], dict[str, bytes]]:
        return await watched(rules, actions)

    both, came = trio.run(look, actions, clock=MockClock(autojump_threshold=0))
    without, _ = trio.run(look, alone, clock=MockClock(autojump_threshold=0))
    assert both == without, "what others do changes no row and no count"
    assert b"apples" in came["amqp://apples.a.example:5672"]
    for url, octets in came.items():
        tenant = url.split("//")[1].split(".")[0]
        others = [each for each in TENANTS[1:] if each != tenant and each.encode() in octets]
        assert not others, url
