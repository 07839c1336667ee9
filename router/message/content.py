"""A message as a program writes and reads it, and its sections on the wire (§3.2).

The body of a `Message` is a plain Python value: octets, text, or any AMQP value. This table, which holds in both
directions, assigns body sections to Python values:

| body in Python | on the wire (§3.2) |
|---|---|
| `bytes` (on sending also `bytearray`, `memoryview`) | one data section |
| `str`, `int`, `dict`, `list`, `None`, ...: any AMQP value but `bytes` | one amqp-value section of that value |
| `AmqpValue(value=...)` | one amqp-value section; read as such where it holds binary |
| `AmqpSequence(value=[...])` | one amqp-sequence section |
| a tuple of `Data`, or a tuple of `AmqpSequence` | several such sections |

Within a value each AMQP type has one Python type: `None bool str bytes uuid.UUID list dict`, `int` for long, `float`
for double, and a class of its own for each other type (`UInt`, `ULong`, `Symbol`, `Timestamp`, ...). So a value that is
read and sent again keeps its type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import MISSING, Field, dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol, ULong
from amqpmesh.router.amqp.codec.value_limits import MAX_VALUES, refuse_values
from amqpmesh.router.amqp.errors import CommandError, decode_error, shown
from amqpmesh.router.amqp.standard.messaging import (
    AmqpSequence,
    AmqpValue,
    ApplicationProperties,
    Data,
    DeliveryAnnotations,
    Footer,
    Header,
    MessageAnnotations,
    Properties,
    Section,
)
from amqpmesh.router.amqp.standard.sections import decode_sections, encode_sections

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from amqpmesh.router.amqp.codec.decoder import Buffer
    from amqpmesh.router.amqp.codec.types import Timestamp, Value

_BODIES: Final = (Data, AmqpSequence, AmqpValue)
#: The order of sections in a message; body sections share a place (§3.2).
_ORDER: Final = {
    Header: 0,
    DeliveryAnnotations: 1,
    MessageAnnotations: 2,
    Properties: 3,
    ApplicationProperties: 4,
    Data: 5,
    AmqpSequence: 5,
    AmqpValue: 5,
    Footer: 6,
}
#: Body sections that may come several times, one after the other.
_REPEATED: Final = (Data, AmqpSequence)
_UINT_MAX: Final = 2**32 - 1


@dataclass(slots=True, repr=False)
class Message:
    """A message: a body, and its header, properties and annotations. Fields that are not set are not sent.

    Args:
        body: see the table of this module.
        durable, priority (0 to 255), first_acquirer, delivery_count: of the header (§3.2.1).
        ttl: the lifetime in seconds, from the time of sending; milliseconds on the wire.
        message_id, correlation_id: a str, bytes, a UUID, or an int for a ulong (§3.2.11 to §3.2.14).
        user_id, to, subject, reply_to, content_type, content_encoding, absolute_expiry_time, creation_time, group_id,
            group_sequence, reply_to_group_id: other properties (§3.2.4); times are milliseconds since 1970.
        application_properties: by name (§3.2.5).
        message_annotations, delivery_annotations, footer: for the infrastructure (§3.2.2, §3.2.3, §3.2.9); a key that
            is a str is sent as a symbol.
    """

    body: Any = None
    durable: bool = field(default=False, kw_only=True)
    priority: int = field(default=4, kw_only=True)
    ttl: float | None = field(default=None, kw_only=True)
    first_acquirer: bool = field(default=False, kw_only=True)
    delivery_count: int = field(default=0, kw_only=True)
    message_id: str | bytes | int | UUID | None = field(default=None, kw_only=True)
    user_id: bytes | None = field(default=None, kw_only=True)
    to: str | None = field(default=None, kw_only=True)
    subject: str | None = field(default=None, kw_only=True)
    reply_to: str | None = field(default=None, kw_only=True)
    correlation_id: str | bytes | int | UUID | None = field(default=None, kw_only=True)
    content_type: str | None = field(default=None, kw_only=True)
    content_encoding: str | None = field(default=None, kw_only=True)
    absolute_expiry_time: Timestamp | int | None = field(default=None, kw_only=True)
    creation_time: Timestamp | int | None = field(default=None, kw_only=True)
    group_id: str | None = field(default=None, kw_only=True)
    group_sequence: int | None = field(default=None, kw_only=True)
    reply_to_group_id: str | None = field(default=None, kw_only=True)
    application_properties: dict[str, Any] = field(default_factory=dict, kw_only=True)
    message_annotations: dict[Any, Any] = field(default_factory=dict, kw_only=True)
    delivery_annotations: dict[Any, Any] = field(default_factory=dict, kw_only=True)
    footer: dict[Any, Any] = field(default_factory=dict, kw_only=True)

    def __repr__(self) -> str:
        """Return the fields that are set, and the kind and the size of the body, but not its content."""
        said = [
            f"{item.name}={_field_text(value)}"
            for item in fields(self)[1:]
            if (value := getattr(self, item.name)) != _default(item)
        ]
        return f"<Message {' '.join([_body_text(self.body), *said])}>"

    def encode(self) -> bytes:
        """Encode the message as a payload of message-format 0.

        Raises: CommandError: AMQP has no such value, or the field does not permit it. The text names the field.
        """
        body = _body_sections(self.body)
        if self.content_encoding is not None:
            _check_encoding(self.content_encoding, body)
        return encode_sections([*self._head(), *body, *self._foot()])

    @classmethod
    def decode(cls, payload: Buffer, *, max_values: int = MAX_VALUES) -> Message:
        """Decode a payload of message-format 0.

        Args: max_values: the most values that it may hold, counting each element of a list, map or array; 0: no limit.
        Raises: ProtocolError(decode-error, invalid-field): it is no message. ProtocolError(resource-limit-exceeded): it
            holds more values; nothing was decoded.
        """
        refuse_values(payload, max_values)
        return cls.of_sections(decode_sections(payload))

    @classmethod
    def of_sections(cls, sections: Sequence[Section]) -> Message:
        """Make a message of sections. Raises: ProtocolError: their order is illegal (§3.2)."""
        message = cls()
        bodies: list[Data | AmqpSequence | AmqpValue] = []
        place, last = -1, None
        for section in sections:
            kind = type(section)
            before, place = place, _ORDER[kind]
            if place <= before and not (kind is last and kind in _REPEATED):
                raise decode_error(f"{kind.__name__} after {'' if last is None else last.__name__}")
            last = kind
            if isinstance(section, _BODIES):
                bodies.append(section)
            elif isinstance(section, Header):
                message.durable = section.durable
                message.priority = int(section.priority)
                message.ttl = None if section.ttl is None else section.ttl / 1000
                message.first_acquirer = section.first_acquirer
                message.delivery_count = int(section.delivery_count)
            elif isinstance(section, Properties):
                for name, value in zip(_PROPERTIES, _values_of(section), strict=True):
                    if value is not None:
                        setattr(message, name, value)
            elif isinstance(section, ApplicationProperties):
                message.application_properties = dict(section.value)
            elif isinstance(section, MessageAnnotations):
                message.message_annotations = {**section.value}
            elif isinstance(section, DeliveryAnnotations):
                message.delivery_annotations = {**section.value}
            elif isinstance(section, Footer):
                message.footer = {**section.value}
        message.body = _body(bodies)
        return message

    def _head(self) -> Iterator[Section]:
        ttl = None
        if self.ttl is not None:
            if not (isinstance(self.ttl, int | float) and 0 <= self.ttl <= _UINT_MAX / 1000):
                raise CommandError(f"ttl is seconds, 0 to {_UINT_MAX // 1000}, not {self.ttl!r}")
            ttl = round(self.ttl * 1000)
        if self.durable or ttl is not None or self.first_acquirer or self.delivery_count or self.priority != 4:
            yield Header(
                durable=self.durable,
                priority=self.priority,
                ttl=ttl,
                first_acquirer=self.first_acquirer,
                delivery_count=self.delivery_count,
            )
        if self.delivery_annotations:
            yield DeliveryAnnotations(value=_by_symbol("delivery_annotations", self.delivery_annotations))
        if self.message_annotations:
            yield MessageAnnotations(value=_by_symbol("message_annotations", self.message_annotations))
        properties = {
            name: value for name, value in zip(_PROPERTIES, _values_of(self), strict=True) if value is not None
        }
        if properties:
            yield Properties(**properties)
        if self.application_properties:
            yield ApplicationProperties(value=self.application_properties)

    def _foot(self) -> Iterator[Section]:
        if self.footer:
            yield Footer(value=_by_symbol("footer", self.footer))


_PROPERTIES: Final = (
    "message_id",
    "user_id",
    "to",
    "subject",
    "reply_to",
    "correlation_id",
    "content_type",
    "content_encoding",
    "absolute_expiry_time",
    "creation_time",
    "group_id",
    "group_sequence",
    "reply_to_group_id",
)
_values_of: Final = attrgetter(*_PROPERTIES)


def encode_message(message: Message | Value) -> bytes:
    """Encode a message, or a body as a message without other fields. Raises: CommandError: as `Message.encode`."""
    if isinstance(message, Message):
        return message.encode()
    if isinstance(message, bytes):
        return encode_composite(Data(value=message))
    return Message(message).encode()


def encode_head(message: Message) -> bytes:
    """Encode the sections before the body, for a message whose body is sent in parts.

    Raises: CommandError: it is no message, or has a body; and as `Message.encode`.
    """
    if not isinstance(message, Message):
        raise CommandError(f"the head of a message in parts is a Message, not {type(message).__name__}")
    if message.body is not None:
        raise CommandError("the message has a body, so it cannot be sent in parts")
    if message.content_encoding is not None:
        _check_encoding(message.content_encoding, ())
    return encode_sections(message._head())


def encode_foot(message: Message) -> bytes:
    """Encode the section behind the body, if there is one. Raises: CommandError: as `Message.encode`."""
    return encode_sections(message._foot())


def _field_text(value: object) -> str:
    """Return a field as text for people; a map as its keys."""
    return shown(list(value) if isinstance(value, dict) else value)


def _body_text(body: object) -> str:
    kind = type(body).__name__
    return f"{kind}[{len(body)}]" if isinstance(body, Sized) else kind


def _default(item: Field[Any]) -> Any:
    return item.default_factory() if item.default_factory is not MISSING else item.default


def _by_symbol(field_name: str, annotations: Mapping[Any, Any]) -> dict[Symbol | ULong, Any]:
    """Return annotations with symbols as keys. Raises: CommandError: a key is no symbol and no ulong (§3.2.10)."""
    if not isinstance(annotations, Mapping):
        raise CommandError(f"{field_name}: {shown(annotations)} is no map")
    keyed: dict[Symbol | ULong, Any] = {}
    for key, value in annotations.items():
        if isinstance(key, ULong):
            keyed[key] = value
        elif isinstance(key, str) and key.isascii():
            keyed[Symbol(key)] = value
        else:
            raise CommandError(f"{field_name}: {shown(key)} is no symbol, which is ASCII, and no ulong")
    return keyed


def _body_sections(body: Any) -> Sequence[Section]:
    if isinstance(body, bytes):
        return (Data(value=body),)
    if isinstance(body, bytearray | memoryview):
        return (Data(value=bytes(body)),)
    if isinstance(body, _BODIES):
        return (body,)
    if isinstance(body, tuple):
        kinds = {type(part) for part in body}
        if kinds not in ({Data}, {AmqpSequence}):
            raise CommandError("a tuple as body holds sections: all Data, or all AmqpSequence; a list is a value")
        return body
    return (AmqpValue(value=body),)


def _check_encoding(content_encoding: str, body: Sequence[Section]) -> None:
    """Check a content-encoding. Raises: CommandError: it is not permitted for this body (§3.2.4)."""
    if content_encoding == "identity":
        raise CommandError("content_encoding identity is not written: leave it out")
    if not all(isinstance(section, Data) for section in body):
        raise CommandError("content_encoding is for a body of octets: other values are encoded by AMQP itself")


def _body(sections: Sequence[Data | AmqpSequence | AmqpValue]) -> Any:
    if not sections:
        # The standard requires a body; some peers leave out an empty one.
        return None
    first = sections[0]
    if len(sections) > 1:
        return tuple(sections)
    if isinstance(first, Data):
        return first.value
    if isinstance(first, AmqpValue) and not isinstance(first.value, bytes):
        return first.value
    return first
