"""The audit log of a router without sockets: its events, its bounds, and what peers cannot do to it."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from amqpmesh.router.access.change import end_logins
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.frames import SASL_FRAME, protocol_header
from amqpmesh.router.amqp.negotiation import SASL_ID
from amqpmesh.router.amqp.sasl.exchange import SaslInit
from amqpmesh.router.amqp.standard.messaging import Source
from amqpmesh.router.audit.lines import LONGEST, MOST, encode, stamp
from amqpmesh.router.audit.trail import LINES, REMEMBERED
from amqpmesh.router.config.file import ListenerConfig
from amqpmesh.router.config.policy_file import parse_policy
from amqpmesh.router.config.users import Users
from tests.support.worlds.audited import Audited, strictly_read
from tests.support.worlds.network import Network, message

POLICY = """
    [[tenant]]
    name = "billing"
    match = [{ user = "b-*" }]
    limits = { connections = 3 }
    [[tenant]]
    name = "operator"
    match = [{ user = "*" }]
    [[group]]
    tenant = "billing"
    name = "team"
    send = ["q/#"]
    receive = ["q/#"]
    may = ["anonymous"]
    limits = { links = 1, sessions = 1 }
"""


def ruled(text: str = POLICY) -> tuple[Network, Audited]:
    world = Network()
    audited = Audited(world.core)
    world.core.set_policy(parse_policy(tomllib.loads(text), Path("policy.toml")), world.now)
    return world, audited


def test_a_connection_has_a_line_at_its_begin_and_one_at_its_end() -> None:
    world, audited = ruled()
    client = world.client("shop-7", user="b-ann", host="192.0.2.7")
    world.advance(2.5)
    client.close()
    opened, closed = audited.lines()
    identity = {
        "router": "A",
        "connection": 1,
        "peer": "192.0.2.7",
        "listener": "test",
        "container": "shop-7",
        "user": "b-ann",
        "tenant": "billing",
        "groups": ["team"],
    }
    assert {name: opened[name] for name in identity} == identity
    assert opened["event"] == "connection opened"
    assert {name: closed[name] for name in identity} == identity
    assert (closed["event"], closed["by"], closed["seconds"]) == ("connection closed", "peer", 2.5)


def test_a_refused_link_names_the_right_that_is_missing_and_the_groups() -> None:
    world, audited = ruled()
    client = world.client(user="b-ann")
    client.receiver("salaries")
    (line,) = audited.lines("link refused")
    assert (line["right"], line["groups"], line["user"]) == ("receive from salaries", ["team"], "b-ann")
    assert line["condition"] == "amqp:unauthorized-access"
    assert "salaries" in line["reason"]


def test_a_limit_is_named_with_its_value_its_owner_and_its_line() -> None:
    world, audited = ruled()
    clients = [world.client(user=f"b-{each}") for each in ("ann", "bob", "cid", "dan")]
    (refused,) = audited.lines("peer refused")
    told = {name: refused[name] for name in ("limit", "allowed", "of", "line", "user")}
    assert told == {
        "limit": "connections",
        "allowed": 3,
        "of": "tenant billing",
        "line": 'limits.connections of tenant "billing"',
        "user": "b-dan",
    }
    clients[0].sender("q/1")
    clients[0].sender("q/2")
    (refused,) = audited.lines("link refused")
    assert (refused["limit"], refused["allowed"], refused["of"]) == ("links", 1, "user b-ann")
    assert refused["line"] == 'group[0].limits.links of group "team"'
    clients[0].engine.begin()
    world.run()
    (refused,) = audited.lines("session refused")
    assert refused["line"] == 'group[0].limits.sessions of group "team"'


def test_a_peer_of_no_tenant_is_refused_by_a_line() -> None:
    world, audited = ruled()
    world.client("nobody")
    (line,) = audited.lines("peer refused")
    assert (line["container"], line["reason"]) == ("nobody", "the peer is in no tenant")
    assert audited.lines("connection opened") == []


def test_a_message_that_is_refused_names_its_address() -> None:
    world, audited = ruled()
    client = world.client(user="b-ann")
    client.receiver("q/1")  # uses up its links
    other = world.client(user="b-bob")
    sender = other.sender(None)
    other.send(sender, message(to="salaries"))
    (line,) = audited.lines("message refused")
    assert (line["address"], line["right"], line["user"]) == ("salaries", "send to salaries", "b-bob")


def test_a_right_that_is_withdrawn_has_a_line_for_each_link() -> None:
    world, audited = ruled()
    client = world.client(user="b-ann")
    client.sender("q/1")
    world.core.set_policy(parse_policy(tomllib.loads(POLICY.replace('"q/#"', '"r/#"')), Path("p")), world.now)
    world.run()
    (line,) = audited.lines("right withdrawn")
    assert (line["user"], line["reason"]) == ("b-ann", "no group permits send to q/1 any more")


def test_the_names_of_dynamic_nodes_which_are_permissions_do_not_appear() -> None:
    world, audited = ruled(POLICY.replace('may = ["anonymous"]', 'may = ["dynamic"]').replace("links = 1, ", ""))
    maker, other = world.client(user="b-ann"), world.client(user="b-bob")
    link = maker.receiver(None, source=Source(dynamic=True))
    assert link.remote is not None
    assert isinstance(link.remote.source, Source)
    name = str(link.remote.source.address)
    assert other.detached.get(other.receiver(name)) is not None
    other.receiver(name.replace("@A", "@B"))
    secret = name.partition("@")[0].rpartition("/")[2]
    assert len(secret) >= 22
    assert len(audited.lines("link refused")) >= 1
    assert secret.encode() not in audited.data


# ------------------------------------------------------------------------------------------------------------- logins

LISTENER = ListenerConfig(url="amqp://127.0.0.1:0", sasl=("PLAIN",), users="users.toml", insecure=True, name="in")  # type: ignore[arg-type]  # a text
USERS = Users({}).add("alice", "pa55w0rd-Zx", 4096)


def log_in(world: Network, user: str, password: str) -> None:
    """Log in, and end the connection before `open`."""
    core, now = world.core, world.now
    record = core.accept(LISTENER, "192.0.2.1", now, secured=True, users=USERS)
    response = f"\0{user}\0{password}".encode("utf-8", "surrogatepass")
    body = encode_composite(SaslInit(mechanism=Symbol("PLAIN"), initial_response=response, hostname=None))
    frame = (len(body) + 8).to_bytes(4, "big") + bytes((2, SASL_FRAME, 0, 0)) + body
    core.receive(record, protocol_header(SASL_ID) + frame, now)
    if record.login is not None:
        record.login.do()
        core.logged_in(record, now)
    core.data_to_send(record, now)
    core.receive_eof(record, now)


def test_logins_and_failures_have_the_user_and_never_the_password() -> None:
    world = Network()
    audited = Audited(world.core)
    log_in(world, "alice", "pa55w0rd-Zx")
    log_in(world, "alice", "wr0ng-Gu3ss")
    world.core.logins.not_secured("192.0.2.9", "unknown ca")
    accepted, refused, unsecured = audited.lines()
    assert (accepted["event"], accepted["user"], accepted["mechanism"]) == ("logged in", "alice", "PLAIN")
    assert (refused["event"], refused["user"], refused["peer"]) == ("authentication failed", "alice", "192.0.2.1")
    assert (unsecured["event"], unsecured["peer"]) == ("TLS handshake failed", "192.0.2.9")
    assert b"pa55w0rd-Zx" not in audited.data
    assert b"wr0ng-Gu3ss" not in audited.data


def test_a_login_that_is_ended_has_its_reason() -> None:
    world = Network()
    world.core.context.users_of = lambda _: Users({})
    audited = Audited(world.core)
    client = world.client(user="b-ann")
    client.record.peer = replace(client.record.peer, mechanism="PLAIN")
    end_logins(world.core.context)
    world.run()
    (line,) = audited.lines("peer refused")
    assert (line["user"], line["reason"]) == ("b-ann", "the user may not log in any more")


def test_a_connection_whose_certificate_is_revoked_is_named_by_its_subject() -> None:
    world = Network()
    world.core.context.is_revoked = lambda _, certificate: certificate == b"DER"
    audited = Audited(world.core)
    record = world.client("sensor").record
    world.client("other").record.certificate = b"another"
    record.certificate, record.certificate_subject = b"DER", "CN=sensor,O=Example"
    end_logins(world.core.context)
    world.run()
    (line,) = audited.lines("peer refused")
    told = (line["container"], line["certificate"], line["reason"])
    assert told == ("sensor", "CN=sensor,O=Example", "the certificate is revoked")


# ------------------------------------------------------------------------------------------------------------- bounds


def test_repeats_within_a_second_are_one_line_with_their_number() -> None:
    world, audited = ruled()
    client = world.client(user="b-ann")
    for _ in range(50):
        client.receiver("salaries")
    assert len(audited.lines("link refused")) == 1
    world.advance(1.0)
    _, rest = audited.lines("link refused")
    assert (rest["count"], rest["user"]) == (49, "b-ann")
    assert "salaries" in rest["reason"]
    world.advance(5.0)
    client.receiver("salaries")
    assert len(audited.lines("link refused")) == 3, "another second"


def test_a_peer_that_varies_what_it_asks_for_gets_no_more_than_a_hundred_lines() -> None:
    world, audited = ruled()
    record = world.client(user="b-ann").record
    for number in range(100_000):
        audited.trail.of("message refused", record, reason=f"no group permits send to {number}")
    world.advance(1.0)
    lines = audited.lines("message refused")
    assert len(lines) == LINES + 1
    assert lines[-1]["count"] == 100_000 - LINES


def test_a_flood_of_refused_messages_is_two_lines_a_second() -> None:
    world, audited = ruled()
    client = world.client(user="b-ann")
    sender = client.sender(None)
    for _ in range(500):
        client.send(sender, message(to="salaries"))
    world.advance(1.0)
    first, rest = audited.lines("message refused")
    assert (first["right"], rest["count"]) == ("send to salaries", 499)


def test_many_repeats_are_told_in_small_steps() -> None:
    _, audited = ruled()
    for number in range(2_000):
        audited.trail.of_host("TLS handshake failed", f"host {number % 1_000}", reason="unknown ca")
    assert len(list(audited.trail.repeats())) == 1_000
    assert list(audited.trail.repeats()) == []


def test_many_hosts_cannot_fill_the_memory_and_those_let_in_still_have_their_lines() -> None:
    world, audited = ruled()
    for number in range(2 * REMEMBERED):
        audited.trail.of_host("TLS handshake failed", f"host {number}", reason="unknown ca")
    world.client(user="b-ann")
    world.advance(1.0)
    lines = audited.lines("TLS handshake failed")
    assert len(lines) == REMEMBERED + 1
    assert lines[-1]["count"] == REMEMBERED
    assert len(audited.lines("connection opened")) == 1


def test_users_that_come_from_one_host_each_have_a_line_and_a_peer_cannot_multiply_its_own() -> None:
    world, audited = ruled('[[tenant]]\nname = "operator"\ndefault = true')
    for number in range(2 * LINES):
        world.client(user=f"u-{number}").close()
    assert len(audited.lines("connection opened")) == len(audited.lines("connection closed")) == 2 * LINES
    for number in range(50):
        audited.trail.of("connection closed", world.client(user="mallory").record, reason=f"reason {number}")
    assert len([each for each in audited.lines("connection closed") if each["user"] == "mallory"]) == 1
    world.advance(1.0)
    (rest,) = (each for each in audited.lines("connection closed") if "count" in each)
    assert (rest["user"], rest["count"]) == ("mallory", 49)


def test_lines_without_room_are_counted_in_the_next_one_that_fits() -> None:
    _, audited = ruled()
    audited.room = 0
    for number in range(7):
        audited.trail.change("cost changed", of=f"connector/{number}")
    audited.room = 10_000
    audited.trail.change("cost changed", of="connector/x")
    audited.trail.change("cost changed", of="connector/y")
    assert [each.get("lost") for each in audited.lines("cost changed")] == [7, None]
    assert audited.trail.lost == 7


def test_without_an_audit_log_nothing_is_made() -> None:
    world = Network()
    assert world.core.context.audit is None
    client = world.client()
    client.receiver("$reserved")
    assert world.core.context.audit is None


# ------------------------------------------------------------------------------------------------------- hostile texts

NASTY = st.text(st.characters() | st.sampled_from('\n\r\0"\\\u2028\u202e\ud800\udfff\x7f'), max_size=400)


@given(
    st.dictionaries(st.sampled_from("abcdef"), NASTY | st.integers() | st.booleans() | st.floats(0, 1e9), max_size=6)
)
def test_each_line_is_one_object_whatever_its_texts_are(fields: dict[str, object]) -> None:
    (read,) = strictly_read(encode(0.0, fields))
    assert read["time"] == "1970-01-01T00:00:00.000Z"
    assert read.keys() == {"time", *fields}


@given(st.lists(NASTY, max_size=40))
def test_lists_are_cut(texts: list[str]) -> None:
    (read,) = strictly_read(encode(0.0, {"groups": tuple(texts)}))
    assert len(read["groups"]) <= MOST + 1
    assert all(len(each) <= LONGEST + 3 for each in read["groups"])


@settings(max_examples=50)
@given(user=NASTY, container=NASTY.filter(bool), address=NASTY, secret=st.text("xyz0123", min_size=12, max_size=20))
def test_whatever_a_peer_says_each_line_is_whole_and_has_no_secret(
    user: str, container: str, address: str, secret: str
) -> None:
    assume(not any(secret in each for each in (user, container, address)))
    plain = [each.encode("utf-8", "replace").decode() for each in (container, address)]
    world, audited = ruled()
    log_in(world, user, secret)
    client = world.client(plain[0], user=f"b-{user}", hostname=plain[1])
    for link in (client.receiver(plain[1]), client.sender(plain[1])):
        if link.is_attached:
            link.detach()
    world.run()
    client.close()
    world.advance(1.0)
    assert {each["event"] for each in audited.lines()} >= {"connection closed"}
    assert secret.encode() not in audited.data


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0.0, "1970-01-01T00:00:00.000Z"), (1_777_636_800.1234, "2026-05-01T12:00:00.123Z")],
)
def test_times_are_written_as_rfc_3339_has_them(seconds: float, written: str) -> None:
    assert stamp(seconds) == written
