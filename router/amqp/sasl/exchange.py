"""The SASL exchange (§5.3.2) and its frames (§5.3.3), for both roles.

The connection handles protocol headers and framing. It sends the frame bodies that `start` and `receive` return, passes
the bodies of the peer's frames to `receive`, and checks `done`. A failed authentication is an outcome. A peer that
breaks the standard causes a `ProtocolError`, and another with each frame after that. If `work` is set, a password is to
be checked or hashed: the caller does the work, then calls `resume`.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache, partial
from typing import Final, Generic, Never, TypeAlias, TypeVar

from amqpmesh.router.amqp.codec.composite import Registry, choices, composite, decode_composite, encode_composite
from amqpmesh.router.amqp.codec.field_types import Binary, Multiple, String
from amqpmesh.router.amqp.codec.types import Primitive, Symbol
from amqpmesh.router.amqp.errors import CommandError, ProtocolError, Scope, framing_error
from amqpmesh.router.amqp.sasl.mechanisms import (
    MECHANISMS,
    Authenticator,
    BusyError,
    ClientConversation,
    ClientSide,
    Computation,
    MechanismError,
    ServerSide,
    Success,
    Token,
    TokenJudge,
    Turn,
    Work,
)
from amqpmesh.router.amqp.standard.definitions import MIN_MAX_FRAME_SIZE, AmqpCondition

MAX_BODY_SIZE: Final = MIN_MAX_FRAME_SIZE - 8
"""The most octets of a SASL frame's body: the frame has at most 512 (§5.3.1), its header 8."""

BESIDE_TOKEN: Final = 1024
"""Octets of a frame beside the token that it carries: the host, the user, and the names of keys."""

BEARERS: Final = frozenset({"OAUTHBEARER", "XOAUTH2"})
"""The mechanisms that carry a token. A token rarely fits a frame of 512 octets, and cannot be split. So clients send
larger ones, against §5.3.1, to a server that offers such a mechanism.
"""


@choices(Primitive.UBYTE)
class SaslCode(IntEnum):
    """The result of an exchange (§5.3.3.6)."""

    OK = 0
    AUTH = 1
    SYS = 2
    SYS_PERM = 3
    SYS_TEMP = 4


_REFUSALS: Final[Mapping[SaslCode, str]] = {
    SaslCode.AUTH: "does not accept the credentials (auth)",
    SaslCode.SYS: "cannot check the credentials (sys)",
    SaslCode.SYS_PERM: "cannot check the credentials until it is repaired (sys-perm)",
    SaslCode.SYS_TEMP: "cannot check the credentials now (sys-temp)",
}


@composite("amqp:sasl-mechanisms:list", 0x40)
class SaslMechanisms:
    """The server's mechanisms, in order of preference (§5.3.3.1)."""

    sasl_server_mechanisms: Multiple[Symbol]


# The reprs below show no octets, which may be a password, or help to guess one.


@composite("amqp:sasl-init:list", 0x41)
class SaslInit:
    """The client has chosen a mechanism (§5.3.3.2)."""

    mechanism: Symbol
    initial_response: Binary | None = None
    hostname: String | None = None

    def __repr__(self) -> str:
        return f"SaslInit(mechanism={self.mechanism!r}, initial_response={_size(self.initial_response)})"


@composite("amqp:sasl-challenge:list", 0x42)
class SaslChallenge:
    """A challenge of the server's mechanism (§5.3.3.3)."""

    challenge: Binary

    def __repr__(self) -> str:
        return f"SaslChallenge({_size(self.challenge)})"


@composite("amqp:sasl-response:list", 0x43)
class SaslResponse:
    """A response of the client's mechanism (§5.3.3.4)."""

    response: Binary

    def __repr__(self) -> str:
        return f"SaslResponse({_size(self.response)})"


@composite("amqp:sasl-outcome:list", 0x44)
class SaslOutcome:
    """The exchange has ended (§5.3.3.5)."""

    code: SaslCode
    additional_data: Binary | None = None

    def __repr__(self) -> str:
        return f"SaslOutcome(code={self.code!r}, additional_data={_size(self.additional_data)})"


def _size(data: bytes | None) -> str:
    return "None" if data is None else f"<{len(data)} octets>"


ClientFrame: TypeAlias = SaslInit | SaslResponse
ServerFrame: TypeAlias = SaslMechanisms | SaslChallenge | SaslOutcome

