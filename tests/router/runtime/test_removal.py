"""Connections and links that are removed by `$management`: by operators, and by tenants their own alone."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.client.connect import Connection
from amqpmesh.router.client.requester import Requester
from amqpmesh.router.logs.event_log import event_of
from amqpmesh.router.management.requested_changes import remove
from amqpmesh.router.management.service import ADDRESS
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.runtime.router import Router
from tests.router.runtime.test_tenant_views import Place, asked, mesh, policy, rows, status
from tests.support.tasks.until import until
from tests.support.worlds.audited import Audited
from tests.support.worlds.network import Network


def mine(client: Connection, router: Router) -> Any:
    """Return the connection of a client as the router sees it; None: it is gone."""
    found = (each for each in router.statistics().connections if each.container_id == client.id)
    return next(found, None)


async def test_an_operator_closes_the_connection_of_a_client(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "amqpmesh.io")
    async with (
        mesh(policy(tmp_path, operator=["write:connection"])) as place,
        place.client("operator", id="root") as root,
        root.requester(ADDRESS) as management,
    ):
        audited = Audited(place.routers["A"]._started())
        client = place.client("apples", id="ann", reconnect=False)
        with pytest.raises(AmqpMeshError, match="removed by management"):
            async with client, client.receiver("q") as receiver:
                number = mine(client, place.routers["A"]).number
                answer = await management.request(asked("DELETE", identity=f"connection/{number}"))
                assert (status(answer), answer.body) == (204, {})
                await receiver.receive()
        assert mine(client, place.routers["A"]) is None
        assert status(await management.request(asked("DELETE", identity=f"connection/{number}"))) == 404
        (line,) = (each.getMessage() for each in caplog.records if event_of(each) == "connection removed")
        assert f"of=connection/{number} connection={mine(root, place.routers['A']).number} " in line
        (noted,) = audited.lines("connection removed")
        assert (noted["of"], noted["container"], noted["source"]) == (f"connection/{number}", "root", "management")


async def test_a_link_that_is_removed_comes_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with (
        mesh(policy(tmp_path)) as place,
        place.client("operator") as root,
        root.requester(ADDRESS) as management,
        place.client("apples", id="ann", reconnect=True) as ann,
        ann.receiver("q", name="in") as receiver,
        ann.sender("q") as sender,
    ):
        router = place.routers["A"]

        def number() -> int | None:
            return next((each.number for each in router.statistics().links if each.name == "in"), None)

        first = number()
        assert first is not None
        assert status(await management.request(asked("DELETE", identity=f"link/{first}"))) == 204
        await until(lambda: number() not in (None, first))
        await sender.send("x", settled=True)
        assert (await receiver.receive()).message.body == "x"


def test_a_link_that_is_detached_and_not_settled_ends(caplog: pytest.LogCaptureFixture) -> None:
    network = Network()
    receiver = network.client("in").receiver("q", name="in")
    network.client("out").send(network.clients[-1].sender("q"))
    receiver.detach(closed=False)
    network.run()
    (told,) = (each for each in snapshot(network.core).links if each.name == "in")
    assert (told.attached, told.unsettled) == (False, 1)
    remove(network.core, told, network.now)
    network.run()
    assert [each.name for each in snapshot(network.core).links if each.name == "in"] == []
    assert not network.core.context.in_flight
    with pytest.raises(LookupError, match="gone"):
        remove(network.core, told, network.now)
    network.leave()


async def test_what_no_client_has_opened_stays(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with (
        mesh(policy(tmp_path), "AB") as place,
        place.client("operator") as root,
        root.requester(ADDRESS) as management,
    ):
        router = place.routers["A"]
        async with router.receiver("inside"):
            told = router.statistics()
            (inside,) = (each for each in told.links if each.address == "inside")
            wires = [f"connection/{each.number}" for each in told.connections if each.role == "mesh"]
            assert wires
            for identity in (f"link/{inside.number}", f"connection/{inside.connection}", *wires):
                assert status(await management.request(asked("DELETE", identity=identity))) == 405
            assert {each.number for each in told.connections} == {
                each.number for each in router.statistics().connections
            }


@pytest.mark.parametrize("manage", [["read"], ["write:connection"], ["write:address", "read:link"]])
async def test_who_may_not_write_a_type_removes_nothing_of_it(
    manage: list[str], tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with (
        mesh(policy(tmp_path, apples=manage)) as place,
        place.client("apples", id="ann") as ann,
        ann.receiver("q", name="in"),
        ann.requester(ADDRESS) as management,
    ):
        assert status(await management.request(asked("DELETE", type="link", name="in"))) == 403
        assert any(each.name == "in" for each in place.routers["A"].statistics().links)


async def test_a_tenant_removes_the_connection_over_which_it_asks(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with mesh(policy(tmp_path, apples=["write"])) as place:
        ann = place.client("apples", id="ann", reconnect=False)
        with suppress(AmqpMeshError):
            async with ann, ann.requester(ADDRESS) as management:
                (row,) = rows(await management.request(asked(entityType="connection")))
                await management.request(asked("DELETE", identity=row["identity"]))
        await until(lambda: mine(ann, place.routers["A"]) is None)
        async with place.client("apples") as other, other.requester(ADDRESS) as management:
            assert len(rows(await management.request(asked(entityType="connection")))) == 1


# ---------------------------------------------------------------------------------------------------------- the judge


def everything(place: Place, clients: dict[Connection, str]) -> dict[tuple[str, int], str]:
    """Return the tenant of all that is there, by type and the router's own number."""
    told = place.routers["A"].statistics()
    tenants = {each.id: tenant for each, tenant in clients.items()}
    owners = {each.number: tenants.get(each.container_id, "") for each in told.connections}
    return {
        **{("connection", number): owner for number, owner in owners.items()},
        **{("link", each.number): owners[each.connection] for each in told.links},
    }


