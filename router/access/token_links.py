"""The node `$cbs`, which takes tokens: claims-based security (OASIS AMQP CBS, working draft).

A peer attaches a sender to `$cbs`, and a receiver from it. It puts a token by a message whose body is the token, with
the application-properties `operation` ("put-token"), `type`, `name` and perhaps `expiration`. The answer comes by the
receiver, with `status-code` and `status-description`; without a receiver, the outcome of the message is the answer.

These links end at the router: they have no node that others could send to, their messages are not relayed and not
recorded, and no frame trace shows their content.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpmesh.policies.access import RESERVED
from amqpmesh.router.access.tokens import put
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Int, Symbol, Timestamp
from amqpmesh.router.amqp.codec.value_limits import FEW_VALUES
from amqpmesh.router.amqp.errors import ProtocolError
from amqpmesh.router.amqp.link import Receiver, Sender
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, SenderSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Rejected
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.kernel import ACCEPTED_STATE, dispose
from amqpmesh.router.memory.retained import size_of_attach
from amqpmesh.router.message.content import Message
from amqpmesh.router.model.refusal import RefusedError
from amqpmesh.router.tokens.identity import NotYetError, TokenError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from amqpmesh.router.amqp.events import LinkAttached, TransferReceived
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import Delivery
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.peer_token import PeerToken

ADDRESS: Final = f"{RESERVED}cbs"
"""The address of the node."""

LINKS: Final = 2
"""Links to the node in each direction: one is in use while a client attaches another."""

CREDIT: Final = 4
"""Tokens that a peer may put before the first is answered."""

BESIDE_TOKEN: Final = 4096
"""Octets of a message beside its token: its properties, and the names of keys."""

MOST_WAITING: Final = 16
"""Answers that wait for the peer's credit; a peer that takes none may put no more tokens."""

NAME: Final = 1024
"""Characters of the name that a token is put for, and of the id of the request: waiting answers hold it."""

ACCEPTED, BAD_REQUEST, UNAUTHORIZED, UNAVAILABLE = 202, 400, 401, 503


class _PutError(Exception):
    """A token that is not put in force: the answer has this status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class TokenLink:
    """A link to the node: it carries tokens to the router, or answers to the peer."""

    __slots__ = ("answers", "coming", "context", "endpoint", "record", "sent", "tag", "target")

    def __init__(
        self, context: Context, record: ConnectionRecord, endpoint: Sender | Receiver, target: str | None
    ) -> None:
        """Args: target: the address of the peer's target, by which it may ask for the answer."""
        self.target = target
        self.context = context
        self.record = record
        self.endpoint = endpoint
        #: The message that is coming, if this is a link of tokens.
        self.coming = bytearray()
        #: The answers that wait here, if this is a link of answers. The first is perhaps half sent: `sent` octets.
        self.answers: deque[tuple[Delivery | None, bytes]] = deque()
        self.sent = 0
        self.tag = 0

    # ----------------------------------------------------------------------------------------------------------- tokens

    def grant(self) -> None:
        """Give the peer credit for tokens, as far as its rate permits; else set a timer."""
        endpoint, token, limits = self.endpoint, self.record.token, self.context.config.tokens
        if token is None or not isinstance(endpoint, Receiver) or not _is_alive(endpoint):
            return
        now = self.context.now
        token.allowed = min(float(limits.burst), token.allowed + (now - token.allowed_at) * limits.rate)
        token.allowed_at = now
        if any(len(each.answers) >= MOST_WAITING for each in _links(token.answers)):
            return  # it goes on when they are sent
        more = min(CREDIT - endpoint.credit, int(token.allowed))
        if more > 0:
            token.allowed -= more
            endpoint.flow(endpoint.credit + more)
        elif endpoint.credit <= 0 and token.refill is None:
            # One timer for all links: a peer may attach and detach some thousand of them before it is due.
            at = now + (1.0 - token.allowed) / limits.rate
            token.refill = self.context.schedule(at, partial(_refill, self.context, self.record, token))

    def received(self, event: TransferReceived) -> None:
        """Take a part of a message; answer a whole one."""
        event.link.session.release(1)
        delivery = event.delivery
        if delivery.aborted:
            self.coming.clear()
            self.grant()
            return
        self.coming += event.payload
        if not delivery.complete:
            return
        message, self.coming = bytes(self.coming), bytearray()
        state = _answer(self.context, self.record, message)
        if not self.record.lost:
            dispose(delivery, state, True)
            self.grant()

    # ---------------------------------------------------------------------------------------------------------- answers

    def send(self, answer: bytes) -> None:
        """Send an answer as soon as the peer has credit for it."""
        self.answers.append((None, answer))
        self.pump()

    def pump(self) -> None:
        """Send answers, as far as credit and window allow."""
        endpoint = self.endpoint
        has_sent = False
        while self.answers and isinstance(endpoint, Sender) and _is_alive(endpoint):
            delivery, answer = self.answers[0]
            if delivery is None:
                if endpoint.credit <= 0:
                    break
                self.tag = (self.tag + 1) & 0xFFFF_FFFF
                delivery = endpoint.delivery(self.tag.to_bytes(4, "big"), settled=True)
                self.answers[0] = delivery, answer
                self.sent = 0
            self.sent += endpoint.transfer(delivery, memoryview(answer)[self.sent :])
            if not delivery.complete:
                break
            self.answers.popleft()
            has_sent = True
        if has_sent and self.record.token is not None:
            for each in _links(self.record.token.requests):
                each.grant()


