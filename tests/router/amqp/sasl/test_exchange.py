"""The SASL exchange in frames: our client with our server, and with peers that break the rules."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.router.amqp.codec.composite import decode_composite
from amqpmesh.router.amqp.codec.types import Described, Symbol
from amqpmesh.router.amqp.codec.values import decode
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.sasl.exchange import (
    MAX_BODY_SIZE,
    SaslChallenge,
    SaslClient,
    SaslCode,
    SaslInit,
    SaslOutcome,
    SaslResponse,
    SaslServer,
)
from amqpmesh.router.amqp.sasl.mechanisms import ScramKeys
from tests.support.peers.sasl import ALL, Users, challenge, init, mechanisms, outcome, response, started

WITH_PASSWORD = ALL[1:4]


def exchange(server: SaslServer, client: SaslClient) -> list[bytes]:
    """Run an exchange to its end. Returns: all frame bodies, in order."""
    assert client.start() == []
    to_client, said = server.start(), list[bytes]()
    to_server = list[bytes]()
    while to_client or to_server:
        said += to_client + to_server
        to_server, to_client = (
            [answer for body in to_client for answer in client.receive(body)],
            [answer for body in to_server for answer in server.receive(body)],
        )
    assert all(len(body) <= MAX_BODY_SIZE for body in said)
    return said


def the_challenge(bodies: Sequence[bytes]) -> bytes:
    (body,) = bodies
    return decode_composite(SaslChallenge, body)[0].challenge


def the_outcome(bodies: Sequence[bytes]) -> SaslOutcome:
    (body,) = bodies
    return decode_composite(SaslOutcome, body)[0]


# Our client with our server


@pytest.mark.parametrize("mechanism", ALL)
def test_every_mechanism_lets_our_client_into_our_server(mechanism: str) -> None:
    server = SaslServer([mechanism], Users(), external_user="ada")
    client = SaslClient([mechanism], "ada", "lovelace", hostname="router.example", external=True)
    assert not server.done
    assert not client.done
    exchange(server, client)
    assert server.succeeded
    assert client.succeeded
    assert server.mechanism == client.mechanism == mechanism
    assert server.user == (None if mechanism == "ANONYMOUS" else "ada")
    assert client.user == ("ada" if mechanism in WITH_PASSWORD else None)
    assert server.hostname == "router.example"


@pytest.mark.parametrize("mechanism", WITH_PASSWORD)
@pytest.mark.parametrize(("user", "password"), [("ada", "byron"), ("bob", "lovelace")])
def test_bad_credentials_end_in_auth_on_both_sides(mechanism: str, user: str, password: str) -> None:
    server, client = SaslServer([mechanism], Users()), SaslClient([mechanism], user, password)
    said = exchange(server, client)
    assert server.outcome is client.outcome is SaslCode.AUTH
    assert server.user is client.user is None
    assert the_outcome(said[-1:]).additional_data is None  # §5.3.3.5
    assert server.reason
    assert client.reason == "the server does not accept the credentials (auth)"


@pytest.mark.parametrize("code", [code for code in SaslCode if code is not SaslCode.OK])
def test_each_refusal_is_told_in_words_and_by_its_name(code: SaslCode) -> None:
    client = SaslClient(["ANONYMOUS"])
    client.start()
    client.receive(mechanisms("ANONYMOUS"))
    client.receive(outcome(code))
    assert client.outcome is code
    assert client.reason.startswith("the server ")
    assert client.reason.endswith(f" ({code.name.lower().replace('_', '-')})")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-1", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_nobody_can_tell_an_unknown_user_from_a_wrong_password(mechanism: str) -> None:
    servers = [SaslServer([mechanism], Users()) for _ in range(2)]
    unknown = exchange(servers[0], SaslClient([mechanism], "bob", "lovelace"))
    wrong = exchange(servers[1], SaslClient([mechanism], "ada", "byron"))
    assert [len(body) for body in unknown] == [len(body) for body in wrong]
    assert unknown[-1] == wrong[-1]
    assert servers[0].reason == servers[1].reason


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@settings(max_examples=40)
@given(mechanism=st.sampled_from(WITH_PASSWORD), user=texts, password=texts)
def test_a_client_is_let_in_or_says_beforehand_that_it_cannot_ask(mechanism: str, user: str, password: str) -> None:
    class Anybody(Users):
        def verify_plain(self, user: str, password: str) -> bool:
            return True

        def scram_keys(self, user: str, mechanism: str) -> ScramKeys | None:
            return Users({user: password}).scram_keys(user, mechanism)

    server = SaslServer([mechanism], Anybody())
    try:
        client = SaslClient([mechanism], user, password)
    except CommandError:
        return
    exchange(server, client)
    assert server.outcome is client.outcome
    # With PLAIN the server prepares names, so the server refuses this one.
    if not server.succeeded:
        assert mechanism == "PLAIN"
        assert server.reason.startswith(("a user name or password that SASLprep refuses", "an empty user name"))


# The choice of a mechanism


def test_the_client_chooses_what_it_likes_best_of_what_is_offered() -> None:
    server, client = SaslServer(["ANONYMOUS", "PLAIN", "SCRAM-SHA-1"], Users()), SaslClient(ALL, "ada", "lovelace")
    exchange(server, client)
    assert client.mechanism == server.mechanism == "SCRAM-SHA-1"


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [(ALL, "ANONYMOUS"), (("SCRAM-SHA-1", "ANONYMOUS", "PLAIN"), "ANONYMOUS"), (("EXTERNAL", "PLAIN"), None)],
)
def test_a_client_passes_over_what_it_has_no_credentials_for(offered: tuple[str, ...], chosen: str | None) -> None:
    client = SaslClient(ALL)
    client.start()
    answers = client.receive(mechanisms(*offered))
    assert client.mechanism == chosen
    if chosen is None:
        assert answers == []
        assert client.outcome is SaslCode.AUTH
        assert client.reason == "none of ANONYMOUS is offered"


def test_external_is_offered_to_those_who_have_a_certificate() -> None:
    assert SaslServer(ALL, Users()).start() == [mechanisms(*ALL[1:])]
    assert SaslServer(ALL, Users(), external_user="ada").start() == [mechanisms(*ALL)]


def test_external_alone_is_offered_to_everybody_as_something_must_be_and_lets_nobody_in() -> None:
    server = SaslServer(["EXTERNAL"], Users())
    assert server.start() == [mechanisms("EXTERNAL")]
    assert the_outcome(server.receive(init("EXTERNAL", b""))).code is SaslCode.AUTH


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256-PLUS", "plain", "GSSAPI", ""])
def test_a_mechanism_that_was_not_offered_ends_in_auth(mechanism: str) -> None:
    server = started("ANONYMOUS", "SCRAM-SHA-256")
    assert the_outcome(server.receive(init(mechanism, b"\0ada\0lovelace"))).code is SaslCode.AUTH
    assert server.done
    assert not server.succeeded
    assert server.mechanism is None


@pytest.mark.parametrize("names", [[], ["GSSAPI"], ["PLAIN", "SCRAM-SHA-256-PLUS"]])
def test_only_mechanisms_that_we_speak_can_be_configured(names: list[str]) -> None:
    with pytest.raises(CommandError, match="SCRAM-SHA-256"):
        SaslServer(names, Users())
    with pytest.raises(CommandError, match="SCRAM-SHA-256"):
        SaslClient(names, "ada", "lovelace")


def test_a_client_needs_credentials_for_something() -> None:
    with pytest.raises(CommandError, match="no credentials"):
        SaslClient(["EXTERNAL", "PLAIN", "SCRAM-SHA-1"], "ada")


@pytest.mark.parametrize("mechanism", WITH_PASSWORD)
def test_credentials_that_do_not_fit_a_frame_are_our_callers_mistake(mechanism: str) -> None:
    with pytest.raises(CommandError, match="512 octets"):
        SaslClient([mechanism], "a" * 600, "lovelace")


# Initial responses


@pytest.mark.parametrize("mechanism", WITH_PASSWORD)
def test_an_empty_initial_response_is_one_and_no_password(mechanism: str) -> None:
    server = SaslServer([mechanism], Users())
    server.start()
    server.receive(init(mechanism, b""))
    assert server.outcome is SaslCode.AUTH


@pytest.mark.parametrize("mechanism", WITH_PASSWORD)
def test_a_client_without_an_initial_response_is_asked_for_it(mechanism: str) -> None:
    server = SaslServer([mechanism], Users())
    client = SaslClient([mechanism], "ada", "lovelace")
    client.start()
    (started_with,) = client.receive(server.start()[0])
    assert the_challenge(server.receive(init(mechanism, None))) == b""
    said = decode_composite(SaslInit, started_with)[0].initial_response
    assert said
    answers = server.receive(response(said))
    while not server.done:
        answers = server.receive(client.receive(answers[0])[0])
    client.receive(answers[0])
    assert server.user == client.user == "ada"


@pytest.mark.parametrize("mechanism", WITH_PASSWORD)
def test_a_client_that_never_says_anything_is_not_let_in(mechanism: str) -> None:
    server = started(mechanism)
    assert the_challenge(server.receive(init(mechanism))) == b""
    assert the_outcome(server.receive(response(b""))).code is SaslCode.AUTH


@pytest.mark.parametrize("first", [None, b""])
@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "EXTERNAL"])
def test_where_there_may_be_nothing_to_say_nothing_is_asked(mechanism: str, first: bytes | None) -> None:
    server = started(external_user="ada")
    assert the_outcome(server.receive(init(mechanism, first))).code is SaslCode.OK


# The server's proof


def scram_until_proof() -> tuple[SaslClient, bytes]:
    """Return a client that waits for the server's proof, and the proof."""
    server, client = SaslServer(["SCRAM-SHA-256"], Users()), SaslClient(["SCRAM-SHA-256"], "ada", "lovelace")
    client.start()
    bodies = server.start()
    for _ in range(2):
        bodies = server.receive(client.receive(bodies[0])[0])
    proof = the_outcome(bodies).additional_data
    assert proof is not None
    assert proof.startswith(b"v=")
    return client, proof