_FROM_CLIENT: Registry[ClientFrame] = Registry(SaslInit, SaslResponse)
_FROM_SERVER: Registry[ServerFrame] = Registry(SaslMechanisms, SaslChallenge, SaslOutcome)

F = TypeVar("F")

_OK: Final = SaslCode.OK


class _Exchange(Generic[F]):
    """The part of an exchange that is the same for both roles.

    Attributes: `outcome`: None until the exchange has ended; OK only if both sides have succeeded. `user`: the
    authenticated user; None before the end, and after ANONYMOUS. `mechanism`: the chosen one. `reason`: the cause of a
    failure, for the log; it holds no secret. `work`: the work that the caller must do before the exchange goes on, if
    the exchange defers work.
    """

    def __init__(self, frames: Registry[F], defers: bool) -> None:
        self.outcome: SaslCode | None = None
        self.user: str | None = None
        self.mechanism: str | None = None
        self.reason = ""
        self.work: Work | None = None
        #: The most octets of a frame of the peer's.
        self.max_frame_size = MIN_MAX_FRAME_SIZE
        self._defers = defers
        self._frames = frames
        self._expected: tuple[type[object], ...] = ()

    @property
    def done(self) -> bool:
        """The exchange has ended."""
        return self.outcome is not None

    @property
    def succeeded(self) -> bool:
        """The exchange has ended with success."""
        return self.outcome is _OK

    def _read(self, body: bytes | bytearray | memoryview) -> F:
        expected, self._expected = self._expected, ()  # the answer sets the frames that may come next
        if not body:
            raise framing_error("an empty SASL frame")
        if len(body) > self.max_frame_size - 8:
            raise framing_error(f"a SASL frame of more than {self.max_frame_size} octets")
        frame, end = decode_composite(self._frames, body)
        if end != len(body):
            raise framing_error("a SASL frame with more than one value in it")
        if not isinstance(frame, expected):
            raise ProtocolError(
                Scope.CONNECTION, AmqpCondition.ILLEGAL_STATE, f"a {type(frame).__name__} that is not due"
            )
        return frame


def _refuse_message(_said: bytes) -> Never:
    """Refuse a message before a mechanism is chosen, or after the end."""
    raise MechanismError("no mechanism is chosen")


@lru_cache(maxsize=256)
def _offered(mechanisms: tuple[str, ...], has_external_user: bool) -> tuple[str, ...]:
    """Return the mechanisms to offer. Raises: CommandError: as `SaslServer`."""
    _check_names(mechanisms)
    # proton's clients choose EXTERNAL wherever it is offered, and would always fail without a certificate.
    possible = tuple(name for name in mechanisms if name != "EXTERNAL" or has_external_user)
    return possible or mechanisms  # an empty list is not allowed (§5.3.3.1)


@lru_cache(maxsize=256)
def _encoded_offer(mechanisms: tuple[str, ...]) -> bytes:
    return encode_composite(SaslMechanisms(sasl_server_mechanisms=tuple(map(Symbol, mechanisms))))


