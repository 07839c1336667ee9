"""SASL mechanisms, both roles, each a conversation that does no I/O (RFC 4422).

A mechanism is a generator. The server's yields challenges, is sent responses, and returns a `Success`; the client's
yields a `Turn` per response and is sent challenges. Either raises `MechanismError` when the conversation has failed.
Either may yield a `Work` as well: a password is to be checked or hashed. It goes on once that is done.
All mechanisms here let the client speak first, so a server's first challenge is always empty, and is sent only to a
client that gave no initial response.

scramp is imported where a password is looked at: most routers never see one, and it takes a while to read.

No channel binding: the `-PLUS` variants of SCRAM are neither offered nor chosen.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import new as new_hash
from typing import Any, NamedTuple, Protocol, TypeAlias

SALT_SIZE = 32
"""Octets of salt that a verifier should have: an unknown user is shown as many, and must not stand out."""

SCRAM_ITERATIONS = 65_536
"""Iterations of a new verifier: a stolen file costs its thief 16 times what the least number would. Cyrus SASL, which
qpid-proton's clients log in with, computes no more."""

MIN_ITERATIONS = 4096
"""The least that a verifier may have (RFC 5802, 5.1)."""

MAX_ITERATIONS = 1_000_000
"""What a server may ask of our client: half a second of its processor, at most."""

# New with every process, so that nobody can compute the salts of users that do not exist.
_DECOY_SECRET = secrets.token_bytes(32)


class MechanismError(Exception):
    """The conversation has failed. The text says why and may be logged: it never holds what a peer sent.

    Attributes: `user`: whom the client said it is, prepared with SASLprep; None: it did not come to that.
    """

    def __init__(self, reason: str, user: str | None = None) -> None:
        super().__init__(reason)
        self.user = user


class BusyError(MechanismError):
    """Too many wait for an answer: this password was not looked at."""


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """The verifier of one user and mechanism (RFC 5802, 3): enough to check a password, not to know it."""

    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


class Authenticator(Protocol):
    """Who may come in. Names and passwords arrive prepared with SASLprep (RFC 4013).

    Both methods should take as long for a user that does not exist as for one that does. `verify_plain` may be called
    in another thread; `scram_keys` is called between two frames of a connection, and every connection waits for it.
    """

    @property
    def iterations(self) -> Sequence[int]:
        """The counts that its verifiers have, each once, one at least. An unknown user is shown one of them."""

    def verify_plain(self, user: str, password: str) -> bool:
        """Whether this is the user's password."""

    def scram_keys(self, user: str, mechanism: str) -> ScramKeys | None:
        """The user's verifier for `SCRAM-SHA-1` or `SCRAM-SHA-256`; None where there is none.

        Verifiers have salts of `SALT_SIZE`, or users with one can be told from users without.
        """


@dataclass(frozen=True, slots=True)
class ServerSide:
    """What a server knows when a client comes. `external_user`: whom the layer below has authenticated, if anybody."""

    authenticator: Authenticator
    external_user: str | None = None


@dataclass(frozen=True, slots=True)
class ClientSide:
    """What a client knows of itself. `external`: the layer below has authenticated it, by a certificate usually."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    external: bool = False


@dataclass(frozen=True, slots=True)
class Success:
    """The client is who it says. `user` is None for ANONYMOUS; the data goes out with the outcome (§5.3.3.5)."""

    user: str | None
    additional_data: bytes | None = field(default=None, repr=False)


class Work:
    """A check or a hash of a password: up to half a second of a processor, which the caller may spend in a thread.

    Attributes: `user`: whose password a server checks by it; None: it is a client's own. `iterations`: rounds of
    hashing that it takes; 0: next to none.
    """

    __slots__ = ("_error", "_function", "_value", "iterations", "user")

    def __init__(self, function: Callable[[], object], *, iterations: int, user: str | None = None) -> None:
        """Args: function: does it; a check returns whether the password is right, or raises."""
        self.user = user
        self.iterations = iterations
        self._function: Callable[[], object] = function
        self._value: object = None
        self._error: Exception | None = None

    def do(self) -> None:
        """Do it. Raises: nothing: `result` does."""
        try:
            self._value = self._function()
        except Exception as error:
            self._error = error

    def refuse(self, reason: str) -> None:
        """In place of `do`: nothing is checked, and the peer may try again later."""
        self._error = BusyError(reason, self.user)

    @property
    def succeeded(self) -> bool:
        """Whether a check found the password right."""
        return self._error is None and bool(self._value)

    def result(self) -> Any:
        """What the function returned. Raises: what it raised; BusyError: it was refused."""
        if self._error is not None:
            raise self._error
        return self._value


class Turn(NamedTuple):
    """A client's response. `satisfied`: it needs no more from the server than the outcome."""

    response: bytes
    satisfied: bool


