"""Limits of what tenants, users and hosts have: kept, and never leaked."""

from __future__ import annotations

import logging
import tomllib
from collections import Counter
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.policies.policy import Policy
from amqpmesh.router.amqp.link import Link, Receiver, Terminus
from amqpmesh.router.amqp.session import Session
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.messaging import DeleteOnNoLinks, Source, Target
from amqpmesh.router.config.policy_file import parse_policy
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.model.node import DynamicNode
from amqpmesh.router.model.usage import Kind, Owner
from tests.support.worlds.network import Client, Network, message

LIMIT = "amqp:resource-limit-exceeded"


def policy(tenant: str = "", user: str = "", others: str = "") -> Policy:
    """Return a policy of two tenants. Args: tenant, user: limits of one, and of its users. others: of the other."""
    rights = 'send = ["#"]\nreceive = ["#"]\nmay = ["dynamic", "anonymous", "copy"]'
    text = f"""
        [[tenant]]
        name = "a"
        match = [{{ hostname = "a" }}]
        limits = {{ {tenant} }}
        [[tenant]]
        name = "b"
        match = [{{ hostname = "b" }}]
        limits = {{ {others} }}
        [[group]]
        tenant = "a"
        name = "g"
        limits = {{ {user} }}
        {rights}
        [[group]]
        tenant = "b"
        name = "g"
        {rights}
        """
    return parse_policy(tomllib.loads(text), Path("policy.toml"))


def network(tenant: str = "", user: str = "", **settings: object) -> Network:
    made = Network(**settings)  # type: ignore[arg-type]  # names are the tests'
    made.core.set_policy(policy(tenant, user), made.now)
    return made


def reload(world: Network, tenant: str = "", user: str = "") -> None:
    world.core.set_policy(policy(tenant, user), world.now)
    world.run()


def condition(client: Client, link: Link) -> str | None:
    """Return the condition with which a link was refused; None: it is attached."""
    error = client.detached.get(link)
    return None if error is None else str(error.condition)


def used(world: Network, kind: Kind, user: str | None = None) -> int:
    usage = world.core.context.usages.find(Owner("a", user))
    return 0 if usage is None else usage.used(kind)


def is_open(client: Client) -> bool:
    return not client.record.lost and client.engine.can_send


# ---------------------------------------------------------------------------------------------------------- connections


