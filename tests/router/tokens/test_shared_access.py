"""Shared access signatures: those that are valid, and those of an attacker."""

from __future__ import annotations

import pytest

from amqpmesh.router.tokens.identity import TokenError, TokenIdentity
from tests.support.data.tokens import NOW, RESOURCE, named_key, shared_access, tokens

SAS = "servicebus.windows.net:sastoken"


def judge(token: str, **settings: object) -> TokenIdentity:
    return tokens(named_key(**settings)).judge_put(SAS, token)


def test_a_valid_signature_gives_what_its_key_is_for() -> None:
    found = judge(shared_access(), user="fleet", groups=("senders",), tenant="billing", scopes=("write:billing/*",))
    assert found.user == "fleet"
    assert found.groups == ("senders",)
    assert found.tenant == "billing"
    assert found.scopes == ("write:billing/*",)
    assert found.expires == NOW + 70
    assert judge(shared_access()).user == "sender"


@pytest.mark.parametrize("resource", [RESOURCE, RESOURCE[:-1], f"{RESOURCE}orders/1", RESOURCE.upper()])
def test_a_resource_below_the_audience_is_taken(resource: str) -> None:
    assert judge(shared_access(resource=resource)).user == "sender"


@pytest.mark.parametrize(
    "resource",
    ["amqps://mesh.example.evil/", "amqps://other.example/", "amqps://mesh.exampleX", "sb://mesh.example/", "/"],
)
def test_another_resource_is_refused(resource: str) -> None:
    with pytest.raises(TokenError, match="audience"):
        judge(shared_access(resource=resource))


def test_time_is_bounded_on_both_sides() -> None:
    assert judge(shared_access(NOW - 9))
    with pytest.raises(TokenError, match="expired"):
        judge(shared_access(NOW - 11))
    assert judge(shared_access(NOW + 3600), lifetime=3600.0)
    with pytest.raises(TokenError, match="longer"):
        judge(shared_access(NOW + 3620), lifetime=3600.0)


@pytest.mark.parametrize(("name", "secret"), [("other", b"c2VjcmV0"), ("sender", b"wrong"), ("sender", b"")])
def test_a_wrong_key_and_an_unknown_one_are_refused_alike(name: str, secret: bytes) -> None:
    with pytest.raises(TokenError) as error:
        judge(shared_access(name=name, secret=secret))
    assert str(error.value) == "the token's key is not known, or its signature is wrong"


def test_each_of_several_secrets_is_good_while_it_is_configured() -> None:
    several = tokens(named_key())
    several.change(several._config, {"sender": (b"new", b"c2VjcmV0")})
    for secret in (b"new", b"c2VjcmV0"):
        assert several.judge_put(SAS, shared_access(secret=secret))
    several.change(several._config, {"sender": (b"new",)})
    with pytest.raises(TokenError):
        several.judge_put(SAS, shared_access())


@pytest.mark.parametrize(
    "change",
    [
        lambda token: token.replace("SharedAccessSignature", "SharedAccess"),
        lambda token: token.replace("SharedAccessSignature ", ""),
        lambda token: token + "&se=9999999999",
        lambda token: token + "&x=1",
        lambda token: token.replace("&skn=sender", ""),
        lambda token: token.replace("skn=sender", "skn="),
        lambda token: token.replace("se=1", "se=+1"),
        lambda token: token.replace("se=1", "se=1_"),
        lambda token: token.replace("se=1", "se=1e"),
        lambda token: token.replace("se=1", "se=9"),
        lambda token: token.replace("sr=", "sr=x"),
        lambda token: token.replace("sig=", "sig=%00"),
        lambda token: token.replace("skn=sender", "skn=s%65nder%00"),
        lambda token: token.replace("=sender", "=sénder"),
        lambda token: "SharedAccessSignature " + "&" * 9000,
        lambda token: "SharedAccessSignature " + "&" * 3000,
        lambda _: "",
    ],
)
def test_a_token_that_was_changed_is_refused(change: object) -> None:
    with pytest.raises(TokenError):
        judge(change(shared_access()))  # type: ignore[operator]  # each is a function of a text


def test_no_secret_is_shown() -> None:
    judging = tokens(named_key())
    assert "c2VjcmV0" not in repr(judging._shared_access._keys)
    with pytest.raises(LookupError):
        judging.judge_put("swt", shared_access())
