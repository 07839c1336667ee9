"""The client's messages of the mechanisms that carry a bearer token: OAUTHBEARER (RFC 7628) and XOAUTH2.

Both are pairs of a key and a value with octets 1 between them. OAUTHBEARER begins with a GS2 header (RFC 5801), which
may name an identity to act as.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SEPARATOR: Final = "\x01"

SCHEME: Final = "bearer"
"""The scheme of the key `auth` (RFC 6750); upper and lower case are the same."""

INVALID_TOKEN: Final = b'{"status":"invalid_token"}'
"""The error that a server of OAUTHBEARER sends before it ends the exchange (RFC 7628, 3.2.2)."""


class BearerError(ValueError):
    """A malformed message. The text is the reason, and never quotes the peer."""


class BearerResponse(NamedTuple):
    """The content of a client's message."""

    token: str
    authorization: str
    """The identity to act as; "": the token's own."""


def oauthbearer(message: str) -> BearerResponse:
    """Read a message of OAUTHBEARER (RFC 7628, 3.1). Raises: BearerError."""
    header, separator, rest = message.partition(SEPARATOR)
    binding, _, more = header.partition(",")
    identity, comma, end = more.partition(",")
    if not separator or not comma or end or not (identity == "" or identity.startswith("a=")):
        raise BearerError("the GS2 header is malformed")
    if binding not in ("n", "y"):
        raise BearerError("channel binding is not supported")
    return BearerResponse(_token(rest), _decoded(identity.removeprefix("a=")))


def xoauth2(message: str) -> BearerResponse:
    """Read a message of XOAUTH2. The user that it names is not the token's, and is left out. Raises: BearerError."""
    user, separator, rest = message.partition(SEPARATOR)
    if not separator or not user.startswith("user="):
        raise BearerError("it does not begin with user=")
    return BearerResponse(_token(rest), "")


def _token(pairs: str) -> str:
    """Return the token in the pairs, which end with two separators."""
    if not pairs.endswith(2 * SEPARATOR):
        raise BearerError("it is cut off")
    given = [each.partition("=")[2] for each in pairs[:-2].split(SEPARATOR) if each.partition("=")[0] == "auth"]
    if len(given) != 1:
        raise BearerError("it has no key auth, or several")
    scheme, _, token = given[0].partition(" ")
    token = token.strip(" ")
    if scheme.lower() != SCHEME or not token:
        raise BearerError("it carries no bearer token")
    return token


def _decoded(name: str) -> str:
    """Return a name whose comma and equals sign are written as `=2C` and `=3D` (RFC 5801, 4)."""
    if "=" in name.replace("=2C", "").replace("=3D", ""):
        raise BearerError("the authorization identity is malformed")
    return name.replace("=2C", ",").replace("=3D", "=")
