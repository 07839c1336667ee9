"""JSON Web Tokens: those that are valid, and those of an attacker."""

from __future__ import annotations

import json
from hmac import digest
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from joserfc.errors import SecurityWarning
from joserfc.jwk import RSAKey

from amqpmesh.router.config.oauth import TokensConfig
from amqpmesh.router.config.tables import Words
from amqpmesh.router.tokens.identity import NotYetError, TokenError, flattened, parse_object
from amqpmesh.router.tokens.key_sets import KeySetError, parse_key_set
from tests.support.data.tokens import (
    AUDIENCE,
    ISSUER,
    NOW,
    bearer,
    content,
    issuer,
    key,
    key_set,
    put_together,
    signed,
    tokens,
)


def refused(token: str, **settings: Any) -> str:
    with pytest.raises(TokenError) as error:
        tokens(issuer(**settings)).judge(token)
    assert error.value.__cause__ is None
    assert token[:20] not in str(error.value)
    return str(error.value)


def test_a_valid_token_proves_a_user_with_claims() -> None:
    token = bearer(
        team=["billing", "shop"], realm={"roles": ["a"], "deep": {"n": 7}}, admin=True, nothing={}, ratio=1.5
    )
    found = tokens(issuer()).judge(token)
    assert found.user == "alice"
    assert found.expires == NOW + 60 + 10
    assert found.issuer == ISSUER
    assert found.tenant is None
    assert found.scopes == found.groups == ()
    assert found.claims["team"] == ("billing", "shop")
    assert found.claims["realm.roles"] == ("a",)
    assert found.claims["realm.deep.n"] == ("7",)
    assert found.claims["admin"] == ("true",)
    assert "nothing" not in found.claims
    assert "ratio" not in found.claims


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [("RS256", "RSA"), ("PS384", "RSA"), ("ES256", "P-256"), ("ES384", "P-384"), ("Ed25519", "Ed25519")],
)
def test_each_algorithm_verifies_by_a_key_of_its_kind_alone(algorithm: str, kind: str) -> None:
    judge = tokens(issuer(algorithms=(algorithm, "RS512", "ES512")))
    signing = key("k", kind)
    judge.keys[ISSUER].replace(parse_key_set(key_set(key("one"), signing)))
    token = signed(content(), signing, algorithm)
    assert judge.judge(token).user == "alice"
    judge.keys[ISSUER].replace(parse_key_set(key_set(key("one", kind if kind == "RSA" else "P-521"))))
    with pytest.raises(TokenError):
        judge.judge(token)


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://evil.example/"},
        {"iss": None},
        {"iss": [ISSUER]},
        {"aud": "another"},
        {"aud": ["another", "third"]},
        {"aud": None},
        {"aud": {AUDIENCE: 1}},
        {"exp": None},
        {"exp": NOW - 11},
        {"exp": "tomorrow"},
        {"exp": True},
        {"exp": 1e300},
        {"exp": -1},
        {"nbf": NOW + 11},
        {"nbf": "now"},
        {"iat": NOW + 11},
        {"sub": None},
        {"sub": ""},
        {"sub": ["alice", "bob"]},
        {"sub": {"name": "alice"}},
        {"sub": "a\0b"},
        {"sub": "a\nb"},
        {"sub": "a\u202eb"},
        {"sub": "\ud800"},
        {"sub": "x" * 256},
    ],
)
def test_such_claims_are_refused_though_the_signature_is_right(claims: dict[str, object]) -> None:
    refused(bearer(**claims))


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": ["x", AUDIENCE]},
        {"exp": NOW - 9},
        {"exp": NOW + 0.5},
        {"nbf": NOW + 9},
        {"sub": "https://id.example/alice#1"},
        {"sub": "x" * 255},
    ],
)
def test_such_claims_are_taken(claims: dict[str, object]) -> None:
    assert tokens(issuer()).judge(bearer(**claims)).user


@pytest.mark.parametrize("algorithm", ["none", "None", "nOnE", ""])
def test_a_token_without_a_signature_is_refused(algorithm: str) -> None:
    for signature in (b"", b"\0"):
        reason = refused(put_together({"alg": algorithm, "kid": "one"}, content(), signature))
        assert "algorithm" in reason or "base64url" in reason


@pytest.mark.parametrize("permitted", [("RS256",), ("RS256", "ES256")])
def test_the_public_key_is_no_secret_of_an_hmac(permitted: tuple[str, ...]) -> None:
    public = key("one").public_key
    encodings = [(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), (Encoding.DER, PublicFormat.PKCS1)]
    for secret in (*(public.public_bytes(*each) for each in encodings), key_set(key("one"))):
        signing = put_together({"alg": "HS256", "kid": "one"}, content())
        forged = f"{signing}.{put_together(digest(secret, signing.encode(), 'sha256'))}"
        assert "algorithm" in refused(forged, algorithms=permitted)


