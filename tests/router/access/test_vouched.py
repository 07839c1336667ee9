"""Clients that ask at another router: what their own router says of them, and what the other one believes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from amqpmesh import Connection, ListenerConfig, MeshConfig, RejectedError
from amqpmesh.policies.access import Peer
from amqpmesh.router.amqp.codec.types import ULong
from amqpmesh.router.config.connector import PasswordConfig
from amqpmesh.router.config.policy_file import PolicyConfig
from amqpmesh.router.config.users import add_user
from amqpmesh.router.delivery.vouches import VOUCH
from amqpmesh.router.http.visitors import Visitor
from amqpmesh.router.management.queries import entities_of, query
from amqpmesh.router.management.service import ADDRESS
from amqpmesh.router.management.trace import events_request, start_request
from amqpmesh.router.message.content import Message
from amqpmesh.router.runtime.http_elsewhere import Elsewhere
from amqpmesh.topology.simulation.mesh import CLIENTS, Mesh
from tests.support.data.tokens import SECRET, named_key, shared_access
from tests.support.tasks.until import until
from tests.support.worlds.audited import Audited

CERTIFIED = pytest.mark.mesh(
    certificates=30.0, membership=MeshConfig(insecure=True, hello=5.0, hold=15.0, lane_idle=1.0)
)
INSECURE = pytest.mark.mesh(membership=MeshConfig(insecure=True, lane_idle=1.0))
POLICY = """
[[group]]
name = "operators"
users = ["ops-*"]
may = ["dynamic", "container"]
manage = ["write"]

[[group]]
name = "readers"
users = ["ops-*", "guest"]
send = ["answers/${user}", "q"]
receive = ["answers/#", "q"]
may = ["dynamic", "container", "anonymous"]
manage = ["read"]