@pytest.mark.parametrize(
    ("tenant", "user", "reason"),
    [
        ("connections = 2", "", "limit reached: connections = 2 of tenant a"),
        ("", "connections = 2", "limit reached: connections = 2 of user u"),
        ("connections_per_host = 2", "", "limit reached: connections_per_host = 2 of host 127.0.0.1"),
    ],
)
def test_one_connection_too_many_is_closed_and_the_log_says_why(
    tenant: str, user: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = network(tenant, user)
    first = world.client(user="u", hostname="a")
    assert is_open(world.client(user="u", hostname="a"))
    with caplog.at_level(logging.INFO, "amqpmesh"):
        refused = world.client(user="u", hostname="a")
    assert not is_open(refused)
    assert refused.record.closed is None or refused.record.lost
    (closed,) = [each for each in refused.events if type(each).__name__ == "ConnectionClosed"]
    assert str(closed.error.condition) == LIMIT  # type: ignore[attr-defined]
    assert closed.error.description == "too many connections"  # type: ignore[attr-defined]
    assert reason in caplog.text
    assert (world.core.context.limited, world.core.context.denied) == (1, 0)
    assert is_open(world.client(user="u", hostname="b")), "another tenant is not concerned"
    first.close()
    assert is_open(world.client(user="u", hostname="a")), "there is room again"


@pytest.mark.parametrize("owner", ["tenant", "user"])
def test_connections_and_links_beyond_a_rate_are_refused_until_time_has_passed(
    owner: str, caplog: pytest.LogCaptureFixture
) -> None:
    limits = 'new_connections = "2/s", attaches = "180/min"'
    world = network(limits if owner == "tenant" else "", limits if owner == "user" else "")
    first, _ = (world.client(user="u", hostname="a") for _ in range(2))
    with caplog.at_level(logging.INFO, "amqpmesh"):
        refused = world.client(user="u", hostname="a")
    assert not is_open(refused)
    (closed,) = [each for each in refused.events if type(each).__name__ == "ConnectionClosed"]
    assert str(closed.error.condition) == LIMIT  # type: ignore[attr-defined]
    whose = "tenant a" if owner == "tenant" else "user u"
    assert f"limit reached: new_connections = 2/s of {whose}" in caplog.text
    assert is_open(world.client(user="u", hostname="b")), "another tenant is not concerned"
    assert is_open(world.client(user="v", hostname="a")) is (owner == "user")
    links = [first.sender("q") if number % 2 else first.receiver("q") for number in range(3)]
    assert all(each.is_attached for each in links)
    with caplog.at_level(logging.INFO, "amqpmesh"):
        assert condition(first, first.sender("q")) == LIMIT
    assert f"limit reached: attaches = 3/s of {whose}" in caplog.text
    assert used(world, Kind.LINKS) == 3
    world.advance(0.5)
    assert is_open(world.client(user="u", hostname="a"))
    assert first.sender("q").is_attached
    assert condition(first, first.sender("q")) == LIMIT
    world.leave()
    assert all(usage.is_idle for usage in world.core.context.usages)
    world.advance(10.0)
    for _ in range(3):
        world.client(user="w", hostname="a")
        world.advance(10.0)
    assert len(list(world.core.context.rates.buckets)) <= 2, "those that are full are forgotten"


def test_users_and_hosts_are_told_apart() -> None:
    world = network("connections_per_host = 2", "connections = 1")
    assert is_open(world.client(user="u", host="10.0.0.1", hostname="a"))
    assert is_open(world.client(user="v", host="10.0.0.1", hostname="a"))
    assert not is_open(world.client(user="v", host="10.0.0.2", hostname="a"))
    assert not is_open(world.client(user="w", host="10.0.0.1", hostname="a"))
    # A peer without a user counts as the user of its host, and is not the user whose name is that of a host.
    assert is_open(world.client(host="10.0.0.3", hostname="a"))
    assert not is_open(world.client(host="10.0.0.3", hostname="a"))
    assert is_open(world.client(user="10.0.0.3", host="10.0.0.4", hostname="a"))


@pytest.mark.parametrize("end", ["close", "lose"])
def test_nothing_is_remembered_of_users_and_hosts_that_have_gone(end: Literal["close", "lose"]) -> None:
    world = network("links = 100", "links = 50")
    clients = [world.client(user=f"u{number}", host=f"10.0.0.{number}", hostname="a") for number in range(20)]
    for client in clients:
        client.receiver("q")
        client.receiver(None, source=Source(dynamic=True))
    assert len(world.core.context.usages) == 1 + 20 + 20
    for client in clients:
        getattr(client, end)()
    assert [usage.owner for usage in world.core.context.usages] == [Owner("a")]
    assert world.core.context.usages.of(Owner("a")).is_idle
    world.leave()


# -------------------------------------------------------------------------------------------------- sessions and links


def test_a_session_too_many_is_ended_and_the_connection_goes_on() -> None:
    world = network(user="sessions = 2")
    client = world.client(user="u", hostname="a")
    second = client.engine.begin()
    world.run()
    third = client.engine.begin()
    world.run()
    (ended,) = [each for each in client.events if type(each).__name__ == "SessionEnded"]
    assert ended.session is third  # type: ignore[attr-defined]
    assert str(ended.error.condition) == LIMIT  # type: ignore[attr-defined]
    assert client.receiver("q", session=second).is_attached
    second.end()
    world.run()
    fourth = client.engine.begin()
    world.run()
    assert client.receiver("q", session=fourth).is_attached
    assert used(world, Kind.SESSIONS, "u") == 2
    world.leave()


@pytest.mark.parametrize("of", ["tenant", "user"])
@pytest.mark.parametrize(
    ("limit", "senders", "receivers"),
    [("links = 3", 3, 0), ("senders = 2, receivers = 1", 2, 1), ("senders = 0", 0, 5), ("receivers = 1", 5, 1)],
)
def test_links_are_limited_by_what_the_client_does(of: str, limit: str, senders: int, receivers: int) -> None:
    world = network(**{of: limit})
    clients = [world.client(user="u", hostname="a") for _ in range(2)]
    sending = [clients[number % 2].sender("q") for number in range(5)]
    receiving = [clients[number % 2].receiver("q") for number in range(5)]
    assert [each.is_attached for each in sending] == [True] * senders + [False] * (5 - senders)
    assert [each.is_attached for each in receiving] == [True] * receivers + [False] * (5 - receivers)
    for client in clients:
        assert {str(each.condition) for each in client.detached.values() if each is not None} <= {LIMIT}
        assert {each.description for each in client.detached.values() if each is not None} <= {"too many links"}
    for link in (*sending, *receiving):
        if link.is_attached:
            link.detach()
    world.run()
    assert used(world, Kind.LINKS) == 0
    world.leave()


def test_a_link_that_is_refused_for_another_reason_does_not_count() -> None:
    world = network("links = 1")
    client = world.client(user="u", hostname="a")
    for _ in range(3):
        refused = client.session.attach(Terminus("s", Role.SENDER), source=Source(), target=None)
        world.run()
        assert condition(client, refused) == "amqp:not-found"
    assert used(world, Kind.LINKS) == 0
    assert client.sender("q").is_attached


def test_dynamic_nodes_are_limited_and_count_as_long_as_they_live() -> None:
    world = network(user="dynamic = 1")
    client = world.client(user="u", hostname="a")
    other = world.client(user="v", hostname="a")
    lifetime = {"lifetime-policy": DeleteOnNoLinks()}
    made = client.receiver(None, source=Source(dynamic=True, dynamic_node_properties=lifetime))  # type: ignore[arg-type]
    assert made.is_attached
    assert made.remote is not None
    assert isinstance(made.remote.source, Source)
    assert condition(client, client.sender(None, target=Target(dynamic=True))) == LIMIT
    assert other.receiver(None, source=Source(dynamic=True)).is_attached
    sender = other.sender(made.remote.source.address)
    client.close()
    assert used(world, Kind.DYNAMIC, "u") == 1, "the node stays, without a link of its maker's"
    assert world.core.context.usages.find(Owner("a", "u")) is not None
    sender.detach()
    world.run()
    assert world.core.context.usages.find(Owner("a", "u")) is None
    world.leave()


def test_a_link_that_takes_the_place_of_another_is_attached_at_the_limit() -> None:
    world = network("links = 1", theft_wait=0.0)
    first, second = (world.client("same", user="u", hostname="a") for _ in range(2))
    robbed = first.receiver("q", name="link")
    assert second.receiver("q", name="link").is_attached
    assert condition(first, robbed) == "amqp:link:stolen"
    assert used(world, Kind.LINKS) == 1
    assert condition(second, second.receiver("q", name="other")) == LIMIT


def test_a_claim_at_the_limit_is_refused_if_the_holder_lives_and_replaces_it_if_not() -> None:
    world = network("links = 1")
    first, second = (world.client("same", user="u", hostname="a") for _ in range(2))
    first.receiver("q", name="link")
    claim = second.receiver("q", name="link", credit=0)
    world.advance(1.0)
    assert condition(second, claim) == LIMIT
    first.stopped = True
    world.core.context.is_acknowledged = lambda _: False
    claim = second.receiver("q", name="link", credit=0)
    world.advance(1.0)
    assert claim.is_attached
    assert used(world, Kind.LINKS) == 1


# ----------------------------------------------------------------------------------------------------- sizes and reload


def test_sizes_are_announced_and_the_tighter_limit_holds() -> None:
    world = Network()
    world.core.set_policy(policy("frame = 8192, session_window = 100", 'message = "1 kB", frame = 4096'), world.now)
    client = world.client(user="u", hostname="a")
    assert client.engine.remote_max_frame_size == 4096
    assert client.session.remote is not None
    assert client.session.remote.incoming_window == 100
    sender = client.sender("q")
    assert sender.remote_max_message_size == 1000
    other = world.client(user="u", hostname="b")
    assert other.engine.remote_max_frame_size == world.listener.max_frame_size
    assert other.sender("q").remote_max_message_size == 0


def sizes(world: Network) -> dict[tuple[str | None, str], tuple[int, int]]:
    """Return what is used and allowed of each size, by the user (None: the tenant), and the limit."""
    limits = [each for each in snapshot(world.core).limits if each.limit in ("message", "frame", "session_window")]
    assert {(each.tenant, each.host) for each in limits} <= {("a", None)}
    return {(each.user, each.limit): (each.used, each.allowed) for each in limits}


def test_the_greatest_size_that_somebody_has_is_told_beside_what_is_allowed() -> None:
    world = network("frame = 8192, session_window = 100", "message = 1000, frame = 4096")
    assert sizes(world) == {(None, "frame"): (0, 8192), (None, "session_window"): (0, 100)}
    old = world.client(user="u", hostname="a")
    old.sender("q")
    old.receiver("q")
    world.client(user="u", hostname="b").sender("q")
    assert sizes(world) == {
        (None, "frame"): (4096, 8192),
        (None, "session_window"): (100, 100),
        ("u", "frame"): (4096, 4096),
        ("u", "message"): (1000, 1000),
    }
    reload(world, "session_window = 50", "message = 500, frame = 1024")
    new = world.client(user="u", hostname="a")
    link = new.sender("q")
    assert link.remote_max_message_size == 500
    assert sizes(world) == {
        (None, "session_window"): (100, 50),
        ("u", "frame"): (4096, 1024),
        ("u", "message"): (1000, 500),
    }
    old.close()
    assert sizes(world) == {
        (None, "session_window"): (50, 50),
        ("u", "frame"): (1024, 1024),
        ("u", "message"): (500, 500),
    }
    link.detach()
    world.run()
    assert sizes(world)["u", "message"] == (0, 500)
    new.close()
    assert sizes(world) == {(None, "session_window"): (0, 50)}


def test_a_link_that_is_older_than_the_limit_of_its_messages_has_none() -> None:
    world = network()
    client = world.client(user="u", hostname="a")
    link = client.sender("q")
    reload(world, "message = 1000")
    assert sizes(world) == {(None, "message"): (2**64 - 1, 1000)}
    link.detach()
    world.run()
    assert sizes(world) == {(None, "message"): (0, 1000)}


def test_a_message_that_is_too_large_ends_its_link() -> None:
    world = network(user="message = 1000")
    client, receiver = (world.client(user="u", hostname="a") for _ in range(2))
    receiver.receiver("q")
    sender = client.sender("q")
    client.send(sender, bytes(1001))
    assert condition(client, sender) == "amqp:link:message-size-exceeded"


def test_a_listener_with_a_tighter_limit_keeps_it() -> None:
    world = Network()
    world.listener = type(world.listener)(
        url="amqp://127.0.0.1:0", idle_time_out=0.0, max_message_size=500, max_frame_size=2048, session_window=7
    )
    world.core.set_policy(policy("frame = 8192, session_window = 100, message = 1000"), world.now)
    client = world.client(user="u", hostname="a")
    assert client.engine.remote_max_frame_size == 2048
    assert client.session.remote is not None
    assert client.session.remote.incoming_window <= 7
    assert client.sender("q").remote_max_message_size == 500


def test_a_limit_that_shrinks_ends_nothing_and_refuses_until_there_are_fewer() -> None:
    world = network("links = 4, connections = 3")
    client, *others = (world.client(user="u", hostname="a") for _ in range(3))
    links = [client.receiver("q") for _ in range(4)]
    reload(world, "links = 2, connections = 1")
    assert all(each.is_attached for each in links)
    assert all(is_open(each) for each in others)
    limits = {each.limit: (each.used, each.allowed) for each in snapshot(world.core).limits}
    assert limits == {"links": (4, 2), "connections": (3, 1)}
    for link in links[:2]:
        assert condition(client, client.receiver("q")) == LIMIT
        link.detach()
        world.run()
    assert condition(client, client.receiver("q")) == LIMIT
    links[2].detach()
    world.run()
    assert client.receiver("q").is_attached
    assert not is_open(world.client(user="u", hostname="a"))
    reload(world)
    assert is_open(world.client(user="u", hostname="a"))
    assert snapshot(world.core).limits == ()
    world.leave()


def test_what_was_there_before_the_first_policy_counts() -> None:
    world = Network()
    client = world.client(user="u")
    client.receiver("q")
    client.receiver(None, source=Source(dynamic=True))
    limits = "links = 2, dynamic = 1, sessions = 1"
    text = f'[[group]]\nname = "g"\nreceive = ["#"]\nmay = ["dynamic"]\nlimits = {{ {limits} }}'
    world.core.set_policy(parse_policy(tomllib.loads(text), Path("policy.toml")), world.now)
    world.run()
    usage = world.core.context.usages.of(Owner("", "u"))
    assert [usage.used(kind) for kind in Kind] == [1, 1, 2, 0, 2, 1]
    assert condition(client, client.receiver("q")) == LIMIT
    client.close()
    assert all(usage.is_idle for usage in world.core.context.usages)


# ------------------------------------------------------------------------------------- unsettled deliveries and memory


@pytest.mark.parametrize(
    ("limits", "parts"), [("unsettled = 40, receivers = 4", [10] * 4), ("unsettled = 16", [2, 1, 1])]
)
def test_receivers_divide_the_deliveries_that_may_be_unsettled(limits: str, parts: list[int]) -> None:
    world = network(user=limits)
    client, sender = (world.client(user=user, hostname="a") for user in ("u", "v"))
    receivers = [client.receiver(f"q{number}", credit=100) for number in range(len(parts))]
    for number, part in enumerate(parts):
        link = sender.sender(f"q{number}")
        while link.credit:
            sender.send(link)
        arrivals = client.take(part)
        arrivals[0].accept()
        world.run()
        client.take(1)  # a settled delivery makes room for the one that waits

    def unsettled() -> dict[str | None, int]:
        return {each.user: each.used for each in snapshot(world.core).limits if each.limit == "unsettled"}

    assert unsettled() == {"u": sum(parts), "v": 0}
    for each in receivers:
        each.detach()
    world.run()
    assert unsettled() == {"u": 0, "v": 0}


@pytest.mark.parametrize("limits", ["unsettled = 8, receivers = 1", "unsettled = 1"])
@pytest.mark.parametrize("is_other", [False, True])
def test_a_link_that_takes_the_place_of_another_takes_over_what_may_be_unsettled(limits: str, is_other: bool) -> None:
    world = network(user=limits, theft_wait=0.0)
    client = world.client("c", user="u", hostname="a")
    first = client.receiver("q", name="n")
    later = world.client("c", user="u", hostname="a") if is_other else client
    second = later.receiver("q", name="n", session=later.engine.begin())
    assert second.is_attached
    assert not first.is_attached, "it is stolen"
    (used,) = [each.used for each in snapshot(world.core).limits if each.limit == "unsettled"]
    assert used == (8 if "receivers" in limits else 1)
    second.detach()
    world.leave()


def test_a_receiver_for_which_nothing_is_left_is_refused() -> None:
    world = network("unsettled = 2")
    client = world.client(user="u", hostname="a")
    links = [client.receiver("q") for _ in range(2)]
    assert all(each.is_attached for each in links)
    assert condition(client, client.receiver("q")) == LIMIT
    assert used(world, Kind.LINKS) == 2
    links[0].detach()
    world.run()
    assert client.receiver("q").is_attached
    world.leave()


def test_a_tenants_limit_is_shown_as_its_own_and_not_as_one_of_each_host() -> None:
    world = network("unsettled = 40, receivers = 4, waiting = 1000, connections_per_host = 3")
    client = world.client(user="u", hostname="a")
    client.receiver("q")
    rows = {(each.limit, each.host): each.used for each in snapshot(world.core).limits}
    assert rows == {
        ("receivers", None): 1,
        ("unsettled", None): 10,
        ("waiting", None): 0,
        ("connections_per_host", "127.0.0.1"): 1,
    }


def stopped(world: Network, address: str, **peer: str) -> Client:
    """Attach a receiver that gives much credit, and reads nothing any more."""
    client = world.client(max_frame_size=32 * 2**10, **peer)  # type: ignore[arg-type]  # the names are those of peers
    client.receiver(address, credit=10_000)
    client.stopped = True
    return client


def fill(client: Client, address: str) -> int:
    """Send to an address as long as there is credit. Returns: the messages."""
    link = client.sender(address)
    for number in range(1000):
        if not (link.credit and link.session.flow_state.remote_incoming_window):
            return number
        client.send(link, message("x" * 30_000))
    raise AssertionError("there is credit for ever")


@pytest.mark.parametrize("limit", ['waiting = "320 kB"', 'memory = "2 %"', "waiting = 1_000_000, memory = 320_000"])
def test_a_tenant_that_takes_its_part_of_the_memory_gets_no_more_and_others_do(limit: str) -> None:
    world = network(limit, memory=16 * 2**20)
    readers = [stopped(world, f"q{number}", hostname="a") for number in range(8)]
    for number in range(8):
        fill(world.client(hostname="a"), f"q{number}")
    row = next(each for each in snapshot(world.core).limits if each.limit in ("waiting", "memory"))
    allowed = min(each.allowed for each in snapshot(world.core).limits)
    assert 320_000 <= allowed <= 16 * 2**20 // 50
    assert allowed < row.used < 8 * (64 * 2**10 + 256 * 2**10), "what was under way is there, too"
    late = world.client(hostname="a")
    assert fill(late, "q0") == 0, "the sender gets no credit"
    assert not world.core.context.memory.used_up
    other, receiver = world.client(hostname="b"), world.client(hostname="b")
    receiver.receiver("q0", credit=100)
    assert fill(other, "q0") == 100
    for each in readers:
        each.stopped = False
    world.run()
    world.advance(1.0)
    for each in readers:
        for arrival in each.take():
            arrival.accept()
    for arrival in receiver.take():
        arrival.accept()
    world.run()
    assert snapshot(world.core).limits[0].used == 0
    assert late.sender("q0").credit > 0, "there is credit again"
    world.leave()


def test_a_limit_of_memory_that_comes_by_a_reload_counts_what_waits_already() -> None:
    world = network(memory=16 * 2**20)
    reader = stopped(world, "q", hostname="a")
    sender = world.client(hostname="a").sender("q")
    for _ in range(20):
        world.clients[-1].send(sender, message("x" * 30_000))
    waiting = snapshot(world.core).router.buffered
    assert waiting > 400_000
    reload(world, 'waiting = "100 kB"')
    (limit,) = snapshot(world.core).limits
    assert (limit.used, limit.allowed) == (waiting, 100_000)
    assert fill(world.client(hostname="a"), "q") == 0
    reader.stopped = False
    world.run()
    assert [each.used for each in snapshot(world.core).limits] == [0]
    reader.take(20)
    world.leave()


def test_a_users_connections_have_a_part_of_what_may_wait() -> None:
    world = network(user='waiting = "64 kB"', memory=16 * 2**20)
    stopped(world, "q", hostname="a", user="u")
    fill(world.client(hostname="a", user="v"), "q")
    (limit,) = (each for each in snapshot(world.core).limits if each.user == "u")
    assert (limit.limit, limit.allowed) == ("waiting", 64_000)
    assert limit.used < 2 * 64_000, "the rest waits at the address, not for the connection"


# ---------------------------------------------------------------------------------------------------- random histories

KINDS = [kind.limit for kind in Kind]
LIMITS = st.dictionaries(st.sampled_from(KINDS), st.integers(1, 4), max_size=4)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "connect",
                "send",
                "receive",
                "make",
                "begin",
                "detach",
                "suspend",
                "end",
                "close",
                "lose",
                "again",
                "reload",
            ]
        ),
        st.integers(0, 30),
        st.integers(0, 3),
    ),
    max_size=40,
)


