"""Tokens of peers: what they let in, for how long, and the node `$cbs` that takes them."""

from __future__ import annotations

import gc
import logging
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol, Timestamp
from amqpmesh.router.amqp.frames import protocol_header
from amqpmesh.router.amqp.link import Receiver, Sender, Terminus
from amqpmesh.router.amqp.sasl.exchange import SaslInit
from amqpmesh.router.amqp.standard.definitions import Error, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Rejected
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.amqp.standard.performatives import Open
from amqpmesh.router.config.file import TlsConfig, TokensConfig
from amqpmesh.router.config.policy_file import parse_policy
from amqpmesh.router.message.content import Message
from amqpmesh.router.model.usage import Kind, Owner
from tests.support.data.tokens import ISSUER, NOW, SECRET, bearer, issuer, named_key, shared_access, signed, tokens
from tests.support.peers.scripted_stream import frame
from tests.support.worlds.audited import Audited
from tests.support.worlds.network import Client, Network, message

UNAUTHORIZED = "amqp:unauthorized-access"
JWT, SAS = "jwt", "servicebus.windows.net:sastoken"

POLICY = """
    [[tenant]]
    name = "billing"
    match = [{ claim = "team", value = "billing" }]
    [[tenant]]
    name = "operator"
    default = true
    [[group]]
    tenant = "billing"
    name = "team"
    send = ["q/#"]
    [[group]]
    tenant = "billing"
    name = "readers"
    claims = { role = "reader" }
    receive = ["q/#", "to/${claim.desk}"]
"""


