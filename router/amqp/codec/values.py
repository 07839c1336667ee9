"""Encoding and decoding of values: every encoding is read, the most compact is written (§1.2)."""

from typing import Any, TypeAlias

from amqpmesh.router.amqp.codec import decoder, encoder
from amqpmesh.router.amqp.codec.decoder import Buffer
from amqpmesh.router.amqp.codec.encoder import MAX_ARRAY_OF_NOTHING, MAX_DEPTH
from amqpmesh.router.amqp.errors import CommandError, decode_error

__all__ = ["MAX_ARRAY_OF_NOTHING", "MAX_DEPTH", "Buffer", "Decoded", "decode", "decode_exactly", "encode"]

Decoded: TypeAlias = Any
"""A `types.Value`. Its class is known only at run time: use isinstance or match."""


def encode(value: object) -> bytes:
    """Encode a value as compactly as possible.

    Args: value: a `types.Value` or a composite; lists and maps may hold both.
    Raises: CommandError: it has no AMQP type, is out of its type's range, nests deeper than `MAX_DEPTH`, or holds an
        array of more than `MAX_ARRAY_OF_NOTHING` nulls.
    """
    try:
        return encoder.write_value(value, 0)
    except encoder.REFUSALS as error:
        raise CommandError(f"cannot be encoded: {error}") from error


def decode(data: Buffer, offset: int = 0) -> tuple[Decoded, int]:
    """Decode the value that begins at an offset. Returns: the value, and the offset behind it.

    The value shares no memory with the data.

    Raises: ProtocolError(CONNECTION, decode-error): the data is not a legal encoding, or ends too early; nests deeper
        than `MAX_DEPTH`; or holds an array of more than `MAX_ARRAY_OF_NOTHING` elements that take no octets.
    """
    try:
        return decoder.READERS[data[offset]](data, offset + 1, 0)
    except decoder.MALFORMED as error:
        raise decoder.malformed(error) from error


def decode_exactly(data: Buffer) -> Decoded:
    """Decode the one value that fills the data.

    Raises: ProtocolError(CONNECTION, decode-error): as `decode`, and if octets follow the value.
    """
    value, end = decode(data)
    if end != len(data):
        raise decode_error(f"{len(data) - end} octets follow the value")
    return value