async def own_rows(management: Requester, container_id: str) -> set[str]:
    """Return the identities of a client's own connection and links, in its view."""
    found = rows(await management.request(asked()))
    (number,) = (each["number"] for each in found if each["container_id"] == container_id)
    return {each["identity"] for each in found if number in (each["connection"], each["number"])}


@pytest.mark.parametrize("seed", range(4))
async def test_a_tenant_removes_what_is_its_own_and_nothing_else(
    seed: int, tmp_path: Path, autojump_clock: MockClock
) -> None:
    random = Random(seed)
    removed = 0
    async with mesh(policy(tmp_path, apples=["write"], bananas=["write"])) as place, AsyncExitStack() as stack:
        clients: dict[Connection, str] = {}

        async def enter(tenant: str, name: str) -> Connection:
            stack.enter_context(suppress(AmqpMeshError))
            client = await stack.enter_async_context(place.client(tenant, id=name, reconnect=False))
            clients[client] = tenant
            return client

        for number in range(8):
            client = await enter(random.choice(["apples", "bananas", "operator"]), f"client-{number}")
            for each in range(random.randrange(3)):
                stack.enter_context(suppress(AmqpMeshError))
                await stack.enter_async_context(client.receiver("q", name=f"link-{number}-{each}"))
        writer, other = await enter("apples", "writer"), await enter("bananas", "other")
        management = await stack.enter_async_context(writer.requester(ADDRESS))
        theirs = await stack.enter_async_context(other.requester(ADDRESS))
        kept = await own_rows(management, "writer")
        seen = [each["identity"] for each in rows(await management.request(asked()))]
        foreign = [each["identity"] for each in rows(await theirs.request(asked()))]
        for _ in range(40):
            before = everything(place, clients)
            real = [f"{kind}/{number}" for kind, number in before]
            identity = random.choice(random.choice([seen, foreign, real]))
            if identity in kept:
                continue
            answer = await management.request(asked("DELETE", identity=identity))
            await wait_all_tasks_blocked()  # a connection that is closed is there until its peer has closed it, too
            gone = before.keys() - everything(place, clients).keys()
            assert {before[each] for each in gone} <= {"apples"}, (identity, gone)
            assert (status(answer) == 204) is bool(gone), (identity, status(answer))
            removed += bool(gone)
    assert removed