class SaslServer(_Exchange[ClientFrame]):
    """The server's side of one exchange.

    Attributes: `hostname`: the host that the client asks for. `refused_user`: the user that the client named, if its
    authentication failed. `authenticator_error`: the exception of the authenticator, if any; the client learns only
    `SYS`. `token`: the content of the token by which the client has authenticated, if it has.
    """

    def __init__(
        self,
        mechanisms: Sequence[str],
        authenticator: Authenticator,
        *,
        external_user: str | None = None,
        defers: bool = False,
        tokens: TokenJudge | None = None,
        token_size: int = 0,
    ) -> None:
        """Args: mechanisms: names, in order of preference. external_user: the user that TLS has authenticated.
        defers: the caller checks passwords (`work`), not `receive`. tokens: for OAUTHBEARER and XOAUTH2. token_size:
        octets of the largest token.

        Raises: CommandError: no mechanism, or an unknown one.
        """
        super().__init__(_FROM_CLIENT, defers)
        self._offered = _offered(tuple(mechanisms), external_user is not None)
        self._side = ServerSide(authenticator, external_user, tokens)
        if not BEARERS.isdisjoint(self._offered):
            self.max_frame_size = max(self.max_frame_size, token_size + BESIDE_TOKEN)
        self._tell: Callable[[bytes], bytes | Work] = _refuse_message
        self.hostname: str | None = None
        self.refused_user: str | None = None
        self.authenticator_error: Exception | None = None
        self.token: Token | None = None

    def ended_elsewhere(self, mechanism: str, user: str | None) -> None:
        """Note that the exchange has ended with success at the process that has handed the connection over."""
        self.outcome, self.mechanism, self.user = SaslCode.OK, mechanism, user

    def start(self) -> list[bytes]:
        """Begin after the protocol headers. Returns: the frame bodies to send first (§5.3.2)."""
        self._expected = (SaslInit,)
        return [_encoded_offer(self._offered)]

    def receive(self, body: bytes | bytearray | memoryview) -> list[bytes]:
        """Take the body of a SASL frame. Returns: the frame bodies to answer with; none if there is `work` now.

        Raises: ProtocolError(CONNECTION): the frame is malformed, or not due (§5.3.1, §5.3.2).
        """
        return self._answer(partial(self._converse, self._read(body)))

    def resume(self) -> list[bytes]:
        """Go on after `work`. Returns: the frame bodies to answer with."""
        self.work = None
        return self._answer(partial(self._tell, b""))

    def _answer(self, step: Callable[[], bytes | Work]) -> list[bytes]:
        try:
            said = step()
            while isinstance(said, Work):
                if self._defers:
                    self.work = said
                    return []
                assert isinstance(said, Computation), "a question is put aside"
                said.do()
                said = self._tell(b"")
            challenge = encode_composite(SaslChallenge(challenge=said))
            if len(challenge) > MAX_BODY_SIZE:
                raise MechanismError("the client's nonce leaves no room for a challenge")
        except StopIteration as end:
            success: Success = end.value
            self.user, self.token = success.user, success.token
            return self._end(SaslCode.OK, "", success.additional_data)
        except MechanismError as error:
            self.refused_user = error.user
            return self._end(SaslCode.SYS_TEMP if isinstance(error, BusyError) else SaslCode.AUTH, str(error))
        except Exception as error:
            self.authenticator_error = error
            return self._end(SaslCode.SYS, "the authenticator failed")
        self._expected = (SaslResponse,)
        return [challenge]

    def _converse(self, frame: ClientFrame) -> bytes | Work:
        """Return the mechanism's next challenge. Raises: StopIteration: the client is authenticated."""
        if isinstance(frame, SaslResponse):
            return self._tell(frame.response)
        self.hostname = frame.hostname
        if frame.mechanism not in self._offered:
            raise MechanismError("a mechanism that was not offered")
        self.mechanism = str(frame.mechanism)
        mechanism = MECHANISMS[self.mechanism]
        conversation = mechanism.server(self.mechanism, self._side)
        self._tell = conversation.send
        challenge = next(conversation)
        if mechanism.speaks and frame.initial_response is None:
            return challenge  # an empty initial response is a response, and is passed on (§5.3.3.2)
        return self._tell(frame.initial_response or b"")

    def _end(self, code: SaslCode, reason: str, additional_data: bytes | None = None) -> list[bytes]:
        self.outcome, self.reason, self._tell = code, reason, _refuse_message
        # Azure's pure-Python stack prints both fields of an outcome that is not OK, and fails on one.
        return [encode_composite(SaslOutcome(code=code, additional_data=additional_data), full=True)]


