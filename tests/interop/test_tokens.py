"""Tokens of clients that we did not write: by SASL, and by claims-based security."""

from __future__ import annotations

import time

import pytest

from tests.support.data.tokens import AUDIENCE, ISSUER, bearer, content, key, key_set, signed

pytestmark = pytest.mark.interop

TEXT = {"value": "hello"}
RHEA_TEXT = {"sections": [[0x77, ["string", "hello"]]]}


@pytest.fixture
def secure(start_router, credentials, tmp_path):
    """Start a router that takes tokens under TLS, with a policy that asks for claims; return its URL."""
    (tmp_path / "keys.json").write_bytes(key_set(key("one")))
    (tmp_path / "sender.key").write_text("c2VjcmV0")
    (tmp_path / "policy.toml").write_text("""
        [[tenant]]
        name = "billing"
        match = [{ claim = "team", value = "billing" }, { user = "sender" }]
        [[group]]
        tenant = "billing"
        name = "all"
        send = ["hub"]
        receive = ["hub"]
    """)
    router = start_router(f"""
        [router]
        id = "A"
        drain = 0.2
        [policy]
        file = "{tmp_path}/policy.toml"
        [[token_issuer]]
        issuer = "{ISSUER}"
        audience = ["{AUDIENCE}"]
        jwks = "{tmp_path}/keys.json"
        [[token_key]]
        name = "sender"
        keys = [{{ file = "{tmp_path}/sender.key" }}]
        audience = ["amqps://mesh.example/"]
        [[listener]]
        url = "amqps://127.0.0.1:0"
        sasl = ["OAUTHBEARER", "XOAUTH2", "MSSBCBS", "ANONYMOUS"]
        cbs = true
        tls = {{ certificate = "{credentials.certificate}", key = "{credentials.key}" }}
    """)
    return router.url.replace("127.0.0.1", "localhost")


@pytest.fixture
def known(credentials):
    return ("--trust", str(credentials.trust), "--address", "hub")


@pytest.fixture
def token(tmp_path):
    """Return a function that writes a token, and returns its file."""

    def write(text=None, **claims):
        file = tmp_path / "token"
        file.write_text(text or bearer(time.time(), **{"team": "billing", **claims}))
        return str(file)

    return write


@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "XOAUTH2"])
def test_a_good_token_logs_a_client_in_and_a_forged_one_does_not(mechanism, secure, known, token, client):
    login = ("--mechanism", mechanism, "--user", "anybody", "--token", token(padding="x" * 3000))
    receiver = client("rhea_receive", secure, *known, *login)
    sender = client("rhea_send", secure, *known, *login, messages=[RHEA_TEXT])
    sender.finish()
    receiver.finish()
    assert sender.of("outcome")[0]["outcome"] == "accepted"
    token(signed(content(time.time(), team="billing"), key("two"), kid="one"))
    refused = client("rhea_receive", secure, *known, *login)
    refused.finish(1)
    assert refused.of("failed")
    assert not refused.of("opened")


def test_azures_stack_puts_its_tokens(secure, known, token, client):
    by_token, by_key = ("--token", token()), ("--key", "sender=c2VjcmV0")
    refused = client("azure_send", secure, *known, "--key", "sender=wrong", messages=[TEXT])
    for receiving, sending in ((by_token, by_key), (by_key, by_token)):
        receiver = client("azure_receive", secure, *known, *receiving, "--count", "2")
        receiver.expect("attached")
        sender = client("azure_send", secure, *known, *sending, messages=[TEXT, TEXT])
        sender.finish()
        receiver.finish()
        assert [event["outcome"] for event in sender.of("outcome")] == ["accepted"] * 2
    refused.finish(1)
    assert not refused.of("outcome")


def test_tokens_are_put_again_and_expire_with_a_reason(secure, known, client):
    now = time.time()
    good, bad = bearer(now, team="billing"), bearer(now, aud="another", team="billing")
    soon = bearer(now, team="billing", exp=int(now) - 8)  # it is valid for the leeway of ten seconds
    tokens = [bad, good, bad, soon]
    putting = client("rhea_put_token", secure, *known, "--mechanism", "MSSBCBS", "--stay", messages=tokens)
    putting.expect("attached")
    assert [event["status"] for event in putting.of("answer")] == [401, 202, 401, 202]
    putting.finish(1)
    assert "the token has expired" in putting.of("failed")[0]["error"]