[[group]]
name = "token"
users = ["boss"]
manage = ["write"]
"""


def status(answer: Message) -> Any:
    return answer.application_properties["statusCode"]


class World:
    """A line of routers A, B and C with one policy. C believes A in changes; B believes nobody."""

    def __init__(self, mesh: Mesh, folder: Path) -> None:
        self.mesh = mesh
        self.folder = folder
        self.users = folder / "users.toml"
        for name in ("ops-1", "guest"):
            add_user(self.users, name, "secret", 4096)

    async def start(self, policy: str = POLICY) -> None:
        """Start the routers."""
        file = self.folder / "policy.toml"
        file.write_text(policy)
        secret = self.folder / "secret"
        secret.write_bytes(SECRET)
        key = named_key(keys=(PasswordConfig(file=secret),), scopes=("tag:monitoring", "configure:*/*"))
        for each in "ABC":
            vouch = ("A",) if each == "C" else ()
            await self.mesh.router(each, policy=PolicyConfig(file=file, vouch=vouch), token_keys=(key,))
        self.mesh.link("A", "B")
        self.mesh.link("B", "C")
        for each in "ABC":
            self.listen(each)
        await self.mesh.settled()

    def listen(self, router: str, **settings: Any) -> None:
        """Let clients of a router log in."""
        listener = ListenerConfig(
            url="amqp://127.0.0.1:5672", name="in", sasl=("SCRAM-SHA-256",), users=self.users, **settings
        )
        self.mesh[router].serve(CLIENTS, listener)

    @asynccontextmanager
    async def client(self, router: str, user: str) -> AsyncIterator[Connection]:
        """Connect a client as a user."""
        async with self.mesh.connect(router, user=user, password="secret") as client:
            yield client

    def vouches(self, router: str) -> int:
        """Return how many vouches a router has given."""
        vouching = self.mesh[router].router._started().context.vouching
        return 0 if vouching is None else vouching._number


@pytest.fixture
async def world(mesh: Mesh, tmp_path: Path) -> World:
    made = World(mesh, tmp_path)
    await made.start()
    return made


async def ask(client: Connection, router: str, request: Message) -> Any:
    async with client.requester(f"{ADDRESS}@{router}") as management:
        return status(await management.request(request))


async def a_change(world: World, router: str) -> Message:
    """Return a request to change a cost that a router has."""
    told = world.mesh[router].statistics()
    neighbour = told.neighbours[0]
    return Message(
        {"cost": 7},
        application_properties={"operation": "UPDATE", "identity": f"neighbour/{neighbour.connection}"},
    )


@CERTIFIED
async def test_a_router_believes_others_for_reading_and_those_that_it_names_for_changes(world: World) -> None:
    async with world.client("A", "ops-1") as client:
        for router, expected in (("B", 403), ("C", 200), ("C", 200)):
            assert await ask(client, router, query("org.amqpmesh.router")) == 200
            assert await ask(client, router, await a_change(world, router)) == expected
    assert world.mesh["C"].statistics().neighbours[0].cost == 7
    (line, *_) = world.mesh.log.find("cost changed")
    assert "router=A" in str(line)
    assert "user=ops-1" in str(line)


@CERTIFIED
async def test_the_audit_log_names_the_client_of_another_router_and_the_router_that_vouches_for_it(
    world: World,
) -> None:
    audited = {each: Audited(world.mesh[each].router._started()) for each in "BC"}
    async with world.client("A", "ops-1") as client:
        for router in "BC":
            await ask(client, router, await a_change(world, router))
    (changed,) = audited["C"].lines("cost changed")
    told = {name: changed[name] for name in ("source", "via", "user", "groups", "to")}
    assert told == {
        "source": "management",
        "via": "A",
        "user": "ops-1",
        "groups": ["operators", "readers"],
        "to": 7,
    }
    (refused,) = audited["B"].lines("request refused")
    assert (refused["via"], refused["user"], refused["operation"]) == ("A", "ops-1", "UPDATE")


@CERTIFIED
async def test_a_tenant_removes_its_own_connections_at_routers_that_believe_its_own(mesh: Mesh, tmp_path: Path) -> None:
    world = World(mesh, tmp_path)
    await world.start(
        "".join(
            f'[[tenant]]\nname = "{tenant}"\nmatch = [{{ user = "{user}" }}]\n[[group]]\ntenant = "{tenant}"\n'
            'name = "all"\nreceive = ["q"]\nmay = ["dynamic", "container"]\nmanage = ["write"]\n'
            for tenant, user in (("red", "ops-1"), ("blue", "guest"))
        )
    )
    async with world.client("A", "ops-1") as client, AsyncExitStack() as stack:
        for router, expected in (("B", 403), ("C", 204)):
            for user in ("ops-1", "guest"):
                await stack.enter_async_context(world.client(router, user))
            async with client.requester(f"{ADDRESS}@{router}") as management:
                (own,) = entities_of(await management.request(query("connection")))
                there = {each.number: each.tenant for each in mesh[router].statistics().connections if each.tenant}
                for identity in (own["identity"], *(f"connection/{number}" for number in there)):
                    properties = {"operation": "DELETE", "identity": identity}
                    answer = status(await management.request(Message(application_properties=properties)))
                    assert answer == (expected if identity == own["identity"] else 404)
                await until(
                    lambda router=router, left=2 - (expected == 204): tenants(mesh, router) == ["blue", "red"][:left]
                )


def tenants(mesh: Mesh, router: str) -> list[str]:
    return sorted(each.tenant for each in mesh[router].statistics().connections if each.tenant)


@CERTIFIED
async def test_a_client_without_the_right_changes_nothing_at_a_router_that_believes_its_own(world: World) -> None:
    async with world.client("A", "guest") as client:
        assert await ask(client, "C", query("org.amqpmesh.router")) == 200
        assert await ask(client, "C", await a_change(world, "C")) == 403


@CERTIFIED
async def test_tables_of_the_configuration_change_where_the_router_is_believed(world: World) -> None:
    properties = {"operation": "CREATE", "type": "address-pattern", "name": "news/#"}
    for user, answers in (("ops-1", {"B": 403, "C": 201}), ("guest", {"B": 403, "C": 403})):
        async with world.client("A", user) as client:
            for router, expected in answers.items():
                assert await ask(client, router, Message({}, application_properties=dict(properties))) == expected
            # What is in force is told to those who may read everything.
            shown = Message(None, application_properties={"operation": "CONFIG", "type": "router"})
            assert await ask(client, "C", shown) == 200
    assert [each.pattern for each in world.mesh["C"].router.config.addresses] == ["news/#"]
    assert world.mesh["B"].router.config.addresses == ()


@CERTIFIED
async def test_a_listener_that_permits_changes_is_vouched_for(world: World) -> None:
    world.listen("A", manage=True)
    async with world.client("A", "guest") as client:
        assert await ask(client, "C", await a_change(world, "C")) == 200
        assert await ask(client, "B", await a_change(world, "B")) == 403


@CERTIFIED
async def test_scopes_of_a_token_are_elsewhere_what_they_are_here_and_no_group_of_the_same_name(world: World) -> None:
    listener = ListenerConfig(url="amqp://127.0.0.1:5672", name="in", sasl=("ANONYMOUS",), cbs=True)
    world.mesh["A"].serve(CLIENTS, listener)
    token = shared_access(world.mesh["A"].router._started().context.wall_clock() + 60)
    properties = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": "x"}
    async with world.mesh.connect("A") as client:
        async with client.sender("$cbs") as cbs:
            await cbs.send(Message(token, application_properties=properties))
        assert await ask(client, "A", query("org.amqpmesh.router")) == 200
        assert await ask(client, "A", await a_change(world, "A")) == 403
        for router in "BC":
            assert await ask(client, router, query("org.amqpmesh.router")) == 200
            assert await ask(client, router, await a_change(world, router)) == 403
    assert not world.mesh.log.find("vouch not believed")


@CERTIFIED
async def test_a_router_in_between_is_not_believed_in_what_the_first_one_says(world: World) -> None:
    async with world.client("B", "ops-1") as client:
        assert await ask(client, "C", await a_change(world, "C")) == 403


@INSECURE
async def test_a_mesh_without_certificates_vouches_for_nobody(world: World) -> None:
    async with world.client("A", "ops-1") as client:
        assert await ask(client, "C", query("org.amqpmesh.router")) == 200
        assert await ask(client, "C", await a_change(world, "C")) == 403
    assert world.vouches("A") == 0


@CERTIFIED
@pytest.mark.parametrize("router", ["A", "C"])
async def test_a_client_cannot_bring_a_vouch_of_its_own(world: World, router: str) -> None:
    """The annotation is taken away at the router that the client connects to, whatever is in it."""
    seen: list[bytes] = []
    vouching = world.mesh["C"].router._started().context.vouching
    assert vouching is not None
    believe = vouching.believe

    def note(data: bytes, digest: bytes) -> Any:
        seen.append(data)
        return believe(data, digest)

    vouching.believe = note  # type: ignore[method-assign]
    async with world.client("A", "ops-1") as client:
        assert await ask(client, "C", await a_change(world, "C")) == 200
    (genuine,) = seen
    async with world.client(router, "guest") as client:
        request = await a_change(world, "C")
        request.delivery_annotations = {VOUCH: genuine}
        assert await ask(client, "C", request) == 403
    assert seen[1:].count(genuine) == 0


@CERTIFIED
@pytest.mark.parametrize("annotation", [ULong(2**40), "x", b"x"])
async def test_a_router_that_sends_anything_in_place_of_a_vouch_is_not_believed(
    world: World, annotation: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    vouching = world.mesh["A"].router._started().context.vouching
    assert vouching is not None
    monkeypatch.setattr(vouching, "vouch", lambda *_: annotation)
    async with world.client("A", "ops-1") as client:
        assert await ask(client, "C", await a_change(world, "C")) == 403
    assert len(world.mesh.log.find("vouch not believed")) == 1
    assert not world.mesh.log.find("internal error")


@CERTIFIED
async def test_an_answer_may_go_where_the_asking_client_may_send(world: World) -> None:
    async with (
        world.client("A", "guest") as client,
        client.receiver("answers/guest") as answers,
        client.sender(f"{ADDRESS}@C") as sender,
    ):
        request = query("org.amqpmesh.router")
        request.reply_to = "answers/guest"
        await sender.send(request)
        assert status((await answers.receive()).message) == 200
        request.reply_to = "answers/ops-1"
        with pytest.raises(RejectedError):
            await sender.send(request)


@INSECURE
async def test_an_answer_to_an_unknown_client_leaves_the_mesh_by_no_invented_name(world: World) -> None:
    async with world.client("A", "guest") as client, client.sender(f"{ADDRESS}@C") as sender:
        request = query("org.amqpmesh.router")
        for name in ("$dynamic/x@outside", "q", "$dynamic/x/q@outside"):
            request.reply_to = name
            with pytest.raises(RejectedError):
                await sender.send(request)
        assert await ask(client, "C", query("org.amqpmesh.router")) == 200


@CERTIFIED
async def test_a_request_in_several_frames_is_vouched_for(world: World) -> None:
    world.listen("A", max_frame_size=512)
    async with world.client("A", "ops-1") as client:
        request = await a_change(world, "C")
        request.application_properties["filler"] = "x" * 5_000
        assert await ask(client, "C", request) == 200


@CERTIFIED
async def test_other_deliveries_have_no_vouch_and_come_byte_for_byte(world: World) -> None:
    async with (
        world.client("C", "guest") as far,
        far.receiver("q") as receiver,
        world.client("A", "guest") as near,
    ):
        message = Message("hello", delivery_annotations={"x-opt-mine": 1, "x-opt-mesh-vouch": b"x"})
        async with near.sender("q") as sender, trio.open_nursery() as nursery:
            nursery.start_soon(sender.send, message)
            delivery = await receiver.receive()
            delivery.accept()
        expected = Message("hello", delivery_annotations={"x-opt-mine": 1}).encode()
        assert delivery.payload == expected
    assert world.vouches("A") == 0


@CERTIFIED
async def test_a_vouch_is_signed_by_a_certificate_that_was_renewed(world: World) -> None:
    world.mesh.renew("A")
    await trio.sleep(1)
    async with world.client("A", "ops-1") as client:
        assert await ask(client, "C", await a_change(world, "C")) == 200


async def traced(world: World) -> list[Any]:
    """Trace a message from A to C for a client at A; return the statuses of all routers, and their first events."""
    async with (
        world.client("C", "guest") as reader,
        reader.receiver("q") as received,
        world.client("A", "guest") as client,
        client.requester(ADDRESS) as management,
    ):
        begun = await management.request(start_request("q", follows_next=False, wait=30.0))
        (await received.receive()).accept()
        found = []
        for router in "ABC":
            async with client.requester(f"{ADDRESS}@{router}") as there:
                told = await there.request(events_request(begun.body["trace"], 0))
                found.append((status(told), told.body["events"][0]["event"] if told.body else None))
    return found


@CERTIFIED
async def test_a_message_is_traced_at_routers_that_the_client_is_vouched_for(world: World) -> None:
    assert await traced(world) == [(200, "begun"), (200, "came"), (200, "came")]


@INSECURE
async def test_a_message_is_traced_at_no_router_that_the_client_is_not_vouched_for(world: World) -> None:
    assert await traced(world) == [(200, "begun"), (403, None), (403, None)]


TENANTS = "".join(
    f"""
