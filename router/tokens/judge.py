"""The judge of all tokens that a router takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from amqpmesh.router.tokens.json_web import JsonWebTokens
from amqpmesh.router.tokens.key_sets import IssuerKeys
from amqpmesh.router.tokens.shared_access import NamedKey, SharedAccess

if TYPE_CHECKING:
    from amqpmesh.router.config.file import RouterConfig
    from amqpmesh.router.tokens.identity import TokenIdentity

JWT: Final = frozenset({"jwt", "amqp:jwt"})
"""The types of JSON Web Tokens in a put-token."""

SHARED_ACCESS: Final = "servicebus.windows.net:sastoken"
"""The type of shared access signatures in a put-token."""


class Tokens:
    """The judge of all tokens that a router takes.

    Attributes: `keys`: the issuers' sets of keys, by issuer.
    """

    def __init__(
        self, config: RouterConfig, secrets: Mapping[str, tuple[bytes, ...]], wall_clock: Callable[[], float]
    ) -> None:
        """Args: secrets: of `[[token_key]]`, by name. wall_clock: seconds since 1970."""
        self.size = config.tokens.size
        self.keys = {each.issuer: IssuerKeys() for each in config.token_issuers}
        issuers = {each.issuer: (each, self.keys[each.issuer]) for each in config.token_issuers}
        self._json_web = JsonWebTokens(issuers, config.tokens, wall_clock)
        self._config = config
        self._wall_clock = wall_clock
        self.replace_secrets(secrets)

    def replace_secrets(self, secrets: Mapping[str, tuple[bytes, ...]]) -> None:
        """Put other secrets in force. Connections that a token of the old ones has let in stay until it expires."""
        keys = {each.name: NamedKey(each, secrets[each.name]) for each in self._config.token_keys}
        self._shared_access = SharedAccess(keys, self.size, self._wall_clock)

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