def _refill(context: Context, record: ConnectionRecord, token: PeerToken) -> None:
    """Give credit to the links of tokens that have none, first to the one attached last."""
    token.refill = None
    for each in reversed(list(_links(token.requests))):
        if each.endpoint.credit <= 0:
            each.grant()
    context.on_output(record)


def is_of_tokens(record: ConnectionRecord, event: LinkAttached) -> bool:
    """Tell whether a peer attaches a link to the node that takes tokens."""
    if record.token is None or record.listener is None or not record.listener.cbs:
        return False
    attach = event.attach
    terminus = attach.target if isinstance(event.link, Receiver) else attach.source
    return isinstance(terminus, Source | Target) and terminus.address == ADDRESS and not terminus.dynamic


def answer_attach(context: Context, record: ConnectionRecord, event: LinkAttached) -> None:
    """Answer a peer's attach to the node. Raises: RefusedError: without TLS no token is taken, or it has too many."""
    token, endpoint, attach = record.token, event.link, event.attach
    assert token is not None
    assert record.listener is not None
    if not record.listener.takes_tokens(secured=record.tls is not None):
        raise RefusedError(AmqpCondition.NOT_ALLOWED, "tokens are taken under TLS only")
    assert isinstance(endpoint, Sender | Receiver)
    _forget_ended(token)
    links = token.requests if isinstance(endpoint, Receiver) else token.answers
    if len(links) >= LINKS or size_of_attach(attach):
        description = f"more than {LINKS} links to {ADDRESS}, or names that are too long"
        raise RefusedError(AmqpCondition.RESOURCE_LIMIT_EXCEEDED, description)
    target = attach.target if isinstance(attach.target, Target) else Target()
    source = attach.source if isinstance(attach.source, Source) else Source()
    endpoint.context = link = TokenLink(context, record, endpoint, target.address)
    # The peer's own terminus is answered with its address alone.
    if isinstance(endpoint, Receiver):
        size = context.config.tokens.size + BESIDE_TOKEN
        endpoint.attach(source=Source(address=source.address), target=Target(address=ADDRESS), max_message_size=size)
        token.requests.append(endpoint)
        link.grant()
    else:
        settled = SenderSettleMode.SETTLED
        endpoint.attach(source=Source(address=ADDRESS), target=Target(address=target.address), snd_settle_mode=settled)
        token.answers.append(endpoint)


def detached(record: ConnectionRecord, link: TokenLink) -> None:
    """Forget a link that the peer has detached, or that was detached for a fault of the peer."""
    link.endpoint.context = None
    token = record.token
    if token is not None:
        token.requests[:] = [each for each in token.requests if each is not link.endpoint]
        token.answers[:] = [each for each in token.answers if each is not link.endpoint]


def window_opened(record: ConnectionRecord, session: Session) -> None:
    """Go on sending answers after a session's window has opened."""
    for each in _links(record.token.answers) if record.token is not None else ():
        if each.endpoint.session is session:
            each.pump()


