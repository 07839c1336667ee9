"""Delivery states and outcomes (§3.4; in transactions §4.5.5 and §4.5.6).

They are in one module because parts 3 and 4 of the standard refer to each other: a transactional state of part 4 holds
an outcome of part 3, and part 4's states are permitted wherever part 3's are.
"""

from typing import Annotated, Final, TypeAlias

from amqpmesh.router.amqp.codec.composite import Registry, composite
from amqpmesh.router.amqp.codec.field_types import Boolean, MaxOctets, UInt, ULong
from amqpmesh.router.amqp.codec.types import Extension, Primitive
from amqpmesh.router.amqp.standard.definitions import Error, Fields

TransactionId: TypeAlias = Annotated[bytes, Primitive.BINARY, MaxOctets(32)]
"""Up to 32 octets (§4.5.4)."""

OUTCOMES: Final = frozenset({"amqp:accepted:list", "amqp:rejected:list", "amqp:released:list", "amqp:modified:list"})
"""The symbols by which a source names its outcomes (§3.5.3)."""


@composite("amqp:received:list", 0x23)
class Received:
    """The progress of a partly received message; no outcome (§3.4.1)."""

    section_number: UInt
    section_offset: ULong


@composite("amqp:accepted:list", 0x24)
class Accepted:
    """The message was processed (§3.4.2)."""


@composite("amqp:rejected:list", 0x25)
class Rejected:
    """The message is invalid and cannot be processed (§3.4.3)."""

    error: Error | None = None


@composite("amqp:released:list", 0x26)
class Released:
    """The message was not and will not be processed (§3.4.4)."""


@composite("amqp:modified:list", 0x27)
class Modified:
    """The message was not processed, and is to be changed (§3.4.5)."""

    delivery_failed: Boolean | None = None
    undeliverable_here: Boolean | None = None
    message_annotations: Fields | None = None


@composite("amqp:declared:list", 0x33)
class Declared:
    """A transaction was declared: the outcome of a `Declare` (§4.5.5)."""

    txn_id: TransactionId


Outcome: TypeAlias = Accepted | Rejected | Released | Modified | Declared | Extension
"""The types that provide "outcome": terminal states. Extensions may define others."""


@composite("amqp:transactional-state:list", 0x34)
class TransactionalState:
    """A delivery is part of a transaction, its outcome provisional (§4.5.6)."""

    txn_id: TransactionId
    outcome: Outcome | None = None


DeliveryState: TypeAlias = (
    Received | Accepted | Rejected | Released | Modified | Declared | TransactionalState | Extension
)
"""The types that provide "delivery-state". Extensions may define others, and peers send them (§2.7.5, §2.7.6)."""

STATES: Registry[DeliveryState] = Registry(
    Received, Accepted, Rejected, Released, Modified, Declared, TransactionalState, Extension
)
"""The registry to decode a delivery state with."""
