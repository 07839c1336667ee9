"""Sets of public keys of an issuer (RFC 7517), and the one that is in force.

A set that is not valid changes nothing: the last good one stays in force.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from amqpmesh.router.config.oauth import TokensConfig
from amqpmesh.router.tokens.identity import NotYetError, TokenError, parse_object

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST: Final = 100
"""Keys of a set at most."""

TRIED: Final = 4
"""Keys that are tried at most for a token that names none."""

LEAST_RSA: Final = 2048
MOST_RSA: Final = 8192
"""Bits of an RSA key: fewer are weak, and more take milliseconds."""

#: The types of keys for each family of algorithms, with the curve if it is fixed.
_TYPES: Final[Mapping[str, tuple[str, str | None]]] = {
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "Ed25519": ("OKP", "Ed25519"),
}

_LIMITS: Final = TokensConfig()


class KeySetError(ValueError):
    """A set of keys is not valid; the text says why."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """One key of a set. `algorithm`: the only one that it is for, if it says so."""

    id: str | None
    type: str
    curve: str | None
    algorithm: str | None
    key: Any

    def suits(self, algorithm: str) -> bool:
        """Tell whether it verifies signatures of an algorithm."""
        kind, curve = _TYPES.get(algorithm, ("RSA", None))
        return self.type == kind and curve in (None, self.curve) and self.algorithm in (None, algorithm)


def parse_key_set(octets: bytes) -> tuple[PublicKey, ...]:
    """Return the keys for signatures in a JWK set; others are left out. Raises: KeySetError: it is none, or has none.

    The import of joserfc takes a tenth of a second. It is done here, where no connection waits, for all uses.
    """
    import joserfc.jws
    import joserfc.jwt  # noqa: F401 - its use is elsewhere

    try:
        given = parse_object(octets, _LIMITS).get("keys")
    except TokenError:
        raise KeySetError("it is no JSON object") from None
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise KeySetError("it has no list of keys")
    if len(given) > MOST:
        raise KeySetError(f"it has more than {MOST} keys")
    found = [key for each in given if (key := _public_key(each)) is not None]
    if not found:
        raise KeySetError("it has no public key for signatures")
    return tuple(found)


def _public_key(given: Mapping[str, Any]) -> PublicKey | None:
    """Return a key; None: it is for something else, or of a kind that is not known. Raises: KeySetError."""
    from joserfc.errors import JoseError
    from joserfc.jwk import import_key

    kind = given.get("kty")
    operations = given.get("key_ops")
    is_for_others = isinstance(operations, list) and "verify" not in operations
    if kind not in ("RSA", "EC", "OKP") or given.get("use") not in (None, "sig") or is_for_others:
        return None
    if "d" in given:
        raise KeySetError("it holds a private key, which nobody but the issuer may have")
    # Only what makes the key is handed on: other fields, such as certificates, prove nothing here.
    fields = {name: given[name] for name in ("kty", "n", "e", "crv", "x", "y") if name in given}
    if not all(isinstance(each, str) for each in fields.values()):
        raise KeySetError("a key is malformed")
    bits = _bits(fields.get("n", "")) if kind == "RSA" else LEAST_RSA
    if not LEAST_RSA <= bits <= MOST_RSA:
        raise KeySetError(f"an RSA key has {bits} bits, and not {LEAST_RSA} to {MOST_RSA}")
    try:
        key = import_key(fields)
        key.public_key  # noqa: B018 - it is made now, and not for the first token
    except (JoseError, ValueError, KeyError, TypeError):
        return None  # such as a curve that OpenSSL does not have
    key_id, algorithm = given.get("kid"), given.get("alg")
    return PublicKey(
        key_id if isinstance(key_id, str) else None,
        str(kind),
        fields.get("crv"),
        algorithm if isinstance(algorithm, str) else None,
        key,
    )


def _bits(modulus: str) -> int:
    """Return the bits of a modulus in base64url; 0: it is none."""
    try:
        return int.from_bytes(urlsafe_b64decode(modulus + "=" * (-len(modulus) % 4))).bit_length()
    except ValueError:
        return 0


class IssuerKeys:
    """The set of keys of one issuer that is in force."""

    def __init__(self) -> None:
        self._keys: tuple[PublicKey, ...] = ()
        #: Called if a token names a key that the set does not have: a newer set may have it.
        self.on_missing: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        """Return the number of keys; 0: no set has been read yet."""
        return len(self._keys)

    @property
    def all(self) -> tuple[PublicKey, ...]:
        """The keys of the set."""
        return self._keys

    def replace(self, keys: tuple[PublicKey, ...]) -> None:
        """Put another set in force."""
        self._keys = keys

    def candidates(self, id: str | None, algorithm: str) -> list[PublicKey]:
        """Return the keys that may have signed a token. Raises: NotYetError; TokenError: there is none.

        Args: id: the key that the token names; None: it names none.
        """
        if not self._keys:
            self.on_missing()
            raise NotYetError("the keys of the token's issuer are not known yet")
        if id is None:
            found = [each for each in self._keys if each.suits(algorithm)][:TRIED]
        else:
            found = [each for each in self._keys if each.id == id and each.suits(algorithm)][:TRIED]
            if not any(each.id == id for each in self._keys):
                self.on_missing()
        if not found:
            raise TokenError("the token's issuer has no such key")
        return found