[[tenant]]
name = "{tenant}"
match = [{{ user = "{user}" }}]
[[group]]
tenant = "{tenant}"
name = "all"
users = ["{user}"]
send = ["#"]
receive = ["#"]
may = ["dynamic", "container"]
manage = ["read"]
"""
    for tenant, user in (("red", "guest"), ("blue", "ops-1"))
)


@CERTIFIED
async def test_a_tenant_follows_its_own_messages_at_all_routers(mesh: Mesh, tmp_path: Path) -> None:
    world = World(mesh, tmp_path)
    await world.start(TENANTS)
    assert await traced(world) == [(200, "begun"), (200, "came"), (200, "came")]


@CERTIFIED
async def test_a_tenant_follows_its_own_messages_at_all_routers_by_http(mesh: Mesh, tmp_path: Path) -> None:
    world = World(mesh, tmp_path)
    await world.start(TENANTS)
    node = mesh["A"].router
    elsewhere = Elsewhere(node._started(), node._management)
    policy = node._started().context.policy
    assert policy is not None
    visitors = {}
    for user in ("guest", "ops-1"):
        admitted = policy.admit(Peer(container_id="", user=user))
        assert admitted is not None
        fields = {"user": user, "peer": "10.0.0.1", "groups": ("all",)}
        visitors[user] = Visitor.of(admitted.peer.tenant, admitted.rights, fields, may_write=False)
    async with (
        world.client("C", "guest") as reader,
        reader.receiver("q") as received,
        world.client("A", "guest") as client,
        client.requester(ADDRESS) as management,
    ):
        begun = await management.request(start_request("q", follows_next=False, wait=30.0))
        (await received.receive()).accept()
        asked = events_request(begun.body["trace"], 0)
        for router in "BC":
            told = await elsewhere.ask(router, asked, visitors["guest"])
            assert (status(told), told.body["router"], told.body["events"][0]["event"]) == (200, router, "came")
            # For another tenant there is no such trace.
            assert status(await elsewhere.ask(router, asked, visitors["ops-1"])) == 404
    assert node._started().context.on_behalf == {}