def test_a_client_takes_the_servers_proof_with_the_outcome() -> None:
    client, proof = scram_until_proof()
    assert client.receive(outcome(SaslCode.OK, proof)) == []
    assert client.succeeded


def test_a_client_takes_the_servers_proof_in_a_challenge() -> None:
    client, proof = scram_until_proof()
    assert client.receive(challenge(proof)) == [response(b"")]
    assert client.receive(outcome(SaslCode.OK)) == []
    assert client.succeeded


@pytest.mark.parametrize("data", [None, b"", b"v=AAAA", b"nonsense"])
def test_a_client_believes_no_server_that_does_not_prove_itself(data: bytes | None) -> None:
    client, _ = scram_until_proof()
    assert client.receive(outcome(SaslCode.OK, data)) == []
    assert client.outcome is SaslCode.AUTH
    assert client.user is None


def test_a_client_believes_no_server_that_says_ok_at_once() -> None:
    client = SaslClient(["SCRAM-SHA-256"], "ada", "lovelace")
    client.start()
    client.receive(mechanisms("SCRAM-SHA-256"))
    client.receive(outcome(SaslCode.OK))
    assert client.outcome is SaslCode.AUTH
    assert "proved" in client.reason


def test_a_client_gives_up_on_a_challenge_that_its_mechanism_does_not_have() -> None:
    client = SaslClient(["PLAIN"], "ada", "lovelace")
    client.start()
    client.receive(mechanisms("PLAIN"))
    assert client.receive(challenge(b"")) == []
    assert client.outcome is SaslCode.AUTH


