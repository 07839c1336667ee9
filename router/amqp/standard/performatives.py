"""Performatives: the nine frame bodies of AMQP (§2.7)."""

from dataclasses import fields
from functools import lru_cache
from typing import Final, TypeAlias

from amqpmesh.router.amqp.codec.composite import Registry, composite, decode_composite, encode_composite
from amqpmesh.router.amqp.codec.decoder import MALFORMED, Buffer, malformed
from amqpmesh.router.amqp.codec.field_types import Boolean, LazyMap, Multiple, String, UInt, ULong, UShort
from amqpmesh.router.amqp.codec.types import Extension, Symbol
from amqpmesh.router.amqp.codec.value_limits import abridged, behind, exceeds
from amqpmesh.router.amqp.standard.definitions import (
    DeliveryNumber,
    DeliveryTag,
    Error,
    Fields,
    Handle,
    IetfLanguageTag,
    MessageFormat,
    Milliseconds,
    ReceiverSettleMode,
    Role,
    SenderSettleMode,
    SequenceNo,
    TransferNumber,
)
from amqpmesh.router.amqp.standard.messaging import DeliveryState, Source, Target
from amqpmesh.router.amqp.standard.transactions import Coordinator


@composite("amqp:open:list", 0x10)
class Open:
    """Connection parameters (§2.7.1)."""

    container_id: String
    hostname: String | None = None
    max_frame_size: UInt = 4294967295
    channel_max: UShort = 65535
    idle_time_out: Milliseconds | None = None
    outgoing_locales: Multiple[IetfLanguageTag] = ()
    incoming_locales: Multiple[IetfLanguageTag] = ()
    offered_capabilities: Multiple[Symbol] = ()
    desired_capabilities: Multiple[Symbol] = ()
    properties: Fields | None = None


@composite("amqp:begin:list", 0x11)
class Begin:
    """A session has begun on the channel (§2.7.2)."""

    remote_channel: UShort | None = None
    next_outgoing_id: TransferNumber
    incoming_window: UInt
    outgoing_window: UInt
    handle_max: Handle = 4294967295
    offered_capabilities: Multiple[Symbol] = ()
    desired_capabilities: Multiple[Symbol] = ()
    properties: Fields | None = None


@composite("amqp:attach:list", 0x12)
class Attach:
    """A link endpoint has been attached to the session (§2.7.3)."""

    name: String
    handle: Handle
    role: Role
    snd_settle_mode: SenderSettleMode = SenderSettleMode.MIXED
    rcv_settle_mode: ReceiverSettleMode = ReceiverSettleMode.FIRST
    source: Source | Extension | None = None
    target: Target | Coordinator | Extension | None = None
    unsettled: LazyMap[DeliveryTag, DeliveryState | None] | None = None
    incomplete_unsettled: Boolean = False
    initial_delivery_count: SequenceNo | None = None
    max_message_size: ULong | None = None
    offered_capabilities: Multiple[Symbol] = ()
    desired_capabilities: Multiple[Symbol] = ()
    properties: Fields | None = None


@composite("amqp:flow:list", 0x13)
class Flow:
    """The state of a session's windows, and of a link's credit if a handle is set (§2.7.4)."""

    next_incoming_id: TransferNumber | None = None
    incoming_window: UInt
    next_outgoing_id: TransferNumber
    outgoing_window: UInt
    handle: Handle | None = None
    delivery_count: SequenceNo | None = None
    link_credit: UInt | None = None
    available: UInt | None = None
    drain: Boolean = False
    echo: Boolean = False
    properties: Fields | None = None


@composite("amqp:transfer:list", 0x14)
class Transfer:
    """Part of a delivery, sent on a link (§2.7.5)."""

    handle: Handle
    delivery_id: DeliveryNumber | None = None
    delivery_tag: DeliveryTag | None = None
    message_format: MessageFormat | None = None
    settled: Boolean | None = None
    more: Boolean = False
    rcv_settle_mode: ReceiverSettleMode | None = None
    state: DeliveryState | None = None
    resume: Boolean = False
    aborted: Boolean = False
    batchable: Boolean = False


@composite("amqp:disposition:list", 0x15)
class Disposition:
    """Deliveries have changed their state (§2.7.6)."""

    role: Role
    first: DeliveryNumber
    last: DeliveryNumber | None = None
    settled: Boolean = False
    state: DeliveryState | None = None
    batchable: Boolean = False


@composite("amqp:detach:list", 0x16)
class Detach:
    """A link endpoint has been detached from the session (§2.7.7)."""

    handle: Handle
    closed: Boolean = False
    error: Error | None = None


@composite("amqp:end:list", 0x17)
class End:
    """The session has ended (§2.7.8)."""

    error: Error | None = None


