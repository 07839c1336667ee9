"""The messages of SCRAM at the server (RFC 5802, RFC 7677).

Messages of the shape that nearly all clients send are read and checked here. scramp gets all others, and names the
fault of those that fail: it takes six times as long, and slow to import.
"""

from __future__ import annotations

import hmac
import re
from base64 import b64decode, b64encode
from contextlib import contextmanager
from hashlib import new as new_hash
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from amqpmesh.router.amqp.sasl.mechanisms import ScramKeys

HASHES: Final[Mapping[str, str]] = {"SCRAM-SHA-1": "sha1", "SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The hash function of each mechanism, by its name in hashlib."""

#: Keys with fewer iterations, or with fewer octets of salt, are refused by scramp.
_LEAST_ITERATIONS: Final = 4096
_LEAST_SALT: Final = 12

# Printable ASCII without the comma, and in names without the equals sign. SASLprep (RFC 4013) changes no such name.
_USUAL_FIRST: Final = re.compile(r"([ny],,)(n=([ -+\--<>-~]+),r=([!-+\--~]+))")
_USUAL_FINAL: Final = re.compile(r"(c=(biws|eSws),r=([!-+\--~]+)),p=([A-Za-z0-9+/]+={0,2})")

#: The header of the first message, as the final one repeats it in base64.
_BINDINGS: Final = {"n,,": "biws", "y,,": "eSws"}


class ScramError(Exception):
    """The client's message has a fault, or proves no password."""


class ScramServer:
    """The server's side of one exchange.

    Attributes: `user`: the user that the client names, prepared with SASLprep; empty before `begin`.
    """

    def __init__(self, mechanism: str, look_up: Callable[[str], ScramKeys]) -> None:
        """Args: look_up: returns the keys of a user."""
        self.user = ""
        self._mechanism = mechanism
        self._look_up = look_up
        self._nonce = token_hex()
        self._first = self._server_first = ""
        self._keys: ScramKeys | None = None
        #: scramp's side; None: the first message has the usual shape.
        self._scramp: Any = None

    def begin(self, first: str) -> str:
        """Take the client's first message. Returns: the server's first message.

        Raises: ScramError: the message has a fault. Any error of `look_up`.
        """
        self._first = first
        usual = _USUAL_FIRST.fullmatch(first)
        if usual is not None:
            keys = self._keys_of(usual[3])
            if keys.iterations >= _LEAST_ITERATIONS and len(keys.salt) >= _LEAST_SALT:
                self._server_first = f"r={usual[4]}{self._nonce},s={_base64(keys.salt)},i={keys.iterations}"
                return self._server_first
        self._scramp, server_first = self._replayed()
        return server_first

    def check(self, final: str) -> str:
        """Take the client's final message. Returns: the server's final message, which proves that it has the keys.

        Raises: ScramError: the message has a fault, or proves no password.
        """
        answer = self._answer(final) if self._scramp is None else None
        if answer is not None:
            return answer
        server = self._scramp or self._replayed()[0]
        with _raising():
            server.set_client_final(final)
            last: str = server.get_server_final()
        return last

    def _answer(self, final: str) -> str | None:
        """Return the answer to a final message of the usual shape that proves the password; None: it is another."""
        first, usual, keys = _USUAL_FIRST.fullmatch(self._first), _USUAL_FINAL.fullmatch(final), self._keys
        if usual is None or first is None or keys is None:
            return None
        if usual[2] != _BINDINGS[first[1]] or usual[3] != first[4] + self._nonce:
            return None
        name = HASHES[self._mechanism]
        said = f"{first[2]},{self._server_first},{usual[1]}".encode()
        signature = hmac.digest(keys.stored_key, said, name)
        try:
            proof = b64decode(usual[4])
        except ValueError:
            return None
        if len(proof) != len(signature):
            return None
        key = int.from_bytes(signature, "big") ^ int.from_bytes(proof, "big")
        shown = new_hash(name, key.to_bytes(len(proof), "big")).digest()
        if not hmac.compare_digest(shown, keys.stored_key):
            return None
        return f"v={_base64(hmac.digest(keys.server_key, said, name))}"

    def _keys_of(self, user: str) -> ScramKeys:
        self.user = user
        if self._keys is None:
            self._keys = self._look_up(user)
        return self._keys

    def _replayed(self) -> tuple[Any, str]:
        """Pass the first message to scramp. Returns: its side of the exchange, and the server's first message."""
        from scramp import ScramMechanism

        trouble: list[Exception] = []

        def look_up(name: str) -> tuple[bytes, bytes, bytes, int]:
            try:
                keys = self._keys_of(name)
            except Exception as error:
                trouble.append(error)
                raise
            return keys.salt, keys.stored_key, keys.server_key, keys.iterations

        server = ScramMechanism(self._mechanism).make_server(look_up, s_nonce=self._nonce)
        try:
            with _raising():
                server.set_client_first(self._first)
                return server, server.get_server_first()
        except ScramError:
            if trouble:  # scramp has wrapped it
                raise trouble[0] from None
            raise


@contextmanager
def _raising() -> Iterator[None]:
    """Raise the errors of scramp as `ScramError`."""
    from scramp import ScramException

    try:
        yield
    except ScramException as error:
        raise ScramError(str(error)) from None


def _base64(data: bytes) -> str:
    return b64encode(data).decode()