def test_a_key_in_the_token_itself_is_not_used() -> None:
    forging = key("forged")
    for header in (
        {"jwk": forging.as_dict(private=False)},
        {"jku": "https://evil.example/keys"},
        {"x5u": "https://evil.example/chain"},
    ):
        assert "signature" in refused(signed(content(), forging, **{"kid": "one", **header}))
        assert "no such key" in refused(signed(content(), forging, **header))


def test_a_token_that_names_no_key_is_verified_by_the_few_that_can_have_signed_it() -> None:
    judge = tokens(issuer())
    token = signed(content(), key("one"), kid=None)
    assert judge.judge(token).user == "alice"
    judge.keys[ISSUER].replace(parse_key_set(key_set(key("two"), key("three"), key("one"))))
    assert judge.judge(token).user == "alice"
    assert "signature" in refused(signed(content(), key("two"), kid=None))


@pytest.mark.parametrize(
    "header",
    [{"crit": ["exp"], "exp": 1}, {"crit": ["b64"], "b64": False}, {"kid": 7}, {"kid": ["one"]}, {"alg": ["RS256"]}],
)
def test_a_header_that_asks_for_more_is_refused(header: dict[str, object]) -> None:
    fields = {"alg": "RS256", "kid": "one", **header}
    _, payload, signature = bearer().split(".")
    refused(f"{put_together(fields)}.{payload}.{signature}")


@pytest.mark.parametrize("header", [{"crit": ["b64"], "b64": False}, {"crit": []}, {"crit": ["exp"], "exp": 1}])
def test_a_header_with_extensions_is_refused_though_it_is_signed(header: dict[str, object]) -> None:
    signing = put_together({"alg": "RS256", "kid": "one", **header}, content())
    signature = key("one").private_key.sign(signing.encode(), PKCS1v15(), SHA256())
    assert "extensions" in refused(f"{signing}.{put_together(signature)}")


def test_a_token_with_other_octets_than_were_signed_is_refused() -> None:
    header, payload, signature = bearer().split(".")
    other = put_together(content(sub="bob"))
    assert "signature" in refused(f"{header}.{other}.{signature}")
    assert "signature" in refused(f"{put_together({'alg': 'RS256', 'kid': 'one', 'typ': 'x'})}.{payload}.{signature}")
    for token in (
        "",
        ".",
        "..",
        "a.b.c",
        f"{header}.{payload}",
        f"{header}.{payload}.",
        f"{header}.{payload}.{signature}.",
        f"{header}.{payload}.{signature}=",
        f" {header}.{payload}.{signature}",
        f"{header}.{payload}.{signature}\n",
        f"{header}.{payload}é.{signature}",
    ):
        with pytest.raises(TokenError):
            tokens(issuer()).judge(token)


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b"[]",
        b"7",
        b"{",
        b'{"iss": NaN}',
        b'{"iss": 1, "iss": 2}',
        b"\xff",
        b"[" * 5000,
        b'{"a":' * 1000,
        b'{"n": ' + b"9" * 5000 + b"}",
    ],
)
def test_such_content_is_no_content(octets: bytes) -> None:
    with pytest.raises(TokenError):
        parse_object(octets, TokensConfig())


def test_depth_and_number_of_claims_are_limited() -> None:
    def nested(levels: int) -> dict[str, object]:
        found: dict[str, object] = {}
        for _ in range(levels - 1):
            found = {"a": found}
        return found

    limits = TokensConfig(depth=8, claims=10)
    assert parse_object(json.dumps(nested(8)).encode(), limits)
    with pytest.raises(TokenError, match="too deeply"):
        parse_object(json.dumps(nested(9)).encode(), limits)
    assert len(flattened({str(number): "x" for number in range(5)}, limits)) == 5
    for many in ({str(number): "x" for number in range(6)}, {"a": ["x"] * 10}):
        with pytest.raises(TokenError, match="too many claims"):
            flattened(many, limits)


def test_a_long_name_of_an_outer_claim_is_not_repeated_for_each_inner_one() -> None:
    with pytest.raises(TokenError, match="names"):
        flattened({"x" * 4000: {str(number): 1 for number in range(100)}}, TokensConfig())


def test_a_token_that_is_too_long_is_not_read() -> None:
    assert "too long" in refused(bearer(fill="x" * 8192))
    assert "too long" in refused("." * 8193)


