"""Servers of a domain, and their order (RFC 2782)."""

from __future__ import annotations

import random
from collections import Counter

import dns.asyncresolver
import dns.message
import dns.rrset
import pytest
import trio
from dns.exception import DNSException
from dns.resolver import NXDOMAIN, LifetimeTimeout
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from amqpmesh.router.config.urls import Endpoint, Service
from amqpmesh.router.io.dns import LOOK_UP_TIME, NoServerError, Server, endpoints, look_up, ordered

SERVICE = Service("amqps", "example.org")
SERVERS = st.builds(
    Server, st.integers(0, 65535), st.integers(0, 65535), st.integers(1, 65535), st.sampled_from(["a", "b", "c"])
)


async def test_a_domain_is_asked_for_its_service_and_its_servers_come_by_priority() -> None:
    asked = []

    async def find(name: str) -> list[Server]:
        asked.append(name)
        return [Server(20, 0, 5671, "b.example"), Server(10, 0, 5671, "a.example"), Server(30, 0, 1, "c.example")]

    assert await endpoints(SERVICE, find) == [
        Endpoint("amqps", "a.example", 5671),
        Endpoint("amqps", "b.example", 5671),
        Endpoint("amqps", "c.example", 1),
    ]
    assert asked == ["_amqps._tcp.example.org"]


@pytest.mark.parametrize("servers", [[], [Server(0, 0, 0, ".")], [Server(0, 0, 0, "")]])
async def test_a_domain_without_the_service_has_no_server(servers: list[Server]) -> None:
    async def find(name: str) -> list[Server]:
        return servers

    with pytest.raises(OSError, match=r"DNS has no server for _amqps\._tcp\.example\.org"):
        await endpoints(SERVICE, find)


async def test_nobody_waits_for_ever_for_dns(autojump_clock: MockClock) -> None:
    async def find(name: str) -> list[Server]:
        await trio.sleep_forever()
        raise AssertionError("it does not end")

    with pytest.raises(OSError, match="DNS does not answer"):
        await endpoints(SERVICE, find)
    assert trio.current_time() <= 2 * LOOK_UP_TIME


@given(st.lists(SERVERS, max_size=8), st.integers())
def test_no_server_is_lost_or_tried_before_one_of_a_lesser_priority(servers: list[Server], seed: int) -> None:
    found = ordered(servers, random.Random(seed))
    assert Counter(found) == Counter(servers)
    assert [each.priority for each in found] == sorted(each.priority for each in servers)


def test_among_equals_a_greater_weight_is_more_often_first() -> None:
    servers = [Server(1, 1, 1, "light"), Server(1, 9, 1, "heavy"), Server(1, 0, 1, "none")]
    chance = random.Random(7)
    first = Counter(ordered(servers, chance)[0].target for _ in range(5000))
    assert 0.75 < first["heavy"] / 5000 < 0.9
    assert 0.05 < first["light"] / 5000 < 0.15
    assert first["none"] > 0  # a small chance, and not none (RFC 2782)


async def test_dns_is_asked_over_the_network(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    server = trio.socket.socket(type=trio.socket.SOCK_DGRAM)
    await server.bind(("127.0.0.1", 0))

    async def answer() -> None:
        data, client = await server.recvfrom(4096)
        query = dns.message.from_wire(data)
        response = dns.message.make_response(query)
        (question,) = query.question
        records = dns.rrset.from_text(question.name, 60, "IN", "SRV", "10 5 5671 b.example.", "0 0 5672 a.example.")
        response.answer.append(records)
        await server.sendto(response.to_wire(), client)

    nursery.start_soon(answer)
    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers, resolver.port = ["127.0.0.1"], server.getsockname()[1]
    monkeypatch.setattr("dns.asyncresolver.Resolver", lambda: resolver)
    with trio.fail_after(60), server:
        found = await look_up("_amqps._tcp.example.org")
    assert sorted(found, key=lambda each: each.priority) == [
        Server(0, 0, 5672, "a.example"),
        Server(10, 5, 5671, "b.example"),
    ]


@pytest.mark.parametrize(
    ("error", "is_answer"),
    [(NXDOMAIN(), True), (DNSException("broken"), False), (LifetimeTimeout(timeout=1.0, errors=[]), False)],
)
async def test_what_dns_says_is_an_os_error_and_that_it_says_nothing_another(
    error: DNSException, is_answer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Resolver:
        async def resolve(self, name: str, kind: str, lifetime: float) -> None:
            raise error

    monkeypatch.setattr("dns.asyncresolver.Resolver", Resolver)
    with pytest.raises(OSError, match="DNS: ") as caught:
        await look_up("_amqps._tcp.example.org")
    assert isinstance(caught.value, NoServerError) is is_answer
