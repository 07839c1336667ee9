"""The identity that a token proves, and the claims of its content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from amqpmesh.policies.claims import NO_CLAIMS, Claims
from amqpmesh.router.amqp.sasl.mechanisms import BusyError, MechanismError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from amqpmesh.router.config.oauth import TokenIssuerConfig, TokenKeyConfig, TokensConfig

LONGEST_USER: Final = 255
"""Characters of a user's name: it is in logs, and may be in addresses."""

Json: TypeAlias = Any
"""A value of JSON, as `json.loads` returns it."""


class TokenError(MechanismError):
    """A token is not valid. The text is the reason, and never quotes the token."""


class NotYetError(BusyError, TokenError):
    """A token cannot be judged yet: its issuer's keys are not known. The peer may try again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIdentity:
    """The identity that a valid token proves."""

    user: str
    expires: float
    """Seconds since 1970, the leeway for clocks that differ included."""
    issuer: str = ""
    """The issuer, or the name of the key, for logs."""
    claims: Claims = NO_CLAIMS
    groups: tuple[str, ...] = ()
    tenant: str | None = None
    """The tenant that it names; None: the policy chooses."""
    scopes: tuple[str, ...] = ()
    config: TokenIssuerConfig | TokenKeyConfig | None = field(default=None, compare=False, repr=False)
    """The table by which it was judged."""

    def until(self, time: float | None) -> TokenIdentity:
        """Return the identity with an earlier expiry. Args: time: seconds since 1970; None: as it is."""
        return self if time is None or time >= self.expires else replace(self, expires=time)


def parse_object(octets: bytes, limits: TokensConfig) -> dict[str, Json]:
    """Read an object of JSON. Raises: TokenError: it is none, has a name twice, or is nested too deeply."""
    try:
        found = json.loads(octets.decode(), object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise TokenError("the token is malformed: it holds no valid JSON") from None
    if not isinstance(found, dict):
        raise TokenError("the token is malformed: it holds no object")
    if _is_deeper(found, limits.depth):
        raise TokenError("the token is nested too deeply")
    return found


def _without_duplicates(pairs: Sequence[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError  # another reader could take the other value
    return found


def _refuse_constant(_name: str) -> Json:
    raise ValueError  # NaN and Infinity are no JSON


def _is_deeper(value: Json, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
    return any(isinstance(each, dict | list) for each in level)


def flattened(content: Mapping[str, Json], limits: TokensConfig) -> Claims:
    """Return the claims in the content of a token. Raises: TokenError: there are too many, or their names too long.

    A claim within another is named by both, with a dot. A claim whose own name is the same precedes it.
    """
    texts: dict[str, tuple[str, ...]] = {}
    count = size = 0
    for name, value in _leaves(content):
        found = _texts(value)
        count += 1 + len(found)
        size += len(name)
        if count > limits.claims:
            raise TokenError("the token has too many claims")
        if size > limits.size:  # the name of an outer claim is a part of the names of all inner ones
            raise TokenError("the names of the token's claims are too long")
        texts.setdefault(name, found)
    return Claims(texts)


def _leaves(content: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    """Return all values that are no objects, with their names; those of outer objects first."""
    level: list[tuple[str, Mapping[str, Json]]] = [("", content)]
    while level:
        inner: list[tuple[str, Mapping[str, Json]]] = []
        for prefix, each in level:
            for name, value in each.items():
                if isinstance(value, Mapping):
                    inner.append((f"{prefix}{name}.", value))
                else:
                    yield prefix + name, value
        level = inner


def _texts(value: Json) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(text for text in map(_text, values) if text is not None)


def _text(value: Json) -> str | None:
    """Return a value as text; None: it is none of text, number or truth value."""
    if isinstance(value, str):
        return value if value.isascii() or value.encode(errors="replace").decode() == value else None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) and abs(value) < 2**63 else None


def checked_user(user: str) -> str:
    """Return the name of a user as it is. Raises: TokenError: it is empty, too long, or not printable."""
    if not user or len(user) > LONGEST_USER or not user.isprintable():
        raise TokenError("the token's user is missing, too long, or not printable")
    return user