ServerConversation: TypeAlias = Generator[bytes | Work, bytes, Success]
ClientConversation: TypeAlias = Generator[Turn | Work, bytes, None]


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        # Not chained: the exception would carry the bytes.
        raise MechanismError("not UTF-8") from None


def _octets(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise MechanismError("the user name or the password holds a lone surrogate") from None


def _prepared(text: str) -> str:
    """The text under SASLprep (RFC 4013), so that one name has one spelling; empty and forbidden ones are refused."""
    from scramp import ScramException
    from scramp.utils import saslprep

    try:
        prepared: str = saslprep(text)
    except ScramException as error:
        raise MechanismError(f"a user name or password that SASLprep refuses: {error.args[0]}") from None
    if not prepared:
        raise MechanismError("an empty user name or password")
    return prepared


# ANONYMOUS (RFC 4505)


def _anonymous_server(_mechanism: str, _side: ServerSide) -> ServerConversation:
    yield b""  # what answers is trace information, which nobody vouches for
    return Success(user=None)


def _anonymous_client(_mechanism: str, _side: ClientSide) -> ClientConversation:
    yield Turn(b"", satisfied=True)


# EXTERNAL (RFC 4422, appendix A)


def _external_server(_mechanism: str, side: ServerSide) -> ServerConversation:
    authorization = _text((yield b""))
    if side.external_user is None:
        raise MechanismError("the layer below has authenticated nobody")
    # proton sends its configured user here; to act for somebody else is not granted.
    if authorization not in ("", side.external_user):
        raise MechanismError("another authorization identity than the authenticated one")
    return Success(side.external_user)


def _external_client(_mechanism: str, _side: ClientSide) -> ClientConversation:
    yield Turn(b"", satisfied=True)
    # Some servers take the empty initial response for none, and ask.
    yield Turn(b"", satisfied=True)


# PLAIN (RFC 4616)


def _plain_server(_mechanism: str, side: ServerSide) -> ServerConversation:
    fields = (yield b"").split(b"\0")
    if len(fields) != 3:
        raise MechanismError("a PLAIN response has three fields")
    authorization, name, secret = map(_text, fields)
    user, password = _prepared(name), _prepared(secret)
    if authorization and _prepared(authorization) != user:
        raise MechanismError("another authorization identity than the authenticated one")
    verify = partial(side.authenticator.verify_plain, user, password)
    check = Work(verify, iterations=max(side.authenticator.iterations), user=user)
    yield check
    if not check.result():
        raise MechanismError("unknown user or wrong password", user)
    return Success(user)


def _plain_client(_mechanism: str, side: ClientSide) -> ClientConversation:
    user, password = _octets(side.user or ""), _octets(side.password or "")
    if not user or not password or b"\0" in user + password:
        raise MechanismError("PLAIN takes no empty user name or password, and no NUL in them")
    yield Turn(b"\0" + user + b"\0" + password, satisfied=True)


# SCRAM-SHA-1, SCRAM-SHA-256 (RFC 5802, RFC 7677)


def decoy_iterations(user: str, counts: Sequence[int]) -> int:
    """Which of the counts an unknown user has: the same one each time, and with each mechanism."""
    seed = hmac.digest(_DECOY_SECRET, user.encode(), "sha256")
    return counts[int.from_bytes(seed[:8], "big") % len(counts)]


def _decoy(user: str, mechanism: str, counts: Sequence[int]) -> ScramKeys:
    """Keys that no password fits, with the salt that this user will be shown next time too."""
    seed = hmac.digest(_DECOY_SECRET, f"{mechanism}\0{user}".encode(), "sha512")
    key = seed[SALT_SIZE:][: new_hash(_SCRAM_HASHES[mechanism]).digest_size]
    iterations = decoy_iterations(user, counts)
    return ScramKeys(salt=seed[:SALT_SIZE], iterations=iterations, stored_key=key, server_key=key)


_SCRAM_HASHES: Mapping[str, str] = {"SCRAM-SHA-1": "sha1", "SCRAM-SHA-256": "sha256"}


def _scram_server(mechanism: str, side: ServerSide) -> ServerConversation:
    from scramp import ScramException, ScramMechanism

    user = ""
    trouble: Exception | None = None

    def look_up(name: str) -> tuple[bytes, bytes, bytes, int]:
        nonlocal user, trouble
        user = name
        # An unknown user is led through the whole exchange, and fails where a wrong password does. The decoy is
        # made for known users too, so that they take as long.
        decoy = _decoy(name, mechanism, side.authenticator.iterations)
        try:
            keys = side.authenticator.scram_keys(name, mechanism) or decoy
        except Exception as error:
            trouble = error
            raise
        return keys.salt, keys.stored_key, keys.server_key, keys.iterations

    server = ScramMechanism(mechanism).make_server(look_up)

    def is_right(final: str) -> bool:
        server.set_client_final(final)
        return True

    try:
        server.set_client_first(_text((yield b"")))
        final = _text((yield _octets(server.get_server_first())))
        check = Work(partial(is_right, final), iterations=0, user=user)
        yield check
        check.result()
        return Success(user, _octets(server.get_server_final()))
    except ScramException as error:
        if trouble is not None:  # scramp has wrapped what the authenticator raised
            raise trouble from None
        raise MechanismError(f"SCRAM: {error}", user or None) from None


def _scram_client(mechanism: str, side: ClientSide) -> ClientConversation:
    from scramp import ScramClient, ScramException

    try:
        client = ScramClient([mechanism], side.user, side.password)
        client.set_server_first(_text((yield Turn(_octets(client.get_client_first()), satisfied=False))))
        if int(client.iterations) > MAX_ITERATIONS:
            raise MechanismError("SCRAM: the server asks for too many iterations")
        proof = Work(client.get_client_final, iterations=int(client.iterations))
        yield proof
        client.set_server_final(_text((yield Turn(_octets(proof.result()), satisfied=False))))
    except ScramException as error:
        raise MechanismError(f"SCRAM: {error}") from None
    # The server has proved that it knows the password. It comes with the outcome, or in a challenge of its own, as
    # servers built on Cyrus SASL send it: that one is answered, with nothing.
    yield Turn(b"", satisfied=True)


def _has_password(side: ClientSide) -> bool:
    return side.user is not None and side.password is not None


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One mechanism in both roles.

    Attributes: `speaks`: whether the client has something to say. For a mechanism that may have nothing, a missing
    initial response is an empty one: proton's clients answer no challenge, so none is sent where it can be spared.
    `usable`: whether a client with these credentials can choose it.
    """

    server: Callable[[str, ServerSide], ServerConversation]
    client: Callable[[str, ClientSide], ClientConversation]
    speaks: bool
    usable: Callable[[ClientSide], bool]


_SCRAM = Mechanism(_scram_server, _scram_client, speaks=True, usable=_has_password)

MECHANISMS: Mapping[str, Mechanism] = {
    "EXTERNAL": Mechanism(_external_server, _external_client, speaks=False, usable=lambda side: side.external),
    "SCRAM-SHA-256": _SCRAM,
    "SCRAM-SHA-1": _SCRAM,
    "PLAIN": Mechanism(_plain_server, _plain_client, speaks=True, usable=_has_password),
    "ANONYMOUS": Mechanism(_anonymous_server, _anonymous_client, speaks=False, usable=lambda _side: True),
}
"""What we speak, in decreasing order of strength."""