def _links(endpoints: Iterable[Sender | Receiver]) -> Iterator[TokenLink]:
    return (each.context for each in endpoints if isinstance(each.context, TokenLink))


def _is_alive(endpoint: Sender | Receiver) -> bool:
    return endpoint.is_attached and endpoint.session.can_send


def _forget_ended(token: PeerToken) -> None:
    token.requests[:] = filter(_is_alive, token.requests)
    token.answers[:] = filter(_is_alive, token.answers)


def _answer(context: Context, record: ConnectionRecord, payload: bytes) -> bytes:
    """Put the token of a message in force, and answer it. Returns: the outcome of the message, encoded."""
    try:
        message = Message.decode(payload, max_values=FEW_VALUES)
    except ProtocolError as error:
        return encode_composite(Rejected(error=Error(condition=error.condition, description=str(error))))
    status, description = ACCEPTED, "Accepted"
    try:
        _put(context, record, message)
    except _PutError as refusal:
        status, description = refusal.status, str(refusal)
        context.log.warning(
            "token refused", connection=record.number, peer=record.host, user=record.peer.user, reason=description
        )
        if context.audit is not None:
            context.audit.of("token refused", record, reason=description)
    assert record.token is not None
    _forget_ended(record.token)
    to = _receiver(record.token, message.reply_to)
    if to is not None:
        to.send(_response(message, status, description))
    elif status != ACCEPTED:
        condition = AmqpCondition.INVALID_FIELD if status == BAD_REQUEST else AmqpCondition.UNAUTHORIZED_ACCESS
        return encode_composite(Rejected(error=Error(condition=condition, description=description)))
    return ACCEPTED_STATE


def _receiver(token: PeerToken, reply_to: str | None) -> TokenLink | None:
    """Return the link that answers go by: one whose target a request names, else any; the one attached last."""
    links = list(_links(token.answers))
    named = [each for each in links if reply_to is not None and each.target == reply_to]
    return next(reversed(named or links), None)


def _response(request: Message, status: int, description: str) -> bytes:
    return Message(
        None,
        correlation_id=_correlation(request),
        application_properties={"status-code": Int(status), "status-description": description},
    ).encode()


def _correlation(request: Message) -> Any:
    """Return the id by which a client knows the answer to a request; None: there is none, or it is too long."""
    found = request.message_id if request.correlation_id is None else request.correlation_id
    return None if _is_too_long(found) else found


def _is_too_long(id: object) -> bool:
    return isinstance(id, str | bytes) and len(id) > NAME


def _put(context: Context, record: ConnectionRecord, message: Message) -> None:
    """Put the token of a request in force. Raises: _PutError."""
    properties = message.application_properties
    operation, kind, name = (properties.get(each) for each in ("operation", "type", "name"))
    if operation != "put-token":
        raise _PutError(BAD_REQUEST, "the operation is not put-token")
    if not isinstance(kind, str) or not isinstance(name, str) or not 0 < len(name) <= NAME:
        raise _PutError(BAD_REQUEST, "type or name is missing, no string, or too long")
    if _is_too_long(message.message_id) or _is_too_long(message.correlation_id):
        raise _PutError(BAD_REQUEST, "the id of the message is too long")
    token = message.body
    if isinstance(token, bytes):  # some clients send it as data
        token = token.decode("ascii", "replace")
    if not isinstance(token, str) or isinstance(token, Symbol):
        raise _PutError(BAD_REQUEST, "the body is no token")
    assert context.tokens is not None, "a listener with cbs needs issuers or keys"
    try:
        identity = context.tokens.judge_put(kind, token)
        put(context, record, identity.until(_expiration(properties.get("expiration"))))
    except LookupError:
        raise _PutError(BAD_REQUEST, "the type of token is not known") from None
    except NotYetError as error:
        raise _PutError(UNAVAILABLE, str(error)) from None
    except TokenError as error:
        raise _PutError(UNAUTHORIZED, str(error)) from None


def _expiration(value: object) -> float | None:
    """Return the time at which a request wants its token to expire, seconds since 1970; None: as the token says."""
    return value / 1000 if isinstance(value, Timestamp) else None