def test_a_claim_with_the_name_of_an_inner_one_precedes_it() -> None:
    found = flattened({"a": {"b": "inner"}, "a.b": "outer"}, TokensConfig())
    assert found["a.b"] == ("outer",)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=20,
    )
)
def test_any_content_is_read_or_refused(value: Any) -> None:
    try:
        found = flattened(parse_object(json.dumps({"a": value}).encode(), TokensConfig()), TokensConfig(claims=4096))
    except TokenError:
        return
    assert all(isinstance(text, str) and text for texts in found.values() for text in texts if text)


def test_named_claims_give_groups_tenant_and_scopes() -> None:
    config = issuer(
        user="preferred_username",
        user_prefix="corp:",
        groups="realm.roles",
        tenant="org",
        tenants=("bill*",),
        scopes="scope",
        scope_prefix="mesh.",
        scope_aliases=Words({"Mesh.Admin": ("mesh.tag:administrator", "mesh.configure:*/*")}),
    )
    token = bearer(
        preferred_username="bob",
        realm={"roles": ["ops", "dev"]},
        org="billing",
        scope="openid mesh.read:billing/* Mesh.Admin mesh.read:billing/*",
    )
    found = tokens(config).judge(token)
    assert found.user == "corp:bob"
    assert found.groups == ("ops", "dev")
    assert found.tenant == "billing"
    assert found.scopes == ("read:billing/*", "tag:administrator", "configure:*/*")
    listed = tokens(config).judge(bearer(preferred_username="b", org="billing", scope=["mesh.read:a/b", "mesh.x"]))
    assert listed.scopes == ("read:a/b", "x")


@pytest.mark.parametrize("named", ["shop", "", None, ["billing", "billing"], "operator", "a\0", "bill/../x"])
def test_an_issuer_names_no_other_tenants_than_it_may(named: object) -> None:
    refused(bearer(org=named), tenant="org", tenants=("billing",))


def test_a_pattern_of_tenants_does_not_cover_the_operators() -> None:
    assert "may not name" in refused(bearer(org="operator"), tenant="org")
    permitted = issuer(tenant="org", tenants=("*", "operator"))
    assert tokens(permitted).judge(bearer(org="operator")).tenant == "operator"


def test_before_there_are_keys_a_token_may_come_again() -> None:
    judge = tokens(issuer())
    judge.keys[ISSUER].replace(())
    with pytest.raises(NotYetError):
        judge.judge(bearer())


def test_an_unknown_key_asks_for_a_newer_set() -> None:
    judge = tokens(issuer())
    asked: list[None] = []
    judge.keys[ISSUER].on_missing = lambda: asked.append(None)
    judge.judge(bearer())
    assert not asked
    with pytest.raises(TokenError):
        judge.judge(signed(content(), key("two")))
    assert len(asked) == 1
    with pytest.raises(TokenError):  # a forged issuer asks for nothing
        judge.judge(signed(content(iss="x"), key("two")))
    assert len(asked) == 1


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": [7]}',
        b'{"keys": []}',
        b'{"keys": [{"kty": "oct", "k": "AAAA"}]}',
        b'{"keys": [{"kty": "RSA", "n": 7, "e": "AQAB"}]}',
        json.dumps({"keys": [{"kty": "EC"}] * 101}).encode(),
    ],
)
def test_such_a_set_of_keys_is_refused(octets: bytes) -> None:
    with pytest.raises(KeySetError):
        parse_key_set(octets)


def test_keys_for_others_are_left_out_and_private_and_weak_ones_refuse_the_set() -> None:
    for more in ({"use": "enc"}, {"key_ops": ["sign"]}):
        others = json.loads(key_set(key("two")))["keys"][0] | more
        good = json.loads(key_set(key("one")))["keys"]
        assert [each.id for each in parse_key_set(json.dumps({"keys": [others, *good]}).encode())] == ["one"]
    private = {"keys": [key("one").as_dict(private=True)]}
    with pytest.raises(KeySetError, match="private"):
        parse_key_set(json.dumps(private).encode())
    with pytest.warns(SecurityWarning):
        weak = RSAKey.generate_key(1024)
    with pytest.raises(KeySetError, match="1024 bits"):
        parse_key_set(key_set(weak))


def test_a_key_for_one_algorithm_verifies_no_other() -> None:
    judge = tokens(issuer(algorithms=("RS256", "PS256")))
    judge.keys[ISSUER].replace(parse_key_set(key_set(key("one"), alg="PS256")))
    with pytest.raises(TokenError, match="no such key"):
        judge.judge(bearer())
    assert judge.judge(signed(content(), algorithm="PS256")).user == "alice"