@composite("amqp:close:list", 0x18)
class Close:
    """The connection is closed (§2.7.9)."""

    error: Error | None = None


Performative: TypeAlias = Open | Begin | Attach | Flow | Transfer | Disposition | Detach | End | Close

_PERFORMATIVES: Registry[Performative] = Registry(Open, Begin, Attach, Flow, Transfer, Disposition, Detach, End, Close)

# Azure's pure-Python stack indexes past short lists, so these performatives are written in full.
_WRITTEN_IN_FULL = frozenset({Open, Begin, Attach, Flow})

#: The octets that an `attach` may begin with (§1.3.3); `_UNSETTLED`: the number of the field of its unsettled map.
_ATTACHES: Final = (
    b"\x00\x53\x12",
    b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x12",
    b"\x00\xa3\x10amqp:attach:list",
    b"\x00\xb3\x00\x00\x00\x10amqp:attach:list",
)
#: Octets of a `detach`, `end` or `close` without an error, of a `begin` without capabilities.
SHORT: Final = 40
#: The descriptors' codes of those.
OFTEN_SHORT: Final = frozenset({0x11, 0x16, 0x17, 0x18})
_UNSETTLED: Final = [field.name for field in fields(Attach)].index("unsettled")


def decode_performative(data: Buffer, offset: int = 0) -> tuple[Performative, int]:
    """Decode the performative of a frame body. Returns: the performative, and the offset of the payload.

    Raises: ProtocolError(CONNECTION, decode-error or invalid-field): as `decode_composite`.
    """
    return decode_composite(_PERFORMATIVES, data, offset)


@lru_cache(maxsize=256)
def decode_short(body: bytes) -> tuple[Performative, int]:
    """Decode as `decode_performative`, and remember the result: it is frozen.

    Args: body: of `SHORT` octets at most, so that what is remembered is small; without a map, which is not frozen.
        Peers end their links, sessions and connections with the same few bodies.
    """
    return decode_performative(body)


@lru_cache(maxsize=256)
def encoded_detach(handle: int, closed: bool) -> bytes:
    """Return the body of a `detach` without an error (§2.7.7)."""
    return encode_performative(Detach(handle=handle, closed=closed))


def is_overfull(body: bytes, most: int) -> bool:
    """Return whether the performative of a frame body holds more values than `most`.

    Values of an unsettled map do not count: they are decoded on demand. Malformed octets do not count either: the
    decoder refuses them.
    """
    return exceeds(body, most, _UNSETTLED if body.startswith(_ATTACHES) else -1)


def decode_abridged(body: bytes, most: int) -> tuple[Performative, int]:
    """Decode the performative of a frame body without nested values. Returns: it, and the offset of the payload.

    Null replaces each field that holds other values. A delivery state of the standard keeps its simple fields and those
    of its error; a state of an extension is dropped.
    Args: most: if the performative with its state holds more values, the state is dropped, too.
    Raises: ProtocolError(CONNECTION): as `decode_composite`.
    """
    try:
        performative = decode_composite(_PERFORMATIVES, abridged(body))[0]
        if isinstance(performative, Transfer | Disposition) and not is_overfull(
            deep := abridged(body, deep=True), most
        ):
            with_state = decode_composite(_PERFORMATIVES, deep)[0]
            assert isinstance(with_state, Transfer | Disposition)
            if not isinstance(with_state.state, Extension):  # its essential part is unknown
                performative = with_state
        return performative, behind(body, 0)
    except MALFORMED as error:
        raise malformed(error) from error


def encode_performative(performative: Performative, *, compact: bool = False) -> bytes:
    """Encode a performative: open, begin, attach and flow with all fields, the others compact.

    Args: compact: encode every performative compact: the peer is known to read that.
    Raises: CommandError: as `encode_composite`.
    """
    return encode_composite(performative, full=not compact and type(performative) in _WRITTEN_IN_FULL)


def plain_begin(remote_channel: int | None, next_id: int, incoming: int, outgoing: int, handle_max: int) -> Begin:
    """Return a `begin` without capabilities (§2.7.2). Args: next_id: next-outgoing-id. incoming, outgoing: windows."""
    return Begin(
        remote_channel=remote_channel,
        next_outgoing_id=next_id,
        incoming_window=incoming,
        outgoing_window=outgoing,
        handle_max=handle_max,
    )


@lru_cache(maxsize=256)
def encoded_begin(
    remote_channel: int | None, next_id: int, incoming: int, outgoing: int, handle_max: int, compact: bool
) -> bytes:
    """Return the body of a `begin` without capabilities. Args: as of `plain_begin` and `encode_performative`."""
    begin = plain_begin(remote_channel, next_id, incoming, outgoing, handle_max)
    return encode_performative(begin, compact=compact)


#: The body of a `close` without an error.
PLAIN_CLOSE: Final = encode_performative(Close())