class TokenNetwork(Network):
    """A router whose listener takes tokens."""

    def __init__(self, policy: str | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.listener = replace(self.listener, cbs=True, sasl=("ANONYMOUS", "MSSBCBS", "OAUTHBEARER"))
        context = self.core.context
        context.wall_clock = self.wall
        context.tokens = tokens(issuer(scopes="scope"), named_key(), now=self.wall, **settings)
        if policy is not None:
            self.core.set_policy(parse_policy(tomllib.loads(policy), Path("policy.toml")), self.now)

    def wall(self) -> float:
        return NOW - 100.0 + self.now

    def client_with(self, **claims: object) -> Client:
        """Return a client that has put a token."""
        client = self.client()
        assert Putting(client).put(bearer(self.wall(), **claims))[0] == 202
        return client


class Putting:
    """A client's two links to `$cbs`."""

    def __init__(self, client: Client, *, credit: int = 10) -> None:
        self.client = client
        self.answers = client.receiver("$cbs", credit=credit)
        self.requests = client.sender("$cbs", source=Source(address="cbs"))

    def put(self, token: object, kind: object = JWT, **properties: object) -> tuple[int, str]:
        """Put a token. Returns: the status, and its description."""
        sent = self.client.send(self.requests, request(token, kind, **properties))
        assert sent.outcome == Accepted()
        (answer,) = self.client.take(1)
        assert answer.link is self.answers
        assert answer.delivery.settled
        return status_of(answer.payload)


def status_of(answer: bytearray) -> tuple[int, str]:
    found = Message.decode(bytes(answer))
    assert found.correlation_id == "m-1"
    return int(found.application_properties["status-code"]), found.application_properties["status-description"]


def request(token: object, kind: object = JWT, **properties: object) -> bytes:
    given = {"operation": "put-token", "type": kind, "name": "amqps://mesh.example/q", **properties}
    given = {name: value for name, value in given.items() if value is not None}
    return Message(token, message_id="m-1", application_properties=given).encode()


def refusal(client: Client, link: Sender | Receiver) -> str | None:
    error = client.detached.get(link)
    return None if error is None else str(error.condition)


def closed(client: Client) -> Error | None:
    """Return the error with which the router has closed a connection; None: it is open."""
    found = [each.error for each in client.events if isinstance(each, events.ConnectionClosed)]
    return found[0] if found else None


def test_a_peer_without_a_user_may_do_nothing_before_it_has_put_a_token() -> None:
    world = TokenNetwork()
    client = world.client()
    for link in (client.sender("q"), client.receiver("q"), client.sender(None), client.sender("$management")):
        assert refusal(client, link) == UNAUTHORIZED
    dynamic = client.receiver(None, source=Source(dynamic=True))
    assert refusal(client, dynamic) == UNAUTHORIZED
    assert Putting(client).put(bearer(world.wall())) == (202, "Accepted")
    receiver = client.receiver("q")
    assert receiver.is_attached
    assert client.record.peer.user == "alice"
    client.send(client.sender("q"))
    (came,) = client.take(1)
    came.accept()
    world.run()
    world.leave()


@pytest.mark.parametrize("has_policy", [False, True])
def test_a_peer_that_puts_no_token_in_time_is_closed(has_policy: bool) -> None:
    world = TokenNetwork(POLICY if has_policy else None)
    client = world.client()
    assert Putting(client).put("x.y.z")[0] == 401
    world.advance(9.9)
    assert closed(client) is None
    world.advance(0.2)
    error = closed(client)
    assert error is not None
    assert error.condition == UNAUTHORIZED
    assert error.description == "no token was put in time"
    assert world.core.context.denied == 1
    world.leave()


def test_a_token_ends_the_connection_when_it_expires_unless_it_was_renewed() -> None:
    world = TokenNetwork()
    client, other = world.client_with(), world.client_with()
    receiver = client.receiver("q")
    world.advance(30)
    again = Putting(client)
    assert again.put(bearer(world.wall()))[0] == 202
    world.advance(45)
    error = closed(other)
    assert error is not None
    assert (error.condition, error.description) == (UNAUTHORIZED, "the token has expired")
    assert receiver.is_attached
    assert closed(client) is None
    world.advance(45)
    assert closed(client) is not None
    assert not world.core.context.timers
    world.leave()


def test_a_message_that_is_coming_when_its_senders_token_expires_is_aborted_and_nothing_else() -> None:
    world = TokenNetwork()
    sending, reading = world.client_with(), world.client_with(exp=int(world.wall()) + 600)
    receiver, sender = reading.receiver("q"), sending.sender("q")
    whole, half = sending.send(sender), sending.send(sender, message("x" * 100)[:50], more=True)
    (arrival,) = reading.take(1)
    world.advance(75)
    assert closed(sending) is not None
    (broken,) = reading.arrivals
    assert broken.delivery.aborted
    assert half.outcome is None
    arrival.accept()
    world.run()
    assert whole.outcome is None, "its connection was closed before"
    assert receiver.is_attached
    assert world.relays == 0
    world.leave()


def test_the_audit_log_has_the_issuer_of_each_token_and_never_the_token() -> None:
    world = TokenNetwork()
    audited = Audited(world.core)
    putting = Putting(world.client())
    first, other, forged = bearer(world.wall()), shared_access(world.wall() + 5), bearer(world.wall(), aud="elsewhere")
    assert putting.put(first)[0] == 202
    second = bearer(world.wall())
    assert putting.put(second)[0] == 202
    assert putting.put(forged)[0] == 401
    assert Putting(world.client()).put(other, SAS)[0] == 202
    world.client()
    world.advance(100)
    told = [(each["event"], each.get("issuer"), each.get("renewed")) for each in audited.lines() if "count" not in each]
    for event in (
        ("token accepted", ISSUER, False),
        ("token refused", None, None),
        ("token accepted", "sender", False),
        ("token expired", ISSUER, None),
        ("token expired", "sender", None),
        ("peer refused", None, None),
    ):
        assert event in told
    (again,) = (each for each in audited.lines("token accepted") if "count" in each)
    assert (again["user"], again["count"]) == ("alice", 1), "it was renewed within a second"
    for token in (first, second, other, forged):
        for part in token.replace("&", ".").split("."):
            if len(part) > 20:
                assert part.encode() not in audited.data
    assert SECRET not in audited.data


def test_a_wall_clock_that_was_set_back_lets_the_token_live_on() -> None:
    world = TokenNetwork()
    client = world.client_with()
    late = world.wall
    world.core.context.wall_clock = lambda: late() - 30
    world.advance(75)
    assert closed(client) is None
    world.advance(30)
    assert closed(client) is not None


def test_the_request_may_ask_for_an_earlier_expiry_and_not_for_a_later_one() -> None:
    world = TokenNetwork()
    for seconds, lasting in ((20, 20), (500, 70)):
        client = world.client()
        expiration = Timestamp((world.wall() + seconds) * 1000)
        assert Putting(client).put(bearer(world.wall()), expiration=expiration)[0] == 202
        world.advance(lasting - 1)
        assert closed(client) is None
        world.advance(2)
        assert closed(client) is not None


def test_a_shared_access_signature_proves_the_name_of_its_key() -> None:
    world = TokenNetwork()
    client = world.client()
    assert Putting(client).put(shared_access(world.wall() + 60), SAS)[0] == 202
    assert client.record.peer.user == "sender"
    assert client.receiver("q").is_attached


@pytest.mark.parametrize(
    ("token", "kind", "properties", "status"),
    [
        ("x", JWT, {}, 401),
        ("", JWT, {}, 401),
        (b"x", JWT, {}, 401),
        (7, JWT, {}, 400),
        (None, JWT, {}, 400),
        ("x", "saml", {}, 400),
        ("x", None, {}, 400),
        ("x", 7, {}, 400),
        ("x", JWT, {"name": None}, 400),
        ("x", JWT, {"name": "n" * 1025}, 400),
        ("x", JWT, {"operation": "delete-token"}, 400),
        ("x", JWT, {"operation": None}, 400),
        ("x", SAS, {}, 401),
        (shared_access(NOW - 11), SAS, {}, 401),
        (shared_access(), JWT, {}, 401),
    ],
)
def test_a_bad_request_is_answered_and_changes_nothing(
    token: object, kind: object, properties: dict[str, object], status: int
) -> None:
    world = TokenNetwork()
    client = world.client()
    assert Putting(client).put(token, kind, **properties)[0] == status
    assert client.record.peer.user is None
    assert refusal(client, client.receiver("q")) == UNAUTHORIZED


@pytest.mark.parametrize("id", ["x" * 1025, b"x" * 4000])
@pytest.mark.parametrize("field", ["message_id", "correlation_id"])
def test_an_answer_holds_no_long_id(field: str, id: object) -> None:
    world = TokenNetwork()
    client = world.client()
    putting = Putting(client)
    given = {"operation": "put-token", "type": JWT, "name": "q"}
    client.send(putting.requests, Message(bearer(world.wall()), application_properties=given, **{field: id}).encode())
    (answer,) = client.take(1)
    found = Message.decode(bytes(answer.payload))
    assert found.correlation_id is None
    assert found.application_properties["status-code"] == 400
    assert client.record.peer.user is None
    assert putting.put(bearer(world.wall()))[0] == 202
    world.leave()


def test_a_message_that_cannot_be_read_is_rejected_and_the_link_stays() -> None:
    world = TokenNetwork()
    putting = Putting(world.client())
    for payload in (b"\x00", message()[:-2], Message(["x"] * 300).encode()):
        assert isinstance(putting.client.send(putting.requests, payload).outcome, Rejected)
    assert putting.put(bearer(world.wall()))[0] == 202


def test_a_token_in_several_frames_is_put_together_and_an_aborted_one_forgotten() -> None:
    world = TokenNetwork()
    client = world.client()
    putting = Putting(client)
    whole = request(bearer(world.wall()))
    client.resume(client.send(putting.requests, whole[:100], more=True), aborted=True)
    client.resume(client.send(putting.requests, whole[:100], more=True), whole[100:])
    (answer,) = client.take(1)
    assert status_of(answer.payload)[0] == 202


def test_a_message_beyond_the_limit_ends_the_link() -> None:
    world = TokenNetwork(tokens=TokensConfig(size=256))
    client = world.client()
    putting = Putting(client)
    client.send(putting.requests, request("x" * 5000))
    assert refusal(client, putting.requests) == "amqp:link:message-size-exceeded"
    assert Putting(client).put("x" * 300)[1] == "the token is too long"


def test_without_a_receiver_the_outcome_is_the_answer() -> None:
    world = TokenNetwork()
    client = world.client()
    requests = client.sender("$cbs")
    outcome = client.send(requests, request("x")).outcome
    assert isinstance(outcome, Rejected)
    assert outcome.error is not None
    assert outcome.error.condition == UNAUTHORIZED
    assert client.send(requests, request(bearer(world.wall()))).outcome == Accepted()
    client.send(requests, request(bearer(world.wall())), settled=True)
    assert client.receiver("q").is_attached


def test_the_answer_goes_to_the_receiver_that_the_request_names() -> None:
    world = TokenNetwork()
    client = world.client()
    putting = Putting(client)
    named = client.session.attach(
        Terminus("named", Role.RECEIVER), source=Source(address="$cbs"), target=Target(address="my-answers")
    )
    assert isinstance(named, Receiver)
    named.flow(1)
    world.run()
    request_ = Message.decode(request(bearer(world.wall())))
    request_.reply_to = "my-answers"
    client.send(putting.requests, request_.encode())
    (answer,) = client.take(1)
    assert answer.link is named


def test_links_to_the_node_are_few_and_only_the_peers_own() -> None:
    world = TokenNetwork()
    client = world.client_with()
    refused = [client.sender("$cbs") for _ in range(3)] + [client.receiver("$cbs") for _ in range(3)]
    assert [refusal(client, each) for each in refused].count("amqp:resource-limit-exceeded") == 4
    for address in ("$cbs@A", "$cbs/x", "$CBS"):
        assert refusal(client, client.receiver(address)) is not None
    assert refusal(client, client.receiver("$cbs" + "x" * 3000)) is not None
    anonymous = client.sender(None)
    outcome = client.send(anonymous, message(to="$cbs")).outcome
    assert isinstance(outcome, Rejected)
    for link in (client.receiver("$cbs", copy=True), client.receiver("$cbs", name="x" * 1000)):
        assert refusal(client, link) is not None


def test_a_listener_without_cbs_has_no_such_node() -> None:
    world = TokenNetwork()
    world.listener = replace(world.listener, cbs=False, sasl=("ANONYMOUS",))
    client = world.client()
    assert client.record.token is None
    assert refusal(client, client.sender("$cbs")) == "amqp:not-found"
    assert refusal(client, client.receiver("$cbs")) is not None


def test_tokens_are_withheld_credit_and_not_refused_beyond_the_rate() -> None:
    world = TokenNetwork(tokens=TokensConfig(rate=0.5, burst=6))
    putting = Putting(world.client())
    for _ in range(6):
        assert putting.put("x")[0] == 401
    assert putting.requests.credit == 0
    world.advance(2.1)
    assert putting.requests.credit == 1
    assert putting.put(bearer(world.wall()))[0] == 202
    world.advance(0.5)
    assert putting.requests.credit == 0
    world.leave()


def test_a_peer_that_attaches_again_and_again_has_one_timer_for_its_credit() -> None:
    world = TokenNetwork(tokens=TokensConfig(rate=0.01, burst=1))
    client = world.client()
    waiting = len(world.core.context.timers)
    for _ in range(20):
        client.sender("$cbs").detach()
        world.run()
    assert len(world.core.context.timers) <= waiting + 1
    assert client.sender("$cbs").credit == 0
    world.leave()
    assert len(world.core.context.timers) < waiting


def test_of_two_links_of_tokens_the_one_attached_last_gets_the_next_credit() -> None:
    world = TokenNetwork(tokens=TokensConfig(rate=1.0, burst=1))
    client = world.client()
    first, last = client.sender("$cbs"), client.sender("$cbs")
    assert (first.credit, last.credit) == (1, 0)
    world.advance(1.1)
    assert (first.credit, last.credit) == (1, 1)
    client.send(last, request("x"))
    client.send(first, request("x"))
    world.advance(1.1)
    assert (first.credit, last.credit) == (0, 1)
    last.detach()
    world.advance(1.1)
    assert first.credit == 1
    world.leave()


def test_a_peer_that_takes_no_answers_gets_no_credit_for_tokens() -> None:
    world = TokenNetwork(tokens=TokensConfig(burst=100))
    client = world.client()
    putting = Putting(client, credit=0)
    puts = 0
    while putting.requests.credit:
        client.send(putting.requests, request("x"))
        puts += 1
    assert 16 <= puts < 16 + 5
    putting.answers.flow(100)
    world.run()
    client.take(puts)
    assert putting.requests.credit > 0
    world.leave()


def test_claims_give_the_tenant_and_the_rights() -> None:
    world = TokenNetwork(POLICY)
    client = world.client_with(team="billing", role="reader", desk=["d1", "d2"])
    assert client.record.peer.tenant == "billing"
    assert client.sender("q/1").is_attached
    for address in ("q/1", "to/d1", "to/d2"):
        assert client.receiver(address).is_attached
    assert refusal(client, client.receiver("to/d3")) == UNAUTHORIZED
    assert refusal(client, client.sender("to/d1")) == UNAUTHORIZED
    world.leave()


@pytest.mark.parametrize("desk", ["#", "*", "d1/#", "d1/x", "", "d\0", "x" * 300])
def test_a_claim_gives_no_more_than_its_own_place(desk: str) -> None:
    world = TokenNetwork(POLICY)
    client = world.client_with(team="billing", role="reader", desk=desk)
    for address in ("to/d1", "to/d1/x", "to/x", f"to/{desk}"):
        assert refusal(client, client.receiver(address)) is not None


def test_rights_shrink_and_grow_with_the_token_and_other_links_stay() -> None:
    world = TokenNetwork(POLICY)
    client = world.client_with(team="billing", role="reader")
    sender, receiver = client.sender("q/1"), client.receiver("q/1")
    putting = Putting(client)
    assert putting.put(bearer(world.wall(), team="billing"))[0] == 202
    assert refusal(client, receiver) == UNAUTHORIZED
    assert sender.is_attached
    assert refusal(client, client.receiver("q/2")) == UNAUTHORIZED
    assert putting.put(bearer(world.wall(), team="billing", scope="read:billing/q/*"))[0] == 202
    assert client.receiver("q/2").is_attached
    assert putting.requests.is_attached
    assert putting.answers.is_attached
    world.leave()


def test_addresses_of_an_anonymous_sender_are_judged_by_the_new_token() -> None:
    world = TokenNetwork(POLICY)
    client = world.client_with(team="billing", scope="write:billing/x*")
    target = world.client_with(team="billing", scope="read:billing/x*")
    target.receiver("x1")
    anonymous = client.sender(None)
    client.send(anonymous, message(to="x1"))
    (came,) = target.take(1)
    came.accept()
    world.run()
    before = world.core.context.kernel.epoch
    assert Putting(client).put(bearer(world.wall(), team="billing", scope="write:billing/y"))[0] == 202
    assert world.core.context.kernel.epoch == before, "addresses of other anonymous senders are not judged again"
    outcome = client.send(anonymous, message(to="x1")).outcome
    assert isinstance(outcome, Rejected)
    assert not target.take()


def test_a_message_behind_a_new_token_is_judged_by_it_though_one_to_its_address_came_just_before() -> None:
    world = TokenNetwork(POLICY)
    client = world.client_with(team="billing", scope="write:billing/x*")
    target = world.client_with(team="billing", scope="read:billing/x*")
    for each in ("x1", "x2"):
        target.receiver(each)
    anonymous, putting = client.sender(None), Putting(client)
    client.send(anonymous, message(to="x1"))
    sent = []
    with patch.object(world, "run"):  # the router gets all of it at once
        sent.append(client.send(anonymous, message(to="x2")))
        client.send(putting.requests, request(bearer(world.wall(), team="billing", scope="write:billing/y")))
        sent.append(client.send(anonymous, message(to="x2")))
    world.run()
    assert len(target.take()) == 2, "that to x1, and the one before the token"
    assert isinstance(sent[1].outcome, Rejected)


def test_the_tenant_and_the_user_of_a_connection_stay() -> None:
    world = TokenNetwork(POLICY)
    client = world.client_with(team="billing")
    putting = Putting(client)
    sender = client.sender("q/1")
    for claims in ({"team": "shop"}, {"team": "billing", "sub": "bob"}, {}):
        status, description = putting.put(bearer(world.wall(), **claims))
        assert (status, description) == (401, "the token is of another user or tenant than the connection")
    assert sender.is_attached
    assert (client.record.peer.user, client.record.peer.tenant) == ("alice", "billing")
    sender.detach()
    world.run()
    assert putting.put(bearer(world.wall(), team="shop", sub="bob"))[0] == 401
    world.leave()


def test_a_token_of_no_tenant_is_refused_and_the_one_before_stays_in_force() -> None:
    world = TokenNetwork(POLICY.replace("default = true", 'match = [{ user = "ops" }]'))
    client = world.client_with(team="billing")
    assert Putting(client).put(bearer(world.wall(), team="shop")) == (401, "the peer is in no tenant")
    assert client.sender("q/1").is_attached
    assert client.record.peer.claims["team"] == ("billing",)


def test_the_first_token_counts_its_connection_for_the_peer_that_it_names() -> None:
    limited = POLICY.replace('name = "billing"', 'name = "billing"\n    limits = { connections = 1, sessions = 2 }', 1)
    world = TokenNetwork(limited)
    first, second = world.client_with(team="billing"), world.client()
    usage = world.core.context.usages.of(Owner("billing"))
    assert [usage.used(kind) for kind in (Kind.CONNECTIONS, Kind.SESSIONS)] == [1, 1]
    assert Putting(first).put(bearer(world.wall(), team="billing"))[0] == 202
    assert usage.used(Kind.CONNECTIONS) == 1, "a further token changes nothing"
    requests = Putting(second).requests
    second.send(requests, request(bearer(world.wall(), team="billing")))
    error = closed(second)
    assert error is not None
    assert error.condition == "amqp:resource-limit-exceeded"
    first.close()
    assert usage.is_idle
    world.client_with(team="billing")
    assert [usage.used(kind) for kind in (Kind.CONNECTIONS, Kind.SESSIONS)] == [1, 1]
    world.leave()
    assert all(each.is_idle for each in world.core.context.usages)


def test_a_policy_that_changes_is_applied_to_claims_and_spares_those_who_wait() -> None:
    world = TokenNetwork(POLICY)
    client, waiting = world.client_with(team="billing", role="reader"), world.client()
    receiver = client.receiver("q/1")
    changed = POLICY.replace('role = "reader"', 'role = "admin"')
    world.core.set_policy(parse_policy(tomllib.loads(changed), Path("policy.toml")), world.now)
    world.run()
    assert refusal(client, receiver) == UNAUTHORIZED
    assert closed(waiting) is None
    assert Putting(waiting).put(bearer(world.wall(), team="billing"))[0] == 202


def test_claims_count_on_the_account_of_the_connection() -> None:
    world = TokenNetwork()
    client = world.client()
    putting = Putting(client)
    before = client.record.account.used
    assert putting.put(bearer(world.wall(), note="x" * 4000))[0] == 202
    assert client.record.account.used - before > 4000
    assert putting.put(bearer(world.wall()))[0] == 202
    assert client.record.account.used - before < 1000
    world.leave()


def test_tokens_are_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world = TokenNetwork()
    client = world.client()
    good, bad, signature = bearer(world.wall()), signed({"iss": "x", "secret": "y"}), shared_access(world.wall() - 20)
    putting = Putting(client)
    putting.put(bad)
    putting.put(signature, SAS)
    putting.put(good)
    world.advance(80)
    events_ = [record.getMessage() for record in caplog.records]
    assert any("token refused" in each for each in events_)
    assert any("token accepted" in each for each in events_)
    assert any("token expired" in each for each in events_)
    for token in (good, bad, signature):
        assert not any(token[8:40] in each or token[-16:] in each for each in events_)


class Login:
    """A client that shows a token by OAUTHBEARER, frame by frame."""

    def __init__(self, world: TokenNetwork, token: str) -> None:
        self.world = world
        self.record = world.core.accept(world.listener, "127.0.0.1", world.now, secured=False)
        message = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
        init = encode_composite(SaslInit(mechanism=Symbol("OAUTHBEARER"), initial_response=message))
        self.tell(protocol_header(3) + (len(init) + 8).to_bytes(4, "big") + b"\x02\x01\x00\x00" + init)

    def open(self) -> None:
        """Open the connection, after the login."""
        self.tell(protocol_header(0) + frame(Open(container_id="c")))

    def tell(self, data: bytes) -> None:
        while not self.world.core.receive(self.record, data, self.world.now):
            data = b""
        self.world.core.data_to_send(self.record, self.world.now)
        self.world.core.sent(self.record, self.world.now)


def test_a_login_by_a_token_gives_the_same_identity_and_ends_with_it() -> None:
    world = TokenNetwork(POLICY)
    login = Login(world, bearer(world.wall(), team="billing", note="x" * 2000))
    login.open()
    peer = login.record.peer
    assert (peer.user, peer.tenant, peer.mechanism) == ("alice", "billing", "OAUTHBEARER")
    assert peer.claims["team"] == ("billing",)
    assert login.record.rights is not None
    assert login.record.rights.send("q/1") is not None
    world.advance(71)
    assert login.record.lost
    assert world.core.context.denied == 0
    world.core.receive_eof(login.record, world.now)
    world.leave()


def test_a_login_whose_claims_give_no_tenant_is_refused() -> None:
    world = TokenNetwork(POLICY.replace("default = true", 'match = [{ user = "ops" }]'))
    login = Login(world, bearer(world.wall(), team="shop"))
    login.open()
    assert login.record.lost
    assert world.core.context.denied == 1
    world.core.receive_eof(login.record, world.now)
    world.advance(1)  # the log counts the logins of a second
    assert not world.core.context.timers
    world.leave()


def test_a_token_that_expires_between_login_and_open_lets_nobody_in() -> None:
    world = TokenNetwork(tokens=TokensConfig())
    login = Login(world, bearer(world.wall(), exp=int(world.wall()) - 8))
    world.advance(5)
    login.open()
    world.advance(0)
    assert login.record.lost
    world.core.receive_eof(login.record, world.now)
    world.leave()


def test_a_connection_that_has_ended_leaves_nothing_behind() -> None:
    world = TokenNetwork()
    gc.collect()
    gc.disable()
    try:
        for lose in (True, False):
            client = world.client_with()
            Putting(client)
            if lose:
                client.lose()
            else:
                client.close()
            world.clients.remove(client)
            del client
            assert not world.core.context.timers
            assert world.core.count_garbage_and_present() == (0, 0), "no circle of references holds it"
    finally:
        gc.enable()


def test_tokens_are_taken_under_tls_only_beyond_loopback() -> None:
    world = TokenNetwork()
    tls = TlsConfig(certificate=Path("c"), key=Path("k"))
    world.listener = replace(world.listener, url="amqp://0.0.0.0:0", tls=tls, sasl=("ANONYMOUS", "MSSBCBS"))
    assert world.listener.mechanisms(secured=False) == ("ANONYMOUS",)
    client = world.client()
    assert refusal(client, client.sender("$cbs")) == "amqp:not-allowed"
    assert refusal(client, client.receiver("$cbs")) == "amqp:not-allowed"
    client.record.tls = "TLSv1.3"
    assert Putting(client).put(bearer(world.wall()))[0] == 202


def test_limits_of_the_tenant_that_a_login_gives_are_in_our_open() -> None:
    limited = POLICY.replace('value = "billing" }]', 'value = "billing" }]\n    limits = { frame = 2048 }', 1)
    world = TokenNetwork(limited)
    login = Login(world, bearer(world.wall(), team="billing"))
    login.open()
    assert login.record.engine.settings.max_frame_size == 2048
    world.core.receive_eof(login.record, world.now)
    world.leave()
    assert all(each.is_idle for each in world.core.context.usages), "nothing is counted any more"
