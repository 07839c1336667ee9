"""SASL mechanisms for both roles, as conversations without I/O (RFC 4422).

A mechanism is a generator. The server's generator yields challenges, receives responses, and returns a `Success`. The
client's yields a `Turn` for each response, and receives challenges. Both raise `MechanismError` when the conversation
fails. Both may also yield a `Work`, a password to check or to hash, and go on after it is done.
In all mechanisms here the client speaks first: a server's first challenge is empty, and is sent only to a client that
sent no initial response.

scramp is imported when the first password is handled: its import is slow, and most routers never need it.

There is no channel binding: the `-PLUS` variants of SCRAM are neither offered nor chosen.
"""

from __future__ import annotations

import hmac
import secrets
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from amqpmesh.router.amqp.sasl.bearer import INVALID_TOKEN, BearerError, BearerResponse, oauthbearer, xoauth2
from amqpmesh.router.amqp.sasl.scram import HASHES, ScramError, ScramServer

SALT_SIZE = 32
"""Octets of salt in a verifier. Unknown users get a salt of this size, too, and must not be recognisable by it."""

SCRAM_ITERATIONS = 65_536
"""Iterations of a new verifier: passwords of a stolen file are 16 times as hard to guess as with the least number.
Cyrus SASL, which qpid-proton's clients use, computes no more."""

MIN_ITERATIONS = 4096
"""The least that a verifier may have (RFC 5802, 5.1)."""

MAX_ITERATIONS = 1_000_000
"""The most iterations that a server may ask of our client: half a second of processor time."""

# Random for each process: the salts of unknown users cannot be computed.
_DECOY_SECRET = secrets.token_bytes(32)


class MechanismError(Exception):
    """The conversation has failed. The text is the reason and may be logged: it never quotes the peer.

    Attributes: `user`: the user that the client named, prepared with SASLprep; None: it named none.
    """

    def __init__(self, reason: str, user: str | None = None) -> None:
        super().__init__(reason)
        self.user = user


class BusyError(MechanismError):
    """Too many passwords wait to be checked: this one was not checked."""


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """The verifier of one user and mechanism (RFC 5802, 3): it checks a password, but does not reveal it."""

    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


class Authenticator(Protocol):
    """The users that may log in. Names and passwords are prepared with SASLprep (RFC 4013).

    Both methods should take as long for an unknown user as for a known one. `verify_plain` may be called in another
    thread. `scram_keys` is called between two frames of a connection, and blocks all connections.
    """

    @property
    def iterations(self) -> Sequence[int]:
        """The distinct iteration counts of the verifiers, at least one. An unknown user gets one of them."""

    def verify_plain(self, user: str, password: str) -> bool:
        """Return whether this is the user's password."""

    def scram_keys(self, user: str, mechanism: str) -> ScramKeys | None:
        """Return the user's verifier for `SCRAM-SHA-1`, `SCRAM-SHA-256` or `SCRAM-SHA-512`; None: there is none.

        Verifiers must have salts of `SALT_SIZE`, or known users can be told from unknown ones.
        """


class Token(Protocol):
    """The content of a bearer token that is valid."""

    @property
    def user(self) -> str:
        """The user that it proves."""


class TokenJudge(Protocol):
    """The judge of bearer tokens. It is called between two frames of a connection, and blocks all connections."""

    def judge(self, token: str) -> Token:
        """Return the content of a token.

        Raises: MechanismError: it is not valid. BusyError: its issuer's keys are not known yet.
        """


@dataclass(frozen=True, slots=True)
class ServerSide:
    """The data of a server. `external_user`: the user that the layer below has authenticated, if any."""

    authenticator: Authenticator
    external_user: str | None = None
    tokens: TokenJudge | None = None


