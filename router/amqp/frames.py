"""Protocol headers, and the octets of frames (§2.2, §2.3)."""

from functools import lru_cache
from typing import Final

#: Octets of a frame that every peer takes; the limit of all frames before `open` (§2.4.1).
MIN_MAX_FRAME_SIZE: Final = 512

AMQP_FRAME: Final = 0x00
SASL_FRAME: Final = 0x01

#: Octets of a protocol header, and of a frame header without extension.
HEADER_SIZE: Final = 8

#: A frame without body: traffic against an idle time-out (§2.4.5).
EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"


@lru_cache(maxsize=256)
def protocol_header(protocol_id: int) -> bytes:
    """Return the protocol header of version 1.0.0: id 0 is AMQP, 2 TLS, 3 SASL (§2.2, §5.2, §5.3)."""
    return b"AMQP" + bytes((protocol_id, 1, 0, 0))
