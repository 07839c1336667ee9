"""SASL over TLS: clients that are admitted, and clients that are refused (part 5)."""

from __future__ import annotations

import pytest
from proton import SASL

pytestmark = pytest.mark.interop

TEXT = {"sections": [[0x77, ["string", "hello"]]]}

both = pytest.mark.parametrize("family", ["proton", "rhea"])
SCRAM = ["SCRAM-SHA-1", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@pytest.fixture(scope="module")
def secure(start_secured_router):
    """Start a router for all tests that requires a login by password or certificate, and return its URL."""
    return start_secured_router("amqps://127.0.0.1:0", *reversed(SCRAM), "PLAIN", "EXTERNAL")


@pytest.fixture
def trust(credentials):
    return ("--trust", str(credentials.trust))


def relay(family, url, client, *arguments):
    """Send one message between two clients with the same credentials."""
    receiver = client(f"{family}_receive", url, "--address", "secret", *arguments)
    sender = client(f"{family}_send", url, "--address", "secret", *arguments, messages=[TEXT])
    sender.finish()
    receiver.finish()
    assert sender.of("outcome")[0]["outcome"] == "accepted"


def password(mechanism, secret="correct horse"):
    return ("--mechanism", mechanism, "--user", "alice", "--password", secret)


@pytest.fixture
def needs_cyrus(request):
    """Skip SCRAM with proton unless it was built with Cyrus SASL; rhea's clients always have SCRAM."""
    if not SASL.extended():
        request.getfixturevalue("required_in_ci")("a python-qpid-proton with Cyrus SASL (built with libsasl2-dev)")


@both
def test_plain(family, secure, trust, client):
    relay(family, secure, client, *trust, *password("PLAIN"))


@pytest.mark.parametrize("mechanism", SCRAM)
def test_scram_of_proton(mechanism, needs_cyrus, secure, trust, client):
    relay("proton", secure, client, *trust, *password(mechanism))


@pytest.mark.parametrize("mechanism", SCRAM)
def test_scram_of_rhea(mechanism, secure, trust, client):
    relay("rhea", secure, client, *trust, *password(mechanism))


@both
def test_external(family, secure, trust, client, credentials):
    certificate = ("--certificate", str(credentials.client_certificate), "--key", str(credentials.client_key))
    relay(family, secure, client, *trust, *certificate, "--mechanism", "EXTERNAL")


@pytest.mark.parametrize(
    ("family", "mechanism"),
    [("proton", "PLAIN"), ("rhea", "PLAIN"), ("rhea", "SCRAM-SHA-1"), ("rhea", "SCRAM-SHA-256")],
)
def test_a_wrong_password_is_refused(family, mechanism, secure, trust, client):
    sender = client(
        f"{family}_send", secure, "--address", "secret", *trust, *password(mechanism, "wrong"), messages=[TEXT]
    )
    sender.finish(status=1)
    assert sender.of("opened") == []


@pytest.mark.parametrize("mechanism", SCRAM)
def test_a_wrong_password_is_refused_to_scram_of_proton(mechanism, needs_cyrus, secure, trust, client):
    sender = client(
        "proton_send", secure, "--address", "secret", *trust, *password(mechanism, "wrong"), messages=[TEXT]
    )
    sender.finish(status=1)
    assert sender.of("opened") == []


@both
def test_nobody_comes_in_without_a_certificate_by_external(family, secure, trust, client):
    sender = client(f"{family}_send", secure, "--address", "secret", *trust, "--mechanism", "EXTERNAL", messages=[TEXT])
    sender.finish(status=1)
    assert sender.of("opened") == []


@pytest.mark.parametrize(("family", "mechanism"), [("proton", "NONE"), ("proton", "ANONYMOUS"), ("rhea", "ANONYMOUS")])
def test_nobody_comes_in_without_a_name(family, mechanism, secure, trust, client):
    sender = client(f"{family}_send", secure, "--address", "secret", *trust, "--mechanism", mechanism, messages=[TEXT])
    sender.finish(status=1)
    assert sender.of("opened") == []


def test_a_client_that_does_not_trust_the_router_does_not_talk_to_it(secure, client):
    sender = client("rhea_send", secure, "--address", "secret", *password("PLAIN"), messages=[TEXT])
    sender.finish(status=1)
    assert sender.of("opened") == []


def test_plain_is_not_offered_without_tls(start_router, users, client):
    router = start_router(f"""
        [router]
        id = "A"
        drain = 0.2
        [[listener]]
        url = "amqp://127.0.0.1:0"
        sasl = ["SCRAM-SHA-256"]
        users = "{users}"
    """)
    refused = client("rhea_send", router.url, "--address", "x", *password("PLAIN"), messages=[TEXT])
    refused.finish(status=1)
    relay("rhea", router.url, client, *password("SCRAM-SHA-256"))


def test_one_that_was_refused_does_not_disturb_the_others(secure, trust, client):
    receiver = client("proton_receive", secure, "--address", "secret", *trust, *password("PLAIN"))
    receiver.expect("attached")
    refused = client("proton_send", secure, "--address", "secret", *trust, *password("PLAIN", "wrong"), messages=[TEXT])
    refused.finish(status=1)
    sender = client("proton_send", secure, "--address", "secret", *trust, *password("PLAIN"), messages=[TEXT])
    sender.finish()
    receiver.finish()