@dataclass(frozen=True, slots=True)
class ClientSide:
    """The credentials of a client. `external`: the layer below has authenticated it, usually by a certificate."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    external: bool = False


@dataclass(frozen=True, slots=True)
class Success:
    """The client is authenticated. `user` is None for ANONYMOUS. The data is sent with the outcome (§5.3.3.5).

    `token`: the content of the token that has proved the user, if one has.
    """

    user: str | None
    additional_data: bytes | None = field(default=None, repr=False)
    token: Token | None = field(default=None, repr=False)


class Work:
    """A result that an exchange waits for: a hash or a check of a password.

    Attributes: `user`: the user whose password a server checks; None: a client hashes its own.
    """

    __slots__ = ("_error", "_value", "user")

    def __init__(self, user: str | None = None) -> None:
        self.user = user
        self._value: object = None
        self._error: Exception | None = None

    def refuse(self, reason: str) -> None:
        """Refuse the work instead of doing it: `result` raises BusyError, and the peer may try again later."""
        self._error = BusyError(reason, self.user)

    @property
    def succeeded(self) -> bool:
        """True if the work was a check of a password, and the password is right."""
        return self._error is None and bool(self._value)

    def result(self) -> Any:
        """Return the result of the work. Raises: its exception; BusyError: the work was refused."""
        if self._error is not None:
            raise self._error
        return self._value


class Computation(Work):
    """Work that this process does: up to half a second of processor time, which the caller may spend in a thread.

    Attributes: `iterations`: rounds of hashing; 0: next to no time.
    """

    __slots__ = ("_function", "iterations")

    def __init__(self, function: Callable[[], object], *, iterations: int, user: str | None = None) -> None:
        """Args: function: does the work; a check returns whether the password is right, or raises."""
        super().__init__(user)
        self.iterations = iterations
        self._function: Callable[[], object] = function

    def do(self) -> None:
        """Do the work. Exceptions are kept for `result`."""
        try:
            self._value = self._function()
        except Exception as error:
            self._error = error


class Question(Work):
    """A check of a password that somebody else does: it takes time, and next to no processor time.

    The value is the identity of the user, or None.
    """

    __slots__ = ("_ask",)

    def __init__(self, ask: Callable[[Any], Awaitable[object]], user: str) -> None:
        """Args: ask: returns the identity of the user; None: the user is unknown, or the password is wrong. It gets
        what `ask` gets.
        """
        super().__init__(user)
        self._ask = ask

    @property
    def is_answered(self) -> bool:
        """True if the password is right or wrong; False: nobody knows."""
        return self._error is None

    async def ask(self, threads: object) -> None:
        """Ask. Exceptions are kept for `result`. Args: threads: limits the threads of those who answer."""
        try:
            self._value = await self._ask(threads)
        except Exception as error:
            self._error = error


class Questioner(Authenticator):
    """Users that somebody else knows. PLAIN alone can be offered for them."""

    @abstractmethod
    def question(self, user: str, password: str) -> Question:
        """Return the check of a password, which is not begun yet."""


class Turn(NamedTuple):
    """A client's response. `satisfied`: the client needs only the outcome from the server."""

    response: bytes
    satisfied: bool


ServerConversation: TypeAlias = Generator[bytes | Work, bytes, Success]
ClientConversation: TypeAlias = Generator[Turn | Work, bytes, None]


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        # Not chained: the cause would hold the bytes.
        raise MechanismError("not UTF-8") from None


