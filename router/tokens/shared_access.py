"""Shared access signatures: tokens that clients make by a secret which they share with the router.

`SharedAccessSignature sr=RESOURCE&sig=SIGNATURE&se=EXPIRY&skn=NAME`: the signature is the base64 of the HMAC-SHA256 of
the resource as it is written, a line feed, and the expiry in seconds since 1970. The key is the octets of the secret's
text.
"""

from __future__ import annotations

import hmac
from base64 import b64decode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_plus

from amqpmesh.router.tokens.identity import TokenError, TokenIdentity, checked_user

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from amqpmesh.router.config.oauth import TokenKeyConfig

SCHEME: Final = "SharedAccessSignature"

_FIELDS: Final = frozenset({"sr", "sig", "se", "skn"})

_DECOY: Final = bytes(32)
"""The secret of an unknown name: it takes as long to compare."""


@dataclass(frozen=True, slots=True)
class NamedKey:
    """A secret's configuration, and its texts."""

    config: TokenKeyConfig
    secrets: tuple[bytes, ...] = field(repr=False)


class SharedAccess:
    """The judge of shared access signatures."""

    def __init__(self, keys: Mapping[str, NamedKey], size: int, wall_clock: Callable[[], float]) -> None:
        """Args: keys: by name. size: octets of the largest token. wall_clock: seconds since 1970."""
        self._keys = keys
        self._size = size
        self._wall_clock = wall_clock

    def judge(self, token: str) -> TokenIdentity:
        """Return the identity that a token proves. Raises: TokenError."""
        if len(token) > self._size:
            raise TokenError("the token is too long")
        fields = _fields(token)
        name = unquote_plus(fields["skn"])
        known = self._keys.get(name)
        signed = f"{fields['sr']}\n{fields['se']}".encode()
        try:
            signature = b64decode(unquote_plus(fields["sig"]), validate=True)
        except ValueError:
            raise TokenError("the token's signature is no base64") from None
        secrets = (_DECOY,) if known is None else known.secrets
        fits = [hmac.compare_digest(hmac.digest(secret, signed, "sha256"), signature) for secret in secrets]
        if known is None or not any(fits):
            raise TokenError("the token's key is not known, or its signature is wrong")
        config = known.config
        now, until = self._wall_clock(), int(fields["se"])
        if until + config.leeway <= now:
            raise TokenError("the token has expired")
        if until > now + config.lifetime + config.leeway:
            raise TokenError("the token is valid for longer than its key permits")
        if not any(_is_within(unquote_plus(fields["sr"]), each) for each in config.audience):
            raise TokenError("the token is for another audience")
        return TokenIdentity(
            user=checked_user(config.user or config.name),
            expires=until + config.leeway,
            issuer=config.name,
            groups=config.groups,
            tenant=config.tenant,
            scopes=config.scopes,
            config=config,
        )


def _fields(token: str) -> dict[str, str]:
    """Return the fields of a token as they are written. Raises: TokenError."""
    scheme, _, rest = token.partition(" ")
    pairs = [each.partition("=") for each in rest.split("&", len(_FIELDS) + 1)]
    fields = {name: value for name, equals, value in pairs if equals and value}
    if scheme != SCHEME or len(pairs) != len(_FIELDS) or fields.keys() != _FIELDS or not token.isascii():
        raise TokenError("the token is malformed: it has not exactly sr, sig, se and skn")
    if not fields["se"].isdigit() or len(fields["se"]) > 12:
        raise TokenError("the token's expiry is no time")
    return fields


def _is_within(resource: str, audience: str) -> bool:
    """Tell whether a resource is one that a key is for, or below it. Case and the last slash do not matter."""
    found, wanted = resource.lower().rstrip("/"), audience.lower().rstrip("/")
    return found == wanted or found.startswith(f"{wanted}/")
