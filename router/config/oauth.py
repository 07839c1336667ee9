"""Tokens: their issuers, keys for tokens of clients' own, and limits."""

import re
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from amqpmesh.policies import tenants
from amqpmesh.router.config.connector import PasswordConfig
from amqpmesh.router.config.tables import Effect, Rule, Table, Words, emptiness, setting, table

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519")
"""Algorithms of signatures (RFC 7518, RFC 9864). Each has a public key: with a secret that is shared, each router could
make tokens."""

MAX_KEYS = 4
"""Keys of one name at once: a new one, and those that it replaces."""


def _algorithms_refusal(algorithms: tuple[str, ...]) -> str | None:
    if not algorithms:
        return "must not be empty"
    unknown = next((each for each in algorithms if each not in ALGORITHMS), None)
    return None if unknown is None else f"unknown algorithm {unknown!r}; known are {', '.join(ALGORITHMS)}"


def _some_refusal(texts: tuple[str, ...]) -> str | None:
    return "must not be empty" if not texts or "" in texts else None


def _url_refusal(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - its check
    except ValueError as error:
        return str(error)
    if parts.scheme != "https" or not parts.hostname:
        return "must begin with https:// and a host: keys that were changed on their way would let anybody in"
    if parts.username is not None or parts.password is not None or parts.fragment or not re.fullmatch(r"[!-~]+", url):
        return "takes no credentials, no fragment, and printable ASCII only"
    return None


def _aliases_refusal(aliases: Words) -> str | None:
    return "must have a name, and scopes that are not empty" if "" in aliases or not all(aliases.values()) else None


@table
class TokensConfig(Table):
    """Limits of tokens, and of the clients that show them."""

    EFFECT = Effect.AT_ONCE

    size: int = setting(default=8192, low=256, high=2**16)
    claims: int = setting(default=256, low=1, high=4096)
    depth: int = setting(default=8, low=1, high=32)
    rate: float = setting(default=2.0, low=0.01, high=1000.0)
    burst: int = setting(default=20, low=1, high=1000)


@table
class TokenIssuerConfig(Table):
    """An issuer of JSON Web Tokens (RFC 7519): which tokens of it are valid, and what its claims mean."""

    EFFECT = Effect.AT_ONCE

    issuer: str = setting(check=emptiness)
    audience: tuple[str, ...] = setting(check=_some_refusal)
    algorithms: tuple[str, ...] = setting(default=("RS256",), check=_algorithms_refusal)
    jwks: Path | None = setting(default=None)
    jwks_url: str | None = setting(default=None, check=_url_refusal)
    trust: Path | None = setting(default=None)
    refresh: float = setting(default=300.0, low=10.0, high=86_400.0)
    time_out: float = setting(default=10.0, low=0.1, high=60.0)
    jwks_size: int = setting(default=2**18, low=2**10, high=2**22)
    leeway: float = setting(default=10.0, low=0.0, high=300.0)
    user: str = setting(default="sub", check=emptiness)
    user_prefix: str = setting(default="")
    groups: str | None = setting(default=None, check=emptiness)
    tenant: str | None = setting(default=None, check=emptiness)
    tenants: tuple[str, ...] = setting(default=("*",), check=_some_refusal)
    scopes: str | None = setting(default=None, check=emptiness)
    scope_prefix: str = setting(default="")
    scope_aliases: Words = setting(default=Words(), check=_aliases_refusal)

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("jwks", "is required, or jwks_url: the issuer's keys", lambda c: c.jwks is None and c.jwks_url is None),
        Rule("jwks_url", "excludes jwks", lambda c: c.jwks is not None and c.jwks_url is not None),
        Rule("trust", "does nothing without jwks_url", lambda c: c.trust is not None and c.jwks_url is None),
        Rule("tenants", "does nothing without tenant", lambda c: c.tenants != ("*",) and c.tenant is None),
        Rule("scope_prefix", "does nothing without scopes", lambda c: c.scope_prefix and c.scopes is None),
        Rule("scope_aliases", "does nothing without scopes", lambda c: c.scope_aliases and c.scopes is None),
    )

    @property
    def place(self) -> str:
        """The place of its keys, for logs."""
        return self.jwks_url or str(self.jwks)


def _keys_refusal(keys: tuple[PasswordConfig, ...]) -> str | None:
    if not keys:
        return "must not be empty"
    return f"must be at most {MAX_KEYS}" if len(keys) > MAX_KEYS else None


@table
class TokenKeyConfig(Table):
    """A named secret by which clients make tokens of their own: shared access signatures."""

    EFFECT = Effect.AT_ONCE

    name: str = setting(check=emptiness)
    keys: tuple[PasswordConfig, ...] = setting(check=_keys_refusal)
    audience: tuple[str, ...] = setting(check=_some_refusal)
    leeway: float = setting(default=10.0, low=0.0, high=300.0)
    lifetime: float = setting(default=7 * 86_400.0, low=1.0, high=366 * 86_400.0)
    user: str | None = setting(default=None, check=emptiness)
    groups: tuple[str, ...] = setting(default=())
    tenant: str | None = setting(default=None, check=tenants.fault)
    scopes: tuple[str, ...] = setting(default=())
