"""SASL peers that break the rules: one error or one outcome, and no authentication."""

from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.router.amqp.codec.composite import decode_composite
from amqpmesh.router.amqp.codec.types import Described, Symbol, ULong
from amqpmesh.router.amqp.codec.values import encode
from amqpmesh.router.amqp.errors import ProtocolError, Scope
from amqpmesh.router.amqp.sasl.exchange import (
    MAX_BODY_SIZE,
    SaslClient,
    SaslCode,
    SaslInit,
    SaslOutcome,
    SaslServer,
)
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, ConnectionCondition
from tests.support.peers.sasl import ALL, Users, challenge, init, mechanisms, outcome, response, started


def the_outcome(bodies: Sequence[bytes]) -> SaslOutcome:
    (body,) = bodies
    return decode_composite(SaslOutcome, body)[0]


def refused(receive: Callable[[bytes], object], body: bytes) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        receive(body)
    assert caught.value.scope is Scope.CONNECTION
    return caught.value


def after(server: SaslServer, *bodies: bytes) -> SaslServer:
    for body in bodies:
        server.receive(body)
    return server


def client_after(*bodies: bytes) -> SaslClient:
    client = SaslClient(["PLAIN", "ANONYMOUS"])
    client.start()
    for body in bodies:
        client.receive(body)
    return client


@pytest.mark.parametrize(
    ("receive", "body"),
    [
        (SaslServer(ALL, Users()).receive, init("ANONYMOUS")),  # before the first frame of the server
        (started().receive, response(b"")),
        (after(started(), init("PLAIN")).receive, init("PLAIN", b"\0ada\0lovelace")),
        (after(started(), init("ANONYMOUS")).receive, init("ANONYMOUS")),
        (after(started(), init("ANONYMOUS")).receive, response(b"")),
        (after(started(), init("GSSAPI")).receive, init("ANONYMOUS")),
        (SaslClient(["ANONYMOUS"]).receive, mechanisms("ANONYMOUS")),
        (client_after().receive, challenge(b"")),
        (client_after().receive, outcome(SaslCode.OK)),
        (client_after(mechanisms("ANONYMOUS")).receive, mechanisms("ANONYMOUS")),
        (client_after(mechanisms("ANONYMOUS"), outcome(SaslCode.OK)).receive, outcome(SaslCode.OK)),
        (client_after(mechanisms("PLAIN")).receive, outcome(SaslCode.OK)),
    ],
)
def test_a_frame_out_of_turn_is_an_illegal_state(receive: Callable[[bytes], object], body: bytes) -> None:
    assert refused(receive, body).condition == AmqpCondition.ILLEGAL_STATE


@pytest.mark.parametrize("body", [mechanisms("PLAIN"), challenge(b""), outcome(SaslCode.OK)])
def test_a_server_takes_no_frame_of_a_server(body: bytes) -> None:
    assert refused(started().receive, body).condition == AmqpCondition.DECODE_ERROR


@pytest.mark.parametrize("body", [init("PLAIN"), response(b"")])
def test_a_client_takes_no_frame_of_a_client(body: bytes) -> None:
    assert refused(client_after().receive, body).condition == AmqpCondition.DECODE_ERROR