class Judge:
    """A simple counter of what the clients believe to have."""

    def __init__(self, world: Network) -> None:
        self.world = world
        self.links: list[tuple[Client, Link]] = []
        self.sessions: list[tuple[Client, Session]] = []

    def counts(self) -> Counter[tuple[str, str | None, str]]:
        """Count everything by tenant, by user, and kind."""
        found: Counter[tuple[str, str | None, str]] = Counter()

        def add(client: Client, *kinds: str) -> None:
            tenant, user = client.record.peer.tenant, client.record.peer.user
            for kind in kinds:
                found[tenant, None, kind] += 1
                found[tenant, user, kind] += 1

        alive = [each for each in self.world.clients if not each.is_lost and is_open(each)]
        for client in alive:
            add(client, "connections")
        for client, session in self.sessions:
            if client in alive and session.can_send:
                add(client, "sessions")
        for client, link in self.links:
            if client in alive and link.is_attached and link.session.can_send:
                add(client, "links", "receivers" if isinstance(link, Receiver) else "senders")
        for node in self.world.core.context.nodes.values():
            if isinstance(node, DynamicNode):
                found[node.tenant, None, "dynamic"] += 1
                found[node.tenant, node.maker.peer.user, "dynamic"] += 1
        return found

    def live(self) -> list[Client]:
        return [each for each in self.world.clients if not each.is_lost and is_open(each)]


