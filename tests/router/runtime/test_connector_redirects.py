"""Connectors that peers redirect: destinations, refusals, and logs (§2.8.16)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.sasl.mechanisms import MIN_ITERATIONS
from amqpmesh.router.config.file import ConnectorConfig, ListenerConfig, MeshConfig, PasswordConfig, PlaceConfig
from amqpmesh.router.config.users import add_user
from amqpmesh.router.io.dns import Server
from amqpmesh.router.runtime.router import Router
from amqpmesh.router.statistics.configured import ConnectorState
from tests.support.peers.library_client import URL, Roads
from tests.support.tasks.until import until
from tests.support.worlds.connectors import connecting, container, told
from tests.support.worlds.sockets import EITHER_WAY

pytestmark = EITHER_WAY

B = "amqp://b.example:5672"
C = "amqp://c.example:5672"


def sending_to(**place: Any) -> ListenerConfig:
    return ListenerConfig(url="amqp://127.0.0.1:0", redirect=PlaceConfig(**place))


def tried(roads: Roads) -> list[str]:
    return [url for _, url in roads.tries]


async def until_connected(router: Router) -> None:
    await until(lambda: told(router).state is ConnectorState.CONNECTED and told(router).redirected_from)


async def test_a_connector_goes_where_it_is_sent_and_names_the_host_there(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    roads = Roads(nursery)
    async with (
        Router(id="A") as first,
        Router(id="B") as far,
        connecting(roads, container(redirects=["*.example", "10.0.0.7"], hostname="tenant"), id="N") as near,
    ):
        roads.lead_to(far, "amqp://10.0.0.7:5673")
        roads.lead_to(first, listener=sending_to(hostname="b.example", network_host="10.0.0.7", port=5673))
        began = trio.current_time()
        await until_connected(near)
        assert trio.current_time() - began < 1
        (come,) = far.statistics().connections
        assert (come.container_id, come.hostname) == ("N", "b.example")
        assert told(near).url == "amqp://10.0.0.7:5673"
        assert told(near).redirected_from == URL
        assert told(near).failures == 0
        assert tried(roads) == [URL, "amqp://10.0.0.7:5673"]
    said = 'redirect followed connector=broker url=amqp://router.example:5672 to="amqp://10.0.0.7:5673 as b.example"'
    assert said in caplog.messages
    for router in (first, far, near):
        assert router.statistics().is_empty


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ({"hostname": "evil.example"}, "the host 'evil.example' is not allowed"),
        ({"hostname": "b.example", "network_host": "10.0.0.1"}, "the host '10.0.0.1' is not allowed"),
        ({"hostname": "evil.example", "network_host": "b.example"}, "the host 'evil.example' is not allowed"),
        ({"hostname": "router.example"}, "redirects lead in a circle, back to amqp://router.example:5672"),
    ],
)
async def test_a_place_that_is_not_allowed_is_not_even_connected_to(
    place: dict[str, str], why: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    async with Router(id="A") as first, connecting(roads, container(redirects=["b.example"])) as near:
        roads.lead_to(first, listener=sending_to(**place))
        await trio.sleep(60)
        assert set(tried(roads)) == {URL}
        # With the same pauses as after failures.
        assert 8 <= len(roads.tries) <= 20
        assert told(near).state is ConnectorState.WAITING
        assert told(near).reason == (
            f"the peer closed the connection (amqp:connection:redirect): the container moved; not followed: {why}"
        )
        assert told(near).redirected_from is None
    assert first.statistics().is_empty


async def test_circles_and_long_rows_end(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    roads = Roads(nursery)
    async with Router(id="A") as first, connecting(roads) as near:
        for number in range(9):
            url = f"amqp://router.example:{number}" if number else URL
            roads.lead_to(first, url, sending_to(port=number + 1))
        await until(lambda: told(near).reason)
        assert "more than the 5 in a row" in (told(near).reason or "")
        assert tried(roads) == [URL, *(f"amqp://router.example:{number}" for number in range(1, 6))]
        roads.lead_to(first, "amqp://router.example:2", sending_to(port=1))
        await until(lambda: "circle" in (told(near).reason or ""))


async def test_after_a_loss_it_begins_with_its_urls(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    roads = Roads(nursery)
    async with (
        Router(id="A") as first,
        Router(id="B") as far,
        Router(id="C") as other,
        connecting(roads, container(URL, C, redirects=["b.example"])) as near,
    ):
        roads.lead_to(first, listener=sending_to(hostname="b.example"))
        roads.lead_to(far, B)
        for _ in range(2):
            await until_connected(near)
            await trio.sleep(6)
            await roads.cut()
            await until(lambda: told(near).state is not ConnectorState.CONNECTED)
        await until_connected(near)
        assert tried(roads) == [URL, B] * 3
        # An unreachable place is skipped, like an unreachable URL.
        roads.lead_to(other, C)
        roads.close(B)
        await trio.sleep(6)
        await roads.cut()
        await until(lambda: told(near).state is ConnectorState.CONNECTED)
        assert tried(roads)[6:] == [URL, B, C]
        assert (told(near).url, told(near).redirected_from) == (C, None)


@pytest.mark.parametrize("named", [False, True], ids=["by the peer", "by the configuration"])
async def test_a_peer_that_a_redirect_names_does_not_get_the_password_in_clear(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    users = tmp_path / "users.toml"
    # More iterations would be hashed in a thread, and the virtual clock does not wait for threads.
    add_user(users, "ada", "secret", MIN_ITERATIONS)
    monkeypatch.setenv("PASSWORD", "secret")
    home, there = "amqp://127.0.0.1:5672", "amqp://127.0.0.1:5673"
    strong = replace(sending_to(port=5673), sasl=("SCRAM-SHA-256",), users=users)
    weak = ListenerConfig(url="amqp://127.0.0.1:0", sasl=("PLAIN",), users=users, insecure=True)
    urls = (home, there) if named else (home,)
    roads = Roads(nursery)
    async with (
        Router(id="A") as first,
        Router(id="B") as far,
        connecting(roads, container(*urls, user="ada", password=PasswordConfig(env="PASSWORD"))) as near,
    ):
        roads.lead_to(first, home, strong)
        roads.lead_to(far, there, weak)
        if named:
            await until_connected(near)
            (come,) = far.statistics().connections
            assert (come.user, come.mechanism) == ("ada", "PLAIN")
        else:
            await until(lambda: told(near).failures)
            assert told(near).reason == (
                "not let in: none of SCRAM-SHA-512, SCRAM-SHA-256, SCRAM-SHA-1 is offered; where a redirect leads, "
                "PLAIN is used only under TLS with a verified certificate"
            )


@pytest.mark.parametrize(
    ("place", "allowed"),
    [
        ({"network_host": "c.example"}, True),
        ({"network_host": "c.example", "hostname": "example.org"}, True),
        ({"hostname": "c.example"}, False),
    ],
)
async def test_servers_of_a_domain_may_send_to_each_other_but_not_by_names_that_only_dns_says(
    place: dict[str, Any], allowed: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async def look_up(name: str) -> list[Server]:
        assert name == "_amqp._tcp.example.org"
        return [Server(priority, 0, 5672, f"{host}.example") for priority, host in enumerate("bc")]

    roads = Roads(nursery)
    async with (
        Router(id="A") as first,
        Router(id="C") as far,
        connecting(roads, container("amqp+srv://example.org"), look_up=look_up) as near,
    ):
        roads.lead_to(first, B, sending_to(**place))
        if allowed:
            roads.lead_to(far, C)
            await until_connected(near)
            (come,) = far.statistics().connections
            assert come.hostname == "example.org"
            assert (told(near).url, told(near).redirected_from) == (C, B)
        else:
            # An answer of DNS does not change the name that a certificate must have.
            await until(lambda: "the host 'c.example' is not allowed" in (told(near).reason or ""))


async def test_a_neighbour_may_send_to_another_router_of_the_mesh(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    local, other = "amqp://127.0.0.1:5672", "amqp://127.0.0.1:5673"
    insecure = MeshConfig(insecure=True)
    mesh = ListenerConfig(url="amqp://127.0.0.1:0", role="mesh")
    roads = Roads(nursery)
    connector = ConnectorConfig(url=local, redirects=("*",))
    async with (
        Router(id="A", mesh=insecure) as first,
        Router(id="B", mesh=insecure) as far,
        connecting(roads, connector, id="N", mesh=insecure) as near,
    ):
        moved = ListenerConfig(
            url="amqp://127.0.0.1:0", role="mesh", redirect=PlaceConfig(network_host="127.0.0.1", port=5673)
        )
        roads.lead_to(first, local, moved)
        roads.lead_to(far, other, mesh)
        await until(lambda: [each.router for each in near.statistics().neighbours if each.up])
        assert [each.router for each in near.statistics().neighbours] == ["B"]
        assert told(near).redirected_from == local
        # The peer shows no certificate. So redirects stay on this machine, even if all hosts are allowed.
        roads.lead_to(
            first,
            local,
            ListenerConfig(url="amqp://127.0.0.1:0", role="mesh", redirect=PlaceConfig(hostname="b.example")),
        )
        await roads.cut()
        await until(lambda: "on loopback only" in (told(near).reason or ""))
        assert set(tried(roads)) == {local, other}


async def test_a_router_that_ends_while_it_is_sent_on_ends_at_once(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async def ignore(stream: trio.abc.Stream) -> None:
        await trio.sleep_forever()

    roads = Roads(nursery)
    async with Router(id="A") as first:
        async with connecting(roads, container(redirects=["b.example"]), drain=0.0) as near:
            roads.lead_to(first, listener=sending_to(hostname="b.example"))
            roads.lead_to(ignore, B)
            await until(lambda: B in tried(roads))
            await wait_all_tasks_blocked()
            began = trio.current_time()
        assert trio.current_time() - began <= 2
        assert told(near).state is ConnectorState.ENDED
    assert first.statistics().is_empty