@pytest.mark.parametrize(
    ("body", "condition"),
    [
        (b"", ConnectionCondition.FRAMING_ERROR),  # §5.3.1: irrecoverable
        (init("PLAIN", bytes(MAX_BODY_SIZE)), ConnectionCondition.FRAMING_ERROR),
        (init("ANONYMOUS") + b"\x40", ConnectionCondition.FRAMING_ERROR),
        (init("ANONYMOUS") + init("ANONYMOUS"), ConnectionCondition.FRAMING_ERROR),
        (b"\x40", AmqpCondition.DECODE_ERROR),
        (init("ANONYMOUS")[:-1], AmqpCondition.DECODE_ERROR),
        (encode(Described(ULong(0x41), [])), AmqpCondition.INVALID_FIELD),
        (encode(Described(ULong(0x41), [None])), AmqpCondition.INVALID_FIELD),
        (encode(Described(ULong(0x41), ["ANONYMOUS"])), AmqpCondition.DECODE_ERROR),
        (encode(Described(ULong(0x41), [Symbol("PLAIN"), "secret"])), AmqpCondition.DECODE_ERROR),
        (encode(Described(ULong(0x10), ["an open"])), AmqpCondition.DECODE_ERROR),
    ],
)
def test_a_frame_that_is_no_sasl_frame_is_refused(body: bytes, condition: Symbol) -> None:
    server = started()
    error = refused(server.receive, body)
    assert error.condition == condition
    assert "secret" not in str(error)
    # Later frames are refused, too.
    assert refused(server.receive, init("ANONYMOUS")).condition == AmqpCondition.ILLEGAL_STATE
    assert not server.done


@pytest.mark.parametrize("names", [[], None])
def test_a_server_without_mechanisms_breaks_the_standard(names: list[str] | None) -> None:
    body = encode(Described(ULong(0x40), [names]))
    assert refused(client_after().receive, body).condition in (AmqpCondition.INVALID_FIELD, AmqpCondition.DECODE_ERROR)


def test_an_outcome_that_the_standard_does_not_know_is_an_invalid_field() -> None:
    body = outcome(SaslCode.OK).replace(b"\x50\x00", b"\x50\x05")
    client = client_after(mechanisms("ANONYMOUS"))
    assert refused(client.receive, body).condition == AmqpCondition.INVALID_FIELD


def test_a_nonce_that_leaves_no_room_for_a_challenge_ends_in_auth() -> None:
    server = started()
    answer = server.receive(init("SCRAM-SHA-256", b"n,,n=ada,r=" + b"x" * 430))
    assert the_outcome(answer).code is SaslCode.AUTH


def test_a_server_that_leaves_no_room_for_a_response_is_given_up() -> None:
    client = SaslClient(["SCRAM-SHA-256"], "ada", "lovelace")
    client.start()
    body = client.receive(mechanisms("SCRAM-SHA-256"))[0]
    said = decode_composite(SaslInit, body)[0].initial_response
    assert said is not None
    nonce = said.rpartition(b"r=")[2]
    assert client.receive(challenge(b"r=" + nonce + b"x" * 380 + b",s=QSXCR+Q6sek8bf92,i=4096")) == []
    assert client.outcome is SaslCode.AUTH
    assert "512 octets" in client.reason


bodies = st.one_of(
    st.binary(max_size=60),
    st.builds(
        init,
        st.sampled_from([*ALL, "GSSAPI"]),
        st.none() | st.binary(max_size=40) | st.sampled_from([b"n,,n=ada,r=abc", b"\0ada\0lovelace"]),
    ),
    st.builds(response, st.binary(max_size=40)),
    st.builds(mechanisms, st.sampled_from(ALL)),
    st.builds(challenge, st.binary(max_size=40)),
    st.builds(outcome, st.sampled_from(SaslCode), st.none() | st.binary(max_size=40)),
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    body = bytearray(draw(bodies))
    for _ in range(draw(st.integers(0, 2))):
        if body:
            body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return bytes(body)


def let_in_honestly(server: SaslServer, said: list[bytes]) -> bool:
    return server.mechanism == "ANONYMOUS" or (server.mechanism == "PLAIN" and b"\0ada\0lovelace" in b"".join(said))


@settings(max_examples=300)
@given(said=st.lists(mutated(), max_size=4))
def test_whatever_a_peer_sends_an_exchange_ends_in_one_way(said: list[bytes]) -> None:
    server, client = started(), SaslClient(ALL, "ada", "lovelace")
    client.start()
    for receive in (server.receive, client.receive):
        answers = 0
        with suppress(ProtocolError):  # no other exception
            for body in said:
                answers += len(receive(memoryview(body)))
        assert answers <= 3
    assert not server.succeeded or let_in_honestly(server, said)