def _limits(given: dict[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in given.items())


@settings(max_examples=120)
@given(steps=STEPS, tenant=LIMITS, user=LIMITS, later=st.lists(st.tuples(LIMITS, LIMITS), max_size=3))
def test_counts_never_leak_and_never_pass_a_limit(
    steps: list[tuple[str, int, int]],
    tenant: dict[str, int],
    user: dict[str, int],
    later: list[tuple[dict[str, int], dict[str, int]]],
) -> None:
    world = network(_limits(tenant), _limits(user), theft_wait=0.0)
    judge = Judge(world)
    policies = [(tenant, user), *later]
    at = 0
    for step, number, which in steps:
        before, refused = judge.counts(), world.core.context.limited
        live = judge.live()
        client = live[number % len(live)] if live else None
        if step == "connect":
            client = world.client(f"c{which % 2}", user=f"u{which % 2}", hostname="ab"[which // 2])
            judge.sessions.append((client, client.session))
        elif step == "reload":
            at = number % len(policies)
            reload(world, _limits(policies[at][0]), _limits(policies[at][1]))
        elif client is not None:
            _act(judge, client, step, number, which)
        counts = judge.counts()
        for (owner, name, kind), count in counts.items():
            most = None if owner == "b" else policies[at][0 if name is None else 1].get(kind)
            assert most is None or count <= max(most, before[owner, name, kind]), (owner, name, kind)
        for usage in world.core.context.usages:
            if usage.owner.host is None:
                for each in Kind:
                    assert usage.counts[each] == counts[usage.owner.tenant, usage.owner.user, each.limit], (
                        usage.owner,
                        each,
                    )
        if world.core.context.limited > refused:
            full = [
                (owner, name, kind)
                for owner, name, kind in before
                if owner == "a" and before[owner, name, kind] >= policies[at][0 if name is None else 1].get(kind, 999)
            ]
            assert full, "nothing is refused while there is room"
    world.leave()
    assert all(usage.is_idle and usage.owner.user is None for usage in world.core.context.usages)


def _act(judge: Judge, client: Client, step: str, number: int, which: int) -> None:
    own = [link for owner, link in judge.links if owner is client and link.is_attached and link.session.can_send]
    sessions = [each for owner, each in judge.sessions if owner is client and each.can_send]
    if step == "begin":
        session = client.engine.begin()
        judge.sessions.append((client, session))
        judge.world.run()
    elif step in ("send", "receive", "make", "again") and sessions:
        session = sessions[number % len(sessions)]
        name = f"n{which}" if step == "again" else None
        link: Link
        if step == "send":
            link = client.sender(f"q{which}", session=session)
        elif step == "make":
            link = client.receiver(None, source=Source(dynamic=True), session=session)
        else:
            link = client.receiver(f"q{which}", session=session, name=name)
        judge.links.append((client, link))
    elif step in ("detach", "suspend") and own:
        own[number % len(own)].detach(closed=step == "detach")
        judge.world.run()
    elif step == "end" and sessions:
        sessions[number % len(sessions)].end()
        judge.world.run()
    elif step == "close":
        client.close()
    elif step == "lose":
        client.lose()