def _octets(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise MechanismError("the user name or the password holds a lone surrogate") from None


def _prepared(text: str) -> str:
    """Prepare a text with SASLprep (RFC 4013): one name has one spelling. Empty and forbidden texts are refused."""
    if text and text.isascii() and text.isprintable():
        return text  # SASLprep changes and refuses no printable ASCII
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
    yield b""  # the response is unverified trace information
    return Success(user=None)


def _anonymous_client(_mechanism: str, _side: ClientSide) -> ClientConversation:
    yield Turn(b"", satisfied=True)


# EXTERNAL (RFC 4422, appendix A)


def _external_server(_mechanism: str, side: ServerSide) -> ServerConversation:
    authorization = _text((yield b""))
    if side.external_user is None:
        raise MechanismError("TLS has authenticated no user")
    # proton sends its configured user here. Acting for another user is not permitted.
    if authorization not in ("", side.external_user):
        raise MechanismError("another authorization identity than the authenticated one")
    return Success(side.external_user)


def _external_client(_mechanism: str, _side: ClientSide) -> ClientConversation:
    yield Turn(b"", satisfied=True)
    # Some servers take an empty initial response for a missing one, and send a challenge.
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
    users = side.authenticator
    if isinstance(users, Questioner):
        check: Work = users.question(user, password)
    else:
        check = Computation(partial(users.verify_plain, user, password), iterations=max(users.iterations), user=user)
    yield check
    found = check.result()
    if not found:
        raise MechanismError("unknown user or wrong password", user)
    return Success(found.user, token=found) if isinstance(check, Question) else Success(user)


def _plain_client(_mechanism: str, side: ClientSide) -> ClientConversation:
    user, password = _octets(side.user or ""), _octets(side.password or "")
    if not user or not password or b"\0" in user + password:
        raise MechanismError("PLAIN takes no empty user name or password, and no NUL in them")
    yield Turn(b"\0" + user + b"\0" + password, satisfied=True)


# SCRAM-SHA-1, SCRAM-SHA-256, SCRAM-SHA-512 (RFC 5802, RFC 7677)


def decoy_iterations(user: str, counts: Sequence[int]) -> int:
    """Return the iteration count of an unknown user: always the same one, with each mechanism."""
    seed = hmac.digest(_DECOY_SECRET, user.encode(), "sha256")
    return counts[int.from_bytes(seed[:8], "big") % len(counts)]


def _decoy_keys(user: str, mechanism: str, counts: Sequence[int]) -> ScramKeys:
    """Make keys that fit no password, with a salt that is the same each time for this user."""
    salt = hmac.digest(_DECOY_SECRET, f"{mechanism}\0{user}".encode(), "sha256")
    key = hmac.digest(_DECOY_SECRET, salt, HASHES[mechanism])
    iterations = decoy_iterations(user, counts)
    return ScramKeys(salt=salt[:SALT_SIZE], iterations=iterations, stored_key=key, server_key=key)


def _keys(side: ServerSide, mechanism: str, user: str) -> ScramKeys:
    """Return the verifier of a user. Raises: as the authenticator does.

    An unknown user goes through the whole exchange, and fails in the same place as a wrong password. The decoy is made
    for known users, too, to take the same time.
    """
    decoy = _decoy_keys(user, mechanism, side.authenticator.iterations)
    return side.authenticator.scram_keys(user, mechanism) or decoy


def _scram_server(mechanism: str, side: ServerSide) -> ServerConversation:
    server = ScramServer(mechanism, partial(_keys, side, mechanism))
    try:
        challenge = server.begin(_text((yield b"")))
        final = _text((yield _octets(challenge)))
        check = Computation(partial(server.check, final), iterations=0, user=server.user)
        yield check
        return Success(server.user, _octets(check.result()))
    except ScramError as error:
        raise MechanismError(f"SCRAM: {error}", server.user or None) from None


def _scram_client(mechanism: str, side: ClientSide) -> ClientConversation:
    from scramp import ScramClient, ScramException

    try:
        client = ScramClient([mechanism], side.user, side.password)
        client.set_server_first(_text((yield Turn(_octets(client.get_client_first()), satisfied=False))))
        if int(client.iterations) > MAX_ITERATIONS:
            raise MechanismError("SCRAM: the server asks for too many iterations")
        proof = Computation(client.get_client_final, iterations=int(client.iterations))
        yield proof
        client.set_server_final(_text((yield Turn(_octets(proof.result()), satisfied=False))))
    except ScramException as error:
        raise MechanismError(f"SCRAM: {error}") from None
    # The server has proved that it knows the password. The proof comes with the outcome, or in a challenge, as sent by
    # servers built on Cyrus SASL: such a challenge gets an empty response.
    yield Turn(b"", satisfied=True)


# OAUTHBEARER (RFC 7628) and XOAUTH2


def _judged(side: ServerSide, response: BearerResponse) -> Success:
    """Return the success of a token. Raises: MechanismError; BusyError."""
    if side.tokens is None:
        raise MechanismError("no issuer of tokens is configured")
    token = side.tokens.judge(response.token)
    if response.authorization not in ("", token.user):
        raise MechanismError("another authorization identity than the authenticated one", token.user)
    return Success(token.user, token=token)


def _oauthbearer_server(_mechanism: str, side: ServerSide) -> ServerConversation:
    message = _text((yield b""))
    try:
        return _judged(side, oauthbearer(message))
    except BearerError as error:
        raise MechanismError(f"OAUTHBEARER: {error}") from None
    except BusyError:
        raise
    except MechanismError:
        yield INVALID_TOKEN  # the client answers it, and then fails
        raise


def _xoauth2_server(_mechanism: str, side: ServerSide) -> ServerConversation:
    # Clients of AMQP do not expect the challenge with an error that XOAUTH2 has in mail: the outcome says enough.
    try:
        return _judged(side, xoauth2(_text((yield b""))))
    except BearerError as error:
        raise MechanismError(f"XOAUTH2: {error}") from None


def _no_client(mechanism: str, _side: ClientSide) -> ClientConversation:
    raise MechanismError(f"{mechanism} is for servers alone")
    yield


def _has_password(side: ClientSide) -> bool:
    return side.user is not None and side.password is not None


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One mechanism in both roles.

    Attributes: `speaks`: the client's response is never empty. For other mechanisms a missing initial response counts
    as an empty one: proton's clients answer no challenge, so none is sent unless it is needed.
    `usable`: returns whether a client can use it with its credentials.
    """

    server: Callable[[str, ServerSide], ServerConversation]
    client: Callable[[str, ClientSide], ClientConversation]
    speaks: bool
    usable: Callable[[ClientSide], bool]


_SCRAM = Mechanism(_scram_server, _scram_client, speaks=True, usable=_has_password)

_NO_ONE: Callable[[ClientSide], bool] = lambda _side: False  # noqa: E731 - as `usable` is given below

MECHANISMS: Mapping[str, Mechanism] = {
    "EXTERNAL": Mechanism(_external_server, _external_client, speaks=False, usable=lambda side: side.external),
    "SCRAM-SHA-512": _SCRAM,
    "SCRAM-SHA-256": _SCRAM,
    "SCRAM-SHA-1": _SCRAM,
    "OAUTHBEARER": Mechanism(_oauthbearer_server, _no_client, speaks=True, usable=_NO_ONE),
    "XOAUTH2": Mechanism(_xoauth2_server, _no_client, speaks=True, usable=_NO_ONE),
    "PLAIN": Mechanism(_plain_server, _plain_client, speaks=True, usable=_has_password),
    # A peer without a user, which puts its token later (`$cbs`).
    "MSSBCBS": Mechanism(_anonymous_server, _no_client, speaks=False, usable=_NO_ONE),
    "ANONYMOUS": Mechanism(_anonymous_server, _anonymous_client, speaks=False, usable=lambda _side: True),
}
"""The mechanisms that we know, in decreasing order of strength."""
