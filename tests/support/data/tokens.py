"""Tokens for tests: issuers with keys of their own, and shared access signatures."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from functools import cache
from hashlib import sha256
from hmac import digest
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, urlencode

from joserfc import jws
from joserfc.jwk import ECKey, OKPKey, RSAKey

from amqpmesh.router.config.file import PasswordConfig, RouterConfig, TokenIssuerConfig, TokenKeyConfig
from amqpmesh.router.tokens.judge import Tokens
from amqpmesh.router.tokens.key_sets import parse_key_set

ISSUER = "https://login.example/"
AUDIENCE = "amqpmesh"
RESOURCE = "amqps://mesh.example/"
SECRET = b"c2VjcmV0"
NOW = 1_700_000_000.0


@cache
def key(name: str, kind: str = "RSA") -> Any:
    """Return a private key by its name, always the same one."""
    if kind == "RSA":
        return RSAKey.generate_key(2048, {"kid": name})
    return (
        ECKey.generate_key(kind, {"kid": name}) if kind.startswith("P-") else OKPKey.generate_key(kind, {"kid": name})
    )


def key_set(*keys: Any, **more: str) -> bytes:
    """Return a JWK set of the public parts of keys. Args: more: fields of each key."""
    return json.dumps({"keys": [{**each.as_dict(private=False), **more} for each in keys]}).encode()


def content(now: float = NOW, **claims: object) -> dict[str, object]:
    """Return the content of a valid token, with other claims; None: without that claim."""
    usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": int(now) + 60, "iat": int(now)}
    return {name: value for name, value in {**usual, **claims}.items() if value is not None}


def signed(claims: dict[str, object] | bytes, signing: Any = None, algorithm: str = "RS256", **header: object) -> str:
    """Return a token with some content. Args: header: further fields of its header; None: without that field."""
    signing = signing or key("one")
    fields = {"alg": algorithm, "kid": signing.kid, **header}
    fields = {name: value for name, value in fields.items() if value is not None}
    payload = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    registry.max_header_length = registry.max_payload_length = 10**6
    return jws.serialize_compact(fields, payload, signing, algorithms=[algorithm], registry=registry)


def bearer(now: float = NOW, **claims: object) -> str:
    """Return a valid token with other claims."""
    return signed(content(now, **claims))


def put_together(*parts: object) -> str:
    """Return parts as a token: dicts as JSON, octets as they are, each in base64url."""
    octets = (each if isinstance(each, bytes) else json.dumps(each).encode() for each in parts)
    return ".".join(urlsafe_b64encode(each).decode().rstrip("=") for each in octets)


def shared_access(
    until: float = NOW + 60, *, resource: str = RESOURCE, name: str = "sender", secret: bytes = SECRET
) -> str:
    """Return a shared access signature, as Azure's clients make it."""
    signing = f"{quote_plus(resource)}\n{int(until)}".encode()
    signature = b64encode(digest(secret, signing, sha256))
    fields = {"sr": resource, "sig": signature, "se": str(int(until)), "skn": name}
    return f"SharedAccessSignature {urlencode(fields)}"


def issuer(**settings: Any) -> TokenIssuerConfig:
    """Return the configuration of the issuer of `bearer`."""
    return TokenIssuerConfig(**{"issuer": ISSUER, "audience": (AUDIENCE,), "jwks": Path("keys.json"), **settings})


def named_key(**settings: Any) -> TokenKeyConfig:
    """Return the configuration of the key of `shared_access`."""
    usual = {"name": "sender", "keys": (PasswordConfig(env="KEY"),), "audience": (RESOURCE,)}
    return TokenKeyConfig(**{**usual, **settings})


def tokens(*tables: TokenIssuerConfig | TokenKeyConfig, now: Any = lambda: NOW, **settings: Any) -> Tokens:
    """Return the judge of tokens of a router whose issuers have the key `one`."""
    issuers = tuple(each for each in tables if isinstance(each, TokenIssuerConfig))
    keys = tuple(each for each in tables if isinstance(each, TokenKeyConfig))
    # The policy decides what groups, tenants and scopes are worth: the judge of tokens only reads them.
    config = object.__new__(RouterConfig)
    vars(config).update(vars(RouterConfig(id="A", **settings)), token_issuers=issuers, token_keys=keys)
    judge = Tokens(config, {each.name: (SECRET,) for each in keys}, now)
    for each in judge.keys.values():
        each.replace(parse_key_set(key_set(key("one"))))
    return judge
