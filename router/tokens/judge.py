"""The judge of all tokens that a router takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from amqpmesh.router.config.oauth import TokenKeyConfig
from amqpmesh.router.tokens.json_web import JsonWebTokens
from amqpmesh.router.tokens.key_sets import IssuerKeys
from amqpmesh.router.tokens.shared_access import NamedKey, SharedAccess

if TYPE_CHECKING:
    from amqpmesh.router.config.oauth import TokenIssuerConfig, TokensConfig
    from amqpmesh.router.tokens.identity import TokenIdentity

JWT: Final = frozenset({"jwt", "amqp:jwt"})
"""The types of JSON Web Tokens in a put-token."""

SHARED_ACCESS: Final = "servicebus.windows.net:sastoken"
"""The type of shared access signatures in a put-token."""


class TokenTables(Protocol):
    """The tables of a configuration that say which tokens are taken."""

    @property
    def tokens(self) -> TokensConfig:
        """The limits."""
        ...

    @property
    def token_issuers(self) -> tuple[TokenIssuerConfig, ...]:
        """The issuers of JSON Web Tokens."""
        ...

    @property
    def token_keys(self) -> tuple[TokenKeyConfig, ...]:
        """The secrets of shared access signatures."""
        ...


class _Tables(NamedTuple):
    tokens: TokensConfig
    token_issuers: tuple[TokenIssuerConfig, ...]
    token_keys: tuple[TokenKeyConfig, ...]


class Tokens:
    """The judge of all tokens that a router takes.

    Attributes: `keys`: the issuers' sets of keys, by issuer. `version`: an object that is another one after a change.
    """

    def __init__(
        self, config: TokenTables, secrets: Mapping[str, tuple[bytes, ...]], wall_clock: Callable[[], float]
    ) -> None:
        """Args: secrets: of `[[token_key]]`, by name. wall_clock: seconds since 1970."""
        self._wall_clock = wall_clock
        self._config = config
        self.keys: dict[str, IssuerKeys] = {}
        #: The sets of keys of issuers that the last `narrow` has left out, by issuer and source.
        self._left_out: dict[tuple[object, ...], IssuerKeys] = {}
        self.change(config, secrets)

    def change(self, config: TokenTables, secrets: Mapping[str, tuple[bytes, ...]]) -> None:
        """Judge by other tables from now on. An issuer whose keys come from the same place keeps them.

        Connections that a token of former secrets has let in stay until it expires. Args: secrets: as of the class.
        """
        held, self._left_out = self._held(), {}
        self._config = config
        #: Another object after each change: what was judged before it may be judged in another way now.
        self.version = object()
        self.size = config.tokens.size
        # A set that is empty so far is kept as well: a task reads it.
        self.keys = {
            each.issuer: held[_source(each)] if _source(each) in held else IssuerKeys() for each in config.token_issuers
        }
        issuers = {each.issuer: (each, self.keys[each.issuer]) for each in config.token_issuers}
        self._json_web = JsonWebTokens(issuers, config.tokens, self._wall_clock)
        keys = {each.name: NamedKey(each, secrets[each.name]) for each in config.token_keys}
        self._shared_access = SharedAccess(keys, self.size, self._wall_clock)

    def _held(self) -> dict[tuple[object, ...], IssuerKeys]:
        """Return the sets of keys that were read, by issuer and source."""
        now = {_source(each): self.keys[each.issuer] for each in self._config.token_issuers if each.issuer in self.keys}
        return {**self._left_out, **now}

    def narrow(self, wanted: TokenTables, secrets: Mapping[str, tuple[bytes, ...]]) -> bool:
        """Take no tokens any more that other tables do not take in the same way; take no others yet.

        Args: secrets: of these tables. Returns: whether there are such tokens.
        """
        now = self._config
        left = _Tables(
            now.tokens,
            tuple(each for each in now.token_issuers if _has_issuer(wanted, each)),
            tuple(each for each in now.token_keys if _has_key(wanted, each)),
        )
        held = self._held()
        self.change(left, secrets)
        self._left_out = held
        return (left.token_issuers, left.token_keys) != (now.token_issuers, now.token_keys)

    def takes(self, identity: TokenIdentity) -> bool:
        """Tell whether the token of an identity would prove the same today, if it has not expired."""
        config = identity.config
        if config is None:  # nobody has judged it
            return True
        return (
            _has_key(self._config, config) if isinstance(config, TokenKeyConfig) else _has_issuer(self._config, config)
        )

    def judge(self, token: str) -> TokenIdentity:
        """Return the identity that a JSON Web Token proves. Raises: TokenError; NotYetError."""
        return self._json_web.judge(token)

    def judge_put(self, kind: str, token: str) -> TokenIdentity:
        """Return the identity that a token of a put-token proves.

        Args: kind: the type that the request names.
        Raises: TokenError; NotYetError. LookupError: the type is not known.
        """
        if kind in JWT:
            return self._json_web.judge(token)
        if kind == SHARED_ACCESS:
            return self._shared_access.judge(token)
        raise LookupError


def _source(issuer: TokenIssuerConfig) -> tuple[object, ...]:
    """Return an issuer, and the place of its keys."""
    return issuer.issuer, issuer.jwks, issuer.jwks_url, issuer.trust


def _has_issuer(tables: TokenTables, before: TokenIssuerConfig) -> bool:
    """Tell whether a token of an issuer proves the same by these tables as before."""
    return any(
        each.issuer == before.issuer
        and each
        == replace(before, refresh=each.refresh, time_out=each.time_out, jwks_size=each.jwks_size, leeway=each.leeway)
        for each in tables.token_issuers
    )


def _has_key(tables: TokenTables, before: TokenKeyConfig) -> bool:
    """Tell whether a token of a key proves the same by these tables as before; its secrets may be others."""
    return any(
        each.name == before.name and each == replace(before, keys=each.keys, leeway=each.leeway, lifetime=each.lifetime)
        for each in tables.token_keys
    )
