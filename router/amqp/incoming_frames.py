"""Frames of the peer: read, and passed to the endpoint that they concern (§2.3, §2.4, §2.7)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from amqpmesh.router import kernel
from amqpmesh.router.amqp.alike_attaches import decode_alike
from amqpmesh.router.amqp.connection_settings import OURS, PRODUCT
from amqpmesh.router.amqp.errors import ProtocolError, Scope, decode_error, framing_error, invalid_field
from amqpmesh.router.amqp.events import HELD_BACK, RELAYED, DeliveriesGathered, Event
from amqpmesh.router.amqp.frames import MIN_MAX_FRAME_SIZE
from amqpmesh.router.amqp.hot_frames import disposition_frame, names_all_fields, transfer_frame
from amqpmesh.router.amqp.link import Receiver
from amqpmesh.router.amqp.session import Session
from amqpmesh.router.amqp.standard.conditions import AmqpCondition, endpoint_condition
from amqpmesh.router.amqp.standard.definitions import Error
from amqpmesh.router.amqp.standard.performatives import (
    OFTEN_SHORT,
    SHORT,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Transfer,
    decode_abridged,
    decode_performative,
    decode_short,
    is_overfull,
)
from amqpmesh.router.amqp.states import CLOSING, ConnectionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from amqpmesh.router.amqp.connection import Connection

# Descriptor codes (§2.7).
_OPEN: Final = 0x10
_ATTACH: Final = 0x12
_TRANSFER: Final = 0x14
_DISPOSITION: Final = 0x15
_CLOSE: Final = 0x18

_OPENED: Final = ConnectionState.OPENED
_OF_LINKS: Final = (Attach, Detach, Flow)


def kernel_events(flow_state: kernel.KernelConnection) -> Iterator[Event]:
    """Yield events for the frames that the kernel has read but could not handle alone.

    The last one is `RELAYED` if other connections should get a turn.
    """
    batch = flow_state.batch
    if batch is not None and batch.deliveries:
        link = batch.deliveries[0].link.record
        assert isinstance(link, Receiver)
        gathered = DeliveriesGathered(link, batch.deliveries, batch.payloads)
        batch.deliveries, batch.payloads = [], []
        yield gathered
    router = flow_state.router
    if router is not None and any(
        held.link.session.wire is flow_state for pool in router.held_back for held in pool.held or ()
    ):
        yield HELD_BACK
    pending, flow_state.pending_disposition = flow_state.pending_disposition, None
    if pending is not None:
        session = pending.session.owner
        assert isinstance(session, Session)
        yield from session.decide(pending)
    if flow_state.work <= 0:
        yield RELAYED


def receive_frame(connection: Connection, frame: kernel.Frame) -> Iterable[Event]:
    """Read an AMQP frame of the peer, and pass it to the connection or to its session.

    Errors of a session or of a link are answered. Raises: ProtocolError, Violation: an error of the connection.
    """
    body = frame.body
    if connection.state in CLOSING:
        return _receive_while_closing(connection, body)
    channel = frame.channel
    if channel > connection.channels.incoming_max:
        raise framing_error(f"channel {channel} is above the channel-max")
    if not body:
        if connection.remote is None:
            raise _illegal_state("an empty frame before open (§2.4.5)")
        return ()
    # The two frames that carry the traffic are read by the kernel, if they have the usual shape.
    if connection.state is _OPENED and len(body) > 3 and body[1] == 0x53:
        code = body[2]
        if code == _TRANSFER:
            skimmed = kernel.skim_transfer(body, 0, len(body))
            if skimmed is not None:
                return _receive_transfer(connection, channel, skimmed[0], body[skimmed[1] :])
        elif code == _DISPOSITION:
            disposition = kernel.skim_disposition(body, 0, len(body))
            if disposition is not None:
                return _session(connection, channel).receive_disposition(disposition)
        elif code == _ATTACH and len(body) <= connection.settings.max_values:
            alike = decode_alike(body)
            if alike is not None:
                attach, others = alike
                session = _session(connection, channel)
                try:
                    return session.receive_attach(attach, others)
                except ProtocolError as error:
                    return _fail_session(session, error)
        elif (
            code in OFTEN_SHORT
            and len(body) <= SHORT
            and len(body) <= connection.settings.max_values
            and not (0xC1 in body or 0xD1 in body)  # a map, perhaps, which its owner may change
        ):
            performative, end = decode_short(body)
            if end == len(body):
                return _receive_performative(connection, channel, performative, b"")
    max_values = connection.settings.max_values
    if len(body) > max_values and is_overfull(body, max_values):  # each value has at least one octet
        abridged, payload_at = decode_abridged(body, max_values)
        return _receive_overfull(connection, channel, abridged, body[payload_at:])
    performative, payload_at = decode_performative(body)
    if isinstance(performative, Open):
        # Our own `open` names all fields, too; our endpoints read any frame.
        is_ours = (performative.properties or {}).get(PRODUCT) == OURS
        connection.flow_state.compact = is_ours
        connection.in_full = names_all_fields(body) and not is_ours
    if payload_at != len(body) and not isinstance(performative, Transfer):
        raise decode_error(f"bytes behind a {_label(performative)}")
    return _receive_performative(connection, channel, performative, body[payload_at:])


def _receive_performative(
    connection: Connection, channel: int, performative: Performative, payload: bytes
) -> Iterable[Event]:
    """Pass a decoded performative to the connection or to its session."""
    if not isinstance(performative, _OF_LINKS):  # else it is the most usual
        if isinstance(performative, Open):
            _check_open(connection, channel, performative)
            return connection.receive_open(performative)
        if connection.remote is None:
            raise _illegal_state(f"{_label(performative)} before open")
        if isinstance(performative, Close):
            return connection.receive_close(performative)
        if isinstance(performative, Begin):
            return connection.receive_begin(performative, channel)
        if isinstance(performative, Transfer):
            return _receive_transfer(connection, channel, transfer_frame(performative), payload)
        if isinstance(performative, Disposition):
            return _session(connection, channel).receive_disposition(disposition_frame(performative))
    session = _session(connection, channel)
    try:
        return session.receive(performative)
    except ProtocolError as error:
        return _fail_session(session, error)


def _check_open(connection: Connection, channel: int, remote: Open) -> None:
    """Check the peer's `open` (§2.7.1). Raises: ProtocolError(CONNECTION): it cannot be accepted."""
    if connection.remote is not None:
        raise _illegal_state("a second open")
    if channel != 0:
        raise ProtocolError(Scope.CONNECTION, AmqpCondition.NOT_ALLOWED, "open on a channel other than 0")
    if remote.max_frame_size < MIN_MAX_FRAME_SIZE:
        raise invalid_field("max-frame-size below 512")
    idle_time_out_ms = remote.idle_time_out or 0
    least_ms = connection.settings.minimum_idle_time_out * 1000
    if 0 < idle_time_out_ms < least_ms:
        raise ProtocolError(
            Scope.CONNECTION,
            AmqpCondition.NOT_ALLOWED,
            f"idle-time-out of {idle_time_out_ms} ms is not supported: {least_ms:g} ms is",
        )


