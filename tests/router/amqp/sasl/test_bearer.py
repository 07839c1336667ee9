"""OAUTHBEARER and XOAUTH2, and MSSBCBS: a client's messages, and the server's answers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from amqpmesh.router.amqp.codec.composite import decode_composite
from amqpmesh.router.amqp.errors import CommandError, ProtocolError
from amqpmesh.router.amqp.sasl.bearer import BearerError, oauthbearer, xoauth2
from amqpmesh.router.amqp.sasl.exchange import (
    BESIDE_TOKEN,
    SaslChallenge,
    SaslClient,
    SaslCode,
    SaslOutcome,
    SaslServer,
)
from amqpmesh.router.amqp.sasl.mechanisms import BusyError, MechanismError
from tests.support.peers.sasl import Users, init, response

SIZE = 8192


@dataclass
class Proved:
    """The content of a token."""

    user: str


class Judge:
    """A judge who takes one token."""

    def judge(self, token: str) -> Proved:
        if token == "later":
            raise BusyError("its keys are not known yet")
        if not token.startswith("good"):
            raise MechanismError("the token is not good")
        return Proved("ada")


def server(*mechanisms: str, judge: Judge | None = None) -> SaslServer:
    made = SaslServer(mechanisms, Users(), tokens=judge or Judge(), token_size=SIZE)
    made.start()
    return made


def outcome(bodies: list[bytes]) -> SaslCode:
    (body,) = bodies
    return decode_composite(SaslOutcome, body)[0].code


def bearer(token: str, header: str = "n,a=ada,") -> bytes:
    return f"{header}\x01host=x\x01port=5671\x01auth=Bearer {token}\x01\x01".encode()


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        ("OAUTHBEARER", bearer("good")),
        ("OAUTHBEARER", bearer("good", "n,,")),
        ("OAUTHBEARER", bearer("good", "y,,")),
        ("OAUTHBEARER", b"n,,\x01auth=bEARER good\x01\x01"),
        ("OAUTHBEARER", b"n,,\x01auth=Bearer  good \x01\x01"),
        ("XOAUTH2", b"user=ada\x01auth=Bearer good\x01\x01"),
        ("XOAUTH2", b"user=anybody\x01auth=Bearer good\x01\x01"),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_good_token_lets_the_client_in(mechanism: str, message: bytes, at_once: bool) -> None:
    offering = server(mechanism)
    if at_once:
        said = offering.receive(init(mechanism, message))
    else:
        (empty,) = offering.receive(init(mechanism))
        assert decode_composite(SaslChallenge, empty)[0].challenge == b""
        said = offering.receive(response(message))
    assert outcome(said) is SaslCode.OK
    assert offering.user == "ada"
    assert offering.token == Proved("ada")


def test_oauthbearer_tells_the_error_in_a_challenge_and_then_fails() -> None:
    offering = server("OAUTHBEARER")
    (body,) = offering.receive(init("OAUTHBEARER", bearer("bad")))
    assert decode_composite(SaslChallenge, body)[0].challenge == b'{"status":"invalid_token"}'
    assert not offering.done
    assert outcome(offering.receive(response(b"\x01"))) is SaslCode.AUTH
    assert offering.reason == "the token is not good"
    assert offering.user is offering.token is None


@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "XOAUTH2"])
def test_a_token_that_cannot_be_judged_yet_may_come_again(mechanism: str) -> None:
    message = bearer("later") if mechanism == "OAUTHBEARER" else b"user=x\x01auth=Bearer later\x01\x01"
    assert outcome(server(mechanism).receive(init(mechanism, message))) is SaslCode.SYS_TEMP


def test_xoauth2_fails_at_once() -> None:
    assert outcome(server("XOAUTH2").receive(init("XOAUTH2", b"user=x\x01auth=Bearer bad\x01\x01"))) is SaslCode.AUTH


def test_nobody_acts_as_another() -> None:
    offering = server("OAUTHBEARER")
    offering.receive(init("OAUTHBEARER", bearer("good", "n,a=bob,")))
    assert outcome(offering.receive(response(b"\x01"))) is SaslCode.AUTH
    assert "identity" in offering.reason


@pytest.mark.parametrize(
    "message",
    [
        "",
        "\x01",
        "n,,",
        "n,,\x01\x01",
        "n,,\x01auth=Bearer x",
        "n,,\x01auth=Bearer x\x01",
        "n,,\x01auth=Basic x\x01\x01",
        "n,,\x01auth=Bearer\x01\x01",
        "n,,\x01auth=Bearer \x01\x01",
        "n,,\x01auth=Bearer x\x01auth=Bearer y\x01\x01",
        "n,\x01auth=Bearer x\x01\x01",
        "p=tls-unique,,\x01auth=Bearer x\x01\x01",
        "n,b=ada,\x01auth=Bearer x\x01\x01",
        "n,a=a=b,\x01auth=Bearer x\x01\x01",
        "n,a=ada,x\x01auth=Bearer x\x01\x01",
    ],
)
def test_such_a_message_is_malformed(message: str) -> None:
    with pytest.raises(BearerError):
        oauthbearer(message)
    offering = server("OAUTHBEARER")
    assert outcome(offering.receive(init("OAUTHBEARER", message.encode()))) is SaslCode.AUTH
    for text in (message, message.replace("n,,", "usr=x"), message.replace("n,,", "user=x")):
        if text != "user=x\x01auth=Bearer x\x01\x01":
            with pytest.raises(BearerError):
                xoauth2(text)


def test_a_name_may_have_a_comma() -> None:
    assert oauthbearer("n,a=a=2Cb=3Dc,\x01auth=Bearer x\x01\x01").authorization == "a,b=c"


@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "XOAUTH2"])
def test_octets_that_are_no_text_are_refused(mechanism: str) -> None:
    assert outcome(server(mechanism).receive(init(mechanism, b"\xff"))) is SaslCode.AUTH


def test_a_token_may_be_larger_than_a_frame_of_sasl_and_has_a_limit() -> None:
    offering = server("OAUTHBEARER")
    assert offering.max_frame_size == SIZE + BESIDE_TOKEN
    assert outcome(offering.receive(init("OAUTHBEARER", bearer("good" + "x" * 8000)))) is SaslCode.OK
    with pytest.raises(ProtocolError, match="9216 octets"):
        server("OAUTHBEARER").receive(init("OAUTHBEARER", bearer("x" * 9300)))
    with pytest.raises(ProtocolError, match="512 octets"):
        server("PLAIN").receive(init("PLAIN", b"x" * 600))


def test_without_a_judge_no_token_is_taken() -> None:
    offering = SaslServer(["XOAUTH2"], Users())
    offering.start()
    assert outcome(offering.receive(init("XOAUTH2", b"user=x\x01auth=Bearer good\x01\x01"))) is SaslCode.AUTH


def test_mssbcbs_lets_a_peer_in_without_a_user() -> None:
    for message in (None, b"", b"anything"):
        offering = server("MSSBCBS")
        assert outcome(offering.receive(init("MSSBCBS", message))) is SaslCode.OK
        assert offering.user is offering.token is None
        assert offering.mechanism == "MSSBCBS"


@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "XOAUTH2", "MSSBCBS"])
def test_our_own_client_shows_no_token(mechanism: str) -> None:
    with pytest.raises(CommandError):
        SaslClient([mechanism], "ada", "lovelace")
