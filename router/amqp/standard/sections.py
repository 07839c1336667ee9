"""An annotated message, split into its sections (§3.2)."""

from collections.abc import Iterable

from amqpmesh.router.amqp.codec.composite import Registry, decode_composite, encode_composite
from amqpmesh.router.amqp.codec.decoder import Buffer
from amqpmesh.router.amqp.standard import messaging
from amqpmesh.router.amqp.standard.messaging import Section

_SECTIONS: Registry[Section] = Registry(
    messaging.Header,
    messaging.DeliveryAnnotations,
    messaging.MessageAnnotations,
    messaging.Properties,
    messaging.ApplicationProperties,
    messaging.Data,
    messaging.AmqpSequence,
    messaging.AmqpValue,
    messaging.Footer,
)


def decode_sections(payload: Buffer) -> list[Section]:
    """Decode the sections of a message of format 0. Their order is kept, and not checked.

    Args: payload: of all transfers of the delivery.
    Raises: ProtocolError(CONNECTION, decode-error or invalid-field): as `decode_composite`.
    """
    sections = []
    offset = 0
    while offset < len(payload):
        section, offset = decode_composite(_SECTIONS, payload, offset)
        sections.append(section)
    return sections


def encode_sections(sections: Iterable[Section]) -> bytes:
    """Encode sections as a payload.

    Raises: CommandError: as `encode_composite`.
    """
    return b"".join([encode_composite(section) for section in sections])