def _receive_overfull(
    connection: Connection, channel: int, performative: Performative, payload: bytes
) -> Iterable[Event]:
    """Refuse a frame that holds more values than the settings allow, at the lowest level that is possible.

    A frame that begins an endpoint is refused. A frame that ends an endpoint ends it. A `transfer` or `disposition`
    is handled without the delivery state, or with the part of it that is within the limit.
    Args: performative: without the values beyond the limit.
    Raises: ProtocolError(CONNECTION, resource-limit-exceeded): no lower level is concerned.
    """
    error = Error(
        condition=AmqpCondition.RESOURCE_LIMIT_EXCEEDED,
        description=f"{_label(performative)} with more than {connection.settings.max_values} values",
    )
    if isinstance(performative, Detach | End | Close):
        return _receive_performative(connection, channel, replace(performative, error=error), b"")
    if connection.remote is None or isinstance(performative, Open):
        raise ProtocolError(Scope.CONNECTION, error.condition, error.description or "")
    if isinstance(performative, Transfer | Disposition):
        return _receive_performative(connection, channel, performative, payload)
    if isinstance(performative, Begin):
        connection.receive_begin(performative, channel)
    session = _session(connection, channel)
    if not isinstance(performative, Attach):
        return session.fail(error)
    try:
        return session.refuse(performative, error)
    except ProtocolError as refusal:
        return _fail_session(session, refusal)


def _receive_transfer(
    connection: Connection, channel: int, frame: kernel.TransferFrame, payload: bytes
) -> tuple[Event, ...]:
    """Pass a `transfer` to its session, and answer an error of the session."""
    session = _session(connection, channel)
    try:
        return session.receive_transfer(frame, payload)
    except ProtocolError as error:
        return _fail_session(session, error)
    except kernel.Violation as violation:
        return session.fail(Error(condition=endpoint_condition(violation.condition), description=violation.description))


def _receive_while_closing(connection: Connection, body: bytes) -> tuple[Event, ...]:
    """Pass on the peer's `open` and `close`, and ignore all other frames: our `close` is sent (§2.4.6, DISCARDING)."""
    if len(body) < 3 or (body[1] == 0x53 and body[2] not in (_OPEN, _CLOSE)):
        return ()
    max_values = connection.settings.max_values
    try:
        overfull = is_overfull(body, max_values)
        performative = (decode_abridged(body, max_values) if overfull else decode_performative(body))[0]
    except ProtocolError:
        return ()
    if isinstance(performative, Close):
        return connection.receive_close(performative)
    if isinstance(performative, Open):
        return connection.receive_open(performative)
    return ()


def _session(connection: Connection, channel: int) -> Session:
    """Return the session on a channel of the peer's. Raises: ProtocolError: there is none."""
    if connection.remote is None:
        raise _illegal_state("a frame before open")
    session = connection.channels.incoming.get(channel)
    if session is None:
        raise _illegal_state(f"no session on channel {channel}")
    return session


def _fail_session(session: Session, error: ProtocolError) -> tuple[Event, ...]:
    """End a session for an error of the peer's on it. Raises: the error, if it is one of the connection."""
    if error.scope is Scope.CONNECTION:
        raise error
    return session.fail(Error(condition=error.condition, description=error.description, info=error.info))


def _illegal_state(description: str) -> ProtocolError:
    return ProtocolError(Scope.CONNECTION, AmqpCondition.ILLEGAL_STATE, description)


def _label(performative: Performative) -> str:
    return type(performative).__name__.lower()