class SaslClient(_Exchange[ServerFrame]):
    """The client's side of one exchange.

    A client leaves PLAIN out unless there is TLS below, so that nobody can read its password.
    """

    def __init__(
        self,
        mechanisms: Sequence[str],
        user: str | None = None,
        password: str | None = None,
        hostname: str | None = None,
        external: bool = False,
        withheld: str | None = None,
        defers: bool = False,
    ) -> None:
        """Args: mechanisms: names, in order of preference; those without credentials are skipped. hostname: the host
        to ask for. external: the layer below has authenticated us. withheld: the reason, for people, why mechanisms
        that the server may offer are left out. defers: the caller hashes passwords (`work`), not `receive`.

        Raises: CommandError: an unknown mechanism, no mechanism with credentials, or credentials that a mechanism
            cannot carry: SCRAM takes what SASLprep (RFC 4013) takes.
        """
        super().__init__(_FROM_SERVER, defers)
        _check_names(mechanisms)
        self._hostname = hostname
        self._user = user
        self._withheld = withheld
        self._conversations: dict[str, tuple[ClientConversation, Turn]] = {}
        self._turn = Turn(b"", satisfied=False)
        self._tell: Callable[[bytes], Turn | Work] = _refuse_message
        side = ClientSide(user, password, external)
        for name in mechanisms:
            if not MECHANISMS[name].usable(side):
                continue
            conversation = MECHANISMS[name].client(name, side)
            try:
                turn = next(conversation)
                assert isinstance(turn, Turn), "no mechanism begins with work"
                _fitting(self._init(name, turn))
            except MechanismError as error:
                raise CommandError(f"{name} cannot be used: {error}") from None
            self._conversations[name] = (conversation, turn)
        if not self._conversations:
            raise CommandError(f"no credentials for any of {', '.join(mechanisms)}")

    def start(self) -> list[bytes]:
        """Begin after the protocol headers. Returns: nothing to send: the server begins (§5.3.2)."""
        self._expected = (SaslMechanisms,)
        return []

    def receive(self, body: bytes | bytearray | memoryview) -> list[bytes]:
        """Take the body of a SASL frame. Returns: the frame bodies to answer with; none if there is `work` now.

        Raises: ProtocolError(CONNECTION): the frame is malformed, or not due (§5.3.1, §5.3.2).
        """
        frame = self._read(body)
        match frame:
            case SaslMechanisms():
                return self._answer(partial(self._choose, frame.sasl_server_mechanisms))
            case SaslChallenge():
                return self._answer(partial(self._respond, frame.challenge))
            case SaslOutcome():
                return self._answer(partial(self._finish, frame))

    def resume(self) -> list[bytes]:
        """Go on after `work`. Returns: the frame bodies to answer with."""
        self.work = None
        return self._answer(partial(self._respond, b""))

    def _answer(self, step: Callable[[], bytes | None]) -> list[bytes]:
        try:
            answer = step()
            if answer is None:
                return []
            answer = _fitting(answer)
        except MechanismError as error:
            # The standard has no frame for this: the connection is closed.
            self._end(SaslCode.AUTH, str(error))
            return []
        self._expected = (SaslChallenge, SaslOutcome)
        return [answer]

    def _respond(self, challenge: bytes) -> bytes | None:
        self._listen(challenge)
        return None if self.work is not None else encode_composite(SaslResponse(response=self._turn.response))

    def _choose(self, offered: Sequence[str]) -> bytes:
        name = next((name for name in self._conversations if name in offered), None)
        if name is None:
            why = f"; {self._withheld}" if self._withheld is not None else ""
            raise MechanismError(f"none of {', '.join(self._conversations)} is offered{why}")
        self.mechanism = name
        conversation, self._turn = self._conversations[name]
        self._tell = conversation.send
        self._conversations.clear()
        return self._init(name, self._turn)

    def _init(self, name: str, turn: Turn) -> bytes:
        return encode_composite(
            SaslInit(mechanism=Symbol(name), initial_response=turn.response, hostname=self._hostname)
        )

    def _listen(self, challenge: bytes) -> None:
        try:
            turn = self._tell(challenge)
            while isinstance(turn, Work):
                if self._defers:
                    self.work = turn
                    return
                assert isinstance(turn, Computation), "a client asks no questions"
                turn.do()
                turn = self._tell(b"")
            self._turn = turn
        except StopIteration:
            raise MechanismError("a challenge that is not due") from None

    def _finish(self, frame: SaslOutcome) -> None:
        if frame.code is not SaslCode.OK:
            self._end(frame.code, f"the server {_REFUSALS[frame.code]}")
            return
        if not self._turn.satisfied and frame.additional_data is not None:
            self._listen(frame.additional_data)
        if not self._turn.satisfied:
            raise MechanismError("the server has not proved that it knows the password")
        self._end(SaslCode.OK, "")
        if self.mechanism is not None and MECHANISMS[self.mechanism].speaks:
            self.user = self._user

    def _end(self, code: SaslCode, reason: str) -> None:
        self.outcome, self.reason, self._tell = code, reason, _refuse_message
        self._conversations.clear()


def _check_names(mechanisms: Sequence[str]) -> None:
    unknown = [name for name in mechanisms if name not in MECHANISMS]
    if unknown or not mechanisms:
        raise CommandError(f"mechanisms must be some of {', '.join(MECHANISMS)}, not {', '.join(unknown) or 'none'}")


def _fitting(body: bytes) -> bytes:
    if len(body) > MAX_BODY_SIZE:
        raise MechanismError(f"the response does not fit a frame of {MIN_MAX_FRAME_SIZE} octets (§5.3.1)")
    return body
