"""Values <-> bytes: every encoding read, the most compact written, hostile bytes bounded (§1.2)."""

from typing import Any, TypeAlias

from amqpmesh.router.amqp.codec import decoder, encoder
from amqpmesh.router.amqp.codec.decoder import Buffer
from amqpmesh.router.amqp.codec.encoder import MAX_ARRAY_OF_NOTHING, MAX_DEPTH
from amqpmesh.router.amqp.errors import CommandError, decode_error

__all__ = ["MAX_ARRAY_OF_NOTHING", "MAX_DEPTH", "Buffer", "Decoded", "decode", "decode_exactly", "encode"]

Decoded: TypeAlias = Any
"""A `types.Value`. Decoding cannot say which: look with isinstance or match."""


def encode(value: object) -> bytes:
    """The most compact encoding of a value.

    Args: value: a `types.Value`, or a composite; a map's or list's constituents likewise.
    Raises: CommandError: it has no AMQP type, is out of its type's range, or nests deeper than `MAX_DEPTH`; or it holds
        an array of more than `MAX_ARRAY_OF_NOTHING` nulls.
    """
    try:
        return encoder.write_value(value, 0)
    except encoder.REFUSALS as error:
        raise CommandError(f"cannot be encoded: {error}") from error


def decode(data: Buffer, offset: int = 0) -> tuple[Decoded, int]:
    """The value that begins at an offset, and the offset behind it. The value shares no memory with the data.

    Raises: ProtocolError(CONNECTION, decode-error): the data is not a legal encoding, or ends too early; nests deeper
        than `MAX_DEPTH`; or holds an array of more than `MAX_ARRAY_OF_NOTHING` elements that take no octets.
    """
    try:
        return decoder.READERS[data[offset]](data, offset + 1, 0)
    except decoder.MALFORMED as error:
        raise decoder.malformed(error) from error


def decode_exactly(data: Buffer) -> Decoded:
    """The value that the data holds, all of it.

    Raises: ProtocolError(CONNECTION, decode-error): as `decode`, and if anything follows the value.
    """
    value, end = decode(data)
    if end != len(data):
        raise decode_error(f"{len(data) - end} octets follow the value")
    return value
