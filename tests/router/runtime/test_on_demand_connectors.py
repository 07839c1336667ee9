"""Connections on demand to other containers, by whole routers in virtual time: at least once, whatever is cut."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from trio.testing import MockClock

from amqpmesh.router.amqp.errors import LinkDetachedError, LinkRedirectError
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Rejected
from amqpmesh.router.config.file import (
    AddressConfig,
    ConnectorConfig,
    ConnectorTlsConfig,
    ElsewhereConfig,
    ListenerConfig,
    MeshConfig,
    RedirectConfig,
    TlsConfig,
)
from amqpmesh.router.io.dns import NoServerError, Server
from amqpmesh.router.message.content import Message
from amqpmesh.router.message.outcomes import OutcomeError
from amqpmesh.router.runtime.router import Router
from amqpmesh.router.statistics.common import Reason
from amqpmesh.router.statistics.configured import ConnectorState, ContainerLinkState
from tests.support.peers.library_client import Roads, enter
from tests.support.tasks.until import until
from tests.support.worlds.cut_connections import Resending

FAR = "amqp://10.0.0.2:5672"
THIRD = "amqp://10.0.0.2:5673"
THERE = RedirectConfig(hostname="b.example", network_host="10.0.0.2", port=5672, address="there", follow="router")
ELSEWHERE = AddressConfig(pattern="elsewhere/#", redirect=THERE)

S = ContainerLinkState


def links(router: Router) -> Sequence[ContainerLinkState]:
    return [each.state for each in router.statistics().container_links]


@asynccontextmanager
async def two(
    nursery: trio.Nursery, *addresses: AddressConfig, there: Sequence[AddressConfig] = (), **settings: Any
) -> AsyncIterator[tuple[Router, Router, Roads]]:
    """Start a router that connects to another one on demand."""
    roads = Roads(nursery)
    async with Router(id="far", addresses=tuple(there), drain=1.0) as far:
        roads.lead_to(far, FAR)
        async with Router(
            id="near", addresses=addresses or (ELSEWHERE,), open_stream=roads.open, drain=1.0, **settings
        ) as near:
            yield near, far, roads


async def test_a_client_of_this_router_sends_and_receives_at_the_remote_node(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with two(nursery) as (near, far, roads):
        async with (
            far.receiver("there") as there,
            near.sender("elsewhere/a") as sender,
            trio.open_nursery() as sending,
        ):
            sending.start_soon(sender.send, "there and back")
            async with await there.receive() as message:
                assert message.body == "there and back"
        async with (
            near.receiver("elsewhere/b") as receiver,
            far.sender("there") as sender,
            trio.open_nursery() as sending,
        ):
            sending.start_soon(sender.send, "and back")
            async with await receiver.receive() as message:
                assert message.body == "and back"
        assert [url for _, url in roads.tries] == [FAR]
        (connector,) = near.statistics().connectors
        assert (connector.name, connector.role) == (f"{FAR} as b.example", "container")
        (connection,) = (each for each in far.statistics().connections if each.container_id == "near")
        assert (connection.hostname, connection.user) == ("b.example", None)
        await trio.sleep(70.0)
        told = near.statistics()
        assert told.connectors == ()
        assert told.container_links == ()
        assert told.addresses == ()
        assert {each.container_id for each in far.statistics().connections} <= {"in-process"}
    assert near.statistics().is_empty


async def test_what_is_sent_while_connections_are_cut_arrives_once_or_more_and_what_failed_may_have(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    traffic = Resending()
    moved = AddressConfig(pattern="*", redirect=RedirectConfig(network_host="10.0.0.2", port=5672, follow="router"))
    async with two(nursery, moved) as (near, far, roads):
        async with near.receiver("inbox", credit=10) as inbox, far.receiver("outbox", credit=10) as outbox:
            nursery.start_soon(traffic.receive, inbox, "inbox")
            nursery.start_soon(traffic.receive, outbox, "outbox")
            async with trio.open_nursery() as sending:
                sending.start_soon(traffic.send, far, "inbox")
                sending.start_soon(traffic.send, near, "outbox")
                for _ in range(5):
                    await trio.sleep(0.05)
                    await roads.cut()
                    await until(lambda: links(near) == [S.ATTACHED] * 2)
            await trio.sleep(1.0)
        for router in (near, far):
            await until(lambda router=router: not router.statistics().router.relays)  # type: ignore[misc]  # as it is now
    traffic.check()


async def test_a_place_that_is_not_reached_gives_no_credit_and_says_why_and_is_found_later(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with two(nursery) as (near, far, roads):
        roads.close(FAR)
        async with far.receiver("there") as there, near.sender("elsewhere/a") as sender:
            with trio.move_on_after(5.0) as limit:
                await sender.send("now")
            assert limit.cancelled_caught
            told = near.statistics()
            assert [each.reason for each in told.addresses] == [Reason.ELSEWHERE]
            (connector,) = told.connectors
            assert connector.state is ConnectorState.WAITING
            assert connector.reason == "Connection refused"
            roads.lead_to(far, FAR)
            async with trio.open_nursery() as sending:
                sending.start_soon(sender.send, "later")
                async with await there.receive() as message:
                    assert message.body == "later"


async def test_a_node_that_the_remote_container_refuses_is_refused_here(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    unavailable = AddressConfig(pattern="there", distribution="unavailable")  # type: ignore[arg-type]  # as in a file
    async with two(nursery, there=[unavailable]) as (near, _, _), near.sender("elsewhere/a") as sender:
        with pytest.raises(LinkDetachedError, match="does not take the link: the address is unavailable"):
            await sender.send("no")


# ------------------------------------------------------------------------------------------------- redirects of theirs


async def test_a_place_that_sends_the_router_on_is_followed(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    onwards = AddressConfig(pattern="there", redirect=RedirectConfig(port=5673, address="finally"))
    async with two(nursery, there=[onwards]) as (near, _, roads), Router(id="third") as third:
        roads.lead_to(third, THIRD)
        async with (
            third.receiver("finally") as receiver,
            near.sender("elsewhere/a") as sender,
            trio.open_nursery() as sending,
        ):
            sending.start_soon(sender.send, "at last")
            async with await receiver.receive() as message:
                assert message.body == "at last"
        assert [url for _, url in roads.tries] == [FAR, THIRD]


async def test_a_redirect_that_is_not_allowed_is_passed_on_to_the_client(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    onwards = AddressConfig(pattern="there", redirect=RedirectConfig(hostname="c.example", address="finally"))
    async with two(nursery, there=[onwards]) as (near, _, roads):
        async with near.sender("elsewhere/a") as sender:
            with pytest.raises(LinkRedirectError) as caught:
                await sender.send("no")
        assert (caught.value.hostname, caught.value.address) == ("c.example", "finally")
        assert [url for _, url in roads.tries] == [FAR]


async def test_two_routers_that_lead_to_each_other_send_nothing_round(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)

    def leads(host: str) -> AddressConfig:
        return AddressConfig(pattern="x", redirect=RedirectConfig(network_host=host, port=5672, follow="router"))

    one = Router(id="one", addresses=(leads("10.0.0.2"),), open_stream=roads.open)
    other = Router(id="other", addresses=(leads("10.0.0.1"),), open_stream=roads.open)
    async with one, other:
        roads.lead_to(one, "amqp://10.0.0.1:5672")
        roads.lead_to(other, "amqp://10.0.0.2:5672")
        async with one.sender("x") as sender, one.receiver("x"), other.receiver("x"):
            with trio.move_on_after(30.0) as limit:
                await sender.send("round")
            assert limit.cancelled_caught
        assert one.statistics().router.deliveries_in == 0


# ------------------------------------------------------------------------------------------------------------- domains


@pytest.mark.parametrize("secure", [False, True])
async def test_a_domain_is_found_by_its_service_records_those_with_tls_first(
    nursery: trio.Nursery, autojump_clock: MockClock, secure: bool
) -> None:
    asked: list[str] = []

    async def look_up(name: str) -> list[Server]:
        asked.append(name)
        await trio.sleep(0.1)
        if name.startswith("_amqps") and not secure:
            raise NoServerError("DNS: no such name")
        return [Server(0, 0, 5673, "10.0.0.2")]

    elsewhere = ElsewhereConfig(domains=("*.example",))
    async with two(nursery, elsewhere=elsewhere, look_up=look_up) as (near, far, roads):
        roads.lead_to(far, THIRD)
        async with (
            far.receiver("orders") as there,
            near.sender(None) as anonymous,
            near.sender("orders@b.example") as sender,
        ):
            if secure:
                with trio.move_on_after(5.0):
                    await sender.send("no")
                assert roads.tries[0][1] == "amqps://10.0.0.2:5673"
                return
            async with trio.open_nursery() as sending:
                sending.start_soon(anonymous.send, Message("by to", to="orders@b.example"))
                sending.start_soon(sender.send, "by link")
                bodies = set()
                for _ in range(2):
                    async with await there.receive() as message:
                        bodies.add(message.body)
            assert bodies == {"by to", "by link"}
            assert asked[:2] == ["_amqps._tcp.b.example", "_amqp._tcp.b.example"]
            assert "b.example" in {each.hostname for each in far.statistics().connections}


async def test_no_domain_is_looked_for_that_the_configuration_does_not_name(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async def look_up(name: str) -> list[Server]:
        raise AssertionError(name)

    async with two(nursery, look_up=look_up) as (near, _, roads):
        with pytest.raises(LinkDetachedError, match="no container 'b.example' is known here"):
            await enter(near.sender("orders@b.example"))
        async with near.sender(None) as anonymous:
            with pytest.raises(OutcomeError):
                await anonymous.send(Message("no", to="orders@b.example"))
        assert roads.tries == []


# ------------------------------------------------------------------------------------------------------------ a mesh


@asynccontextmanager
async def beyond(
    nursery: trio.Nursery, *addresses: AddressConfig, there: Sequence[AddressConfig] = ()
) -> AsyncIterator[tuple[Router, Router]]:
    """Start a router of a mesh, in which another router connects to a third one on demand. Yields: it, the third."""
    mesh = MeshConfig(insecure=True)
    listener = ListenerConfig(url="amqp://127.0.0.1:0", role="mesh")
    async with two(nursery, *addresses, there=there, mesh=mesh) as (near, far, roads):
        roads.lead_to(near, "amqp://127.0.0.1:5670", listener)
        async with Router(
            id="other", mesh=mesh, drain=1.0, connectors=["amqp://127.0.0.1:5670"], open_stream=roads.open
        ) as other:
            await until(lambda: any(each.distance is not None for each in other.statistics().routes))
            yield other, far


async def test_messages_to_an_address_at_the_router_that_goes_there_come_from_all_of_its_mesh(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with beyond(nursery) as (other, far), far.receiver("there") as there, other.sender(None) as anonymous:
        sent = await anonymous.transfer(Message("by to", to="elsewhere/a@near"))
        async with await there.receive() as message:
            assert message.body == "by to"
        assert await sent.outcome() == Accepted()


@pytest.mark.parametrize("address", ["invoices", "invoices@near"])
async def test_an_address_of_its_own_pattern_is_reached_from_all_of_the_mesh(
    nursery: trio.Nursery, autojump_clock: MockClock, address: str
) -> None:
    invoices = AddressConfig(pattern="invoices", redirect=THERE)
    async with (
        beyond(nursery, invoices) as (other, far),
        far.receiver("there", credit=3) as there,
        other.sender(address) as sender,
    ):
        for _ in range(2):
            sent = await sender.transfer("there")
            (await there.receive()).reject("amqp:not-allowed", "so it is")
            assert isinstance(await sent.outcome(), Rejected)


async def test_receivers_at_other_routers_take_what_comes_from_there(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with (
        beyond(nursery) as (other, far),
        other.receiver("elsewhere/a@near") as receiver,
        far.sender("there") as sender,
        trio.open_nursery() as sending,
    ):
        sending.start_soon(sender.send, "back")
        async with await receiver.receive() as message:
            assert message.body == "back"


# ---------------------------------------------------------------------------------------------------- ending, and TLS


async def test_a_router_that_drains_waits_for_the_outcomes_of_what_is_elsewhere(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with two(nursery) as (near, far, _), far.receiver("there") as there:
        sender = near.sender("elsewhere/a")
        async with sender:
            sent = await sender.transfer("the last one")
            delivery = await there.receive()
            drained: list[bool] = []

            async def drain() -> None:
                drained.append(await near.drain())

            async with trio.open_nursery() as draining:
                draining.start_soon(drain)
                await trio.sleep(0.5)
                assert not drained
                delivery.accept()
            assert drained == [True]
            assert await sent.outcome() == Accepted()
    assert near.statistics().is_empty


@pytest.mark.parametrize("name", ["b.example", "c.example"])
async def test_over_tls_the_certificate_has_to_name_the_host_that_is_wanted(
    nursery: trio.Nursery, tmp_path: Path, name: str
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate = authority.issue_cert(name)
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "b.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "b.key")
    tls = TlsConfig(certificate=tmp_path / "b.pem", key=tmp_path / "b.key")
    # Whose authorities are believed, a connector that names the host says.
    known = ConnectorConfig(
        url="amqps://b.example:5671",
        name="known",
        role="container",
        redirects=("10.0.0.2",),
        tls=ConnectorTlsConfig(trust=tmp_path / "ca.pem"),
    )
    there = RedirectConfig(
        hostname="b.example", network_host="10.0.0.2", port=5673, address="there", follow="router", scheme="amqps"
    )
    addresses = (AddressConfig(pattern="elsewhere", redirect=there),)
    place = "amqps://10.0.0.2:5673 as b.example (known)"
    roads = Roads(nursery)
    async with Router(id="far") as far:
        roads.lead_to(far, "amqps://10.0.0.2:5673", ListenerConfig(url="amqps://127.0.0.1:0", tls=tls))
        near = Router(id="near", addresses=addresses, connectors=[known], open_stream=roads.open, drain=0.1)
        async with near, near.sender("elsewhere") as sender:
            if name == "b.example":
                async with far.receiver("there") as receiver, trio.open_nursery() as sending:
                    sending.start_soon(sender.send, "safe")
                    async with await receiver.receive() as message:
                        assert message.body == "safe"
            else:

                def reason() -> str:
                    told = {each.name: each.reason for each in near.statistics().connectors}
                    return told[place] or ""

                await until(lambda: reason().startswith("TLS: Hostname mismatch"))