@pytest.mark.parametrize("code", [code for code in SaslCode if code is not SaslCode.OK])
def test_a_client_tells_what_the_server_said(code: SaslCode) -> None:
    client = SaslClient(["ANONYMOUS"])
    client.start()
    client.receive(mechanisms("ANONYMOUS"))
    client.receive(outcome(code))
    assert client.outcome is code
    assert not client.succeeded


class BrokenError(Exception):
    """A fault of an authenticator."""


class Broken(Users):
    def verify_plain(self, user: str, password: str) -> bool:
        raise BrokenError

    def scram_keys(self, user: str, mechanism: str) -> ScramKeys | None:
        raise BrokenError


@pytest.mark.parametrize("mechanism", WITH_PASSWORD)
def test_an_authenticator_that_fails_is_a_system_error_and_is_not_hidden(mechanism: str) -> None:
    server, client = SaslServer([mechanism], Broken()), SaslClient([mechanism], "ada", "lovelace")
    exchange(server, client)
    assert server.outcome is client.outcome is SaslCode.SYS
    assert isinstance(server.authenticator_error, BrokenError)


def test_an_outcome_is_written_in_full() -> None:
    (body,) = started().receive(init("GSSAPI"))
    value, _ = decode(body)
    assert isinstance(value, Described)
    assert value.value == [1, None]


def test_credentials_do_not_show() -> None:
    frames = [
        SaslInit(mechanism=Symbol("PLAIN"), initial_response=b"\0ada\0lovelace"),
        SaslChallenge(challenge=b"lovelace"),
        SaslResponse(response=b"lovelace"),
        SaslOutcome(code=SaslCode.OK, additional_data=b"lovelace"),
    ]
    server, client = started("PLAIN"), SaslClient(["PLAIN"], "ada", "lovelace")
    assert "lovelace" not in repr([*frames, server, client])
    assert repr(frames[0]) == "SaslInit(mechanism=Symbol('PLAIN'), initial_response=<13 octets>)"
