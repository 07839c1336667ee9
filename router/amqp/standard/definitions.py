"""Roles, modes, numbers and the error, declared (§2.8)."""

from enum import Enum, IntEnum
from typing import Annotated, Final, TypeAlias

from amqpmesh.router.amqp.codec.composite import choices, composite
from amqpmesh.router.amqp.codec.field_types import AnyValue, Map, MaxOctets, String
from amqpmesh.router.amqp.codec.types import Primitive, Symbol
from amqpmesh.router.amqp.standard.conditions import (
    AmqpCondition,
    ConnectionCondition,
    LinkCondition,
    SessionCondition,
    TransactionCondition,
)
from amqpmesh.router.amqp.states import Alone

__all__ = [
    "MIN_MAX_FRAME_SIZE",
    "PORT",
    "SECURE_PORT",
    "AmqpCondition",
    "ConnectionCondition",
    "DeliveryNumber",
    "DeliveryTag",
    "Error",
    "Fields",
    "Handle",
    "IetfLanguageTag",
    "LinkCondition",
    "MessageFormat",
    "Milliseconds",
    "ReceiverSettleMode",
    "Role",
    "Seconds",
    "SenderSettleMode",
    "SequenceNo",
    "SessionCondition",
    "TransactionCondition",
    "TransferNumber",
]

PORT = 5672
"""The port of amqp (§2.8.19)."""

SECURE_PORT = 5671
"""The port of amqps (§2.8.19)."""

MIN_MAX_FRAME_SIZE = 512
"""The smallest max-frame-size, and the largest frame before one is agreed: octets (§2.8.19)."""


@choices(Primitive.BOOLEAN)
class Role(Alone, Enum):
    """An end of a link (§2.8.1). As in the standard, a receiver is true."""

    SENDER = False
    RECEIVER = True

    def __bool__(self) -> bool:
        return self.value


#: The member, as of `states.direct`.
SENDER: Final = Role.SENDER


@choices(Primitive.UBYTE)
class SenderSettleMode(IntEnum):
    """The settlement policy of a sender (§2.8.2)."""

    UNSETTLED = 0
    SETTLED = 1
    MIXED = 2


@choices(Primitive.UBYTE)
class ReceiverSettleMode(IntEnum):
    """The settlement policy of a receiver (§2.8.3)."""

    FIRST = 0
    SECOND = 1


Handle: TypeAlias = Annotated[int, Primitive.UINT]
"""The number of a link in its session (§2.8.4)."""

Seconds: TypeAlias = Annotated[int, Primitive.UINT]
"""§2.8.5."""

Milliseconds: TypeAlias = Annotated[int, Primitive.UINT]
"""§2.8.6."""

DeliveryTag: TypeAlias = Annotated[bytes, Primitive.BINARY, MaxOctets(32)]
"""Up to 32 octets (§2.8.7)."""

SequenceNo: TypeAlias = Annotated[int, Primitive.UINT]
"""A serial number of RFC 1982, 0 to 2**32 - 1 (§2.8.10)."""

DeliveryNumber: TypeAlias = SequenceNo
"""§2.8.8."""

TransferNumber: TypeAlias = SequenceNo
"""§2.8.9."""

MessageFormat: TypeAlias = Annotated[int, Primitive.UINT]
"""Three octets of format, one octet of version (§2.8.11)."""

IetfLanguageTag: TypeAlias = Symbol
"""BCP 47 (§2.8.12)."""

Fields: TypeAlias = Map[Symbol, AnyValue]
"""A map whose keys are symbols (§2.8.13)."""


@composite("amqp:error:list", 0x1D)
class Error:
    """Details of an error (§2.8.14)."""

    condition: Symbol
    description: String | None = None
    info: Fields | None = None
