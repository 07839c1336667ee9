"""Types of part 4 (§4.5), except its delivery states (`delivery_states.py`)."""

from enum import ReprEnum
from typing import TypeAlias

from amqpmesh.router.amqp.codec.composite import choices, composite
from amqpmesh.router.amqp.codec.field_types import AnyValue, Boolean, Multiple
from amqpmesh.router.amqp.codec.types import Primitive, Symbol
from amqpmesh.router.amqp.standard.delivery_states import Declared, TransactionalState, TransactionId

__all__ = [
    "Coordinator",
    "Declare",
    "Declared",
    "Discharge",
    "GlobalTransactionId",
    "TransactionCapability",
    "TransactionId",
    "TransactionalState",
]

GlobalTransactionId: TypeAlias = AnyValue
"""The types that provide "global-tx-id": the standard has none yet."""


@choices(Primitive.SYMBOL)
class TransactionCapability(Symbol, ReprEnum):
    """A capability of a coordinator (§4.5.7)."""

    LOCAL_TRANSACTIONS = "amqp:local-transactions"
    DISTRIBUTED_TRANSACTIONS = "amqp:distributed-transactions"
    PROMOTABLE_TRANSACTIONS = "amqp:promotable-transactions"
    MULTI_TXNS_PER_SSN = "amqp:multi-txns-per-ssn"
    MULTI_SSNS_PER_TXN = "amqp:multi-ssns-per-txn"


@composite("amqp:coordinator:list", 0x30)
class Coordinator:
    """The target of a link to a transaction coordinator (§4.5.1)."""

    # Symbols, like other capabilities: the archetype "txn-capability" is open.
    capabilities: Multiple[Symbol] = ()


@composite("amqp:declare:list", 0x31)
class Declare:
    """The body of a message that declares a transaction (§4.5.2)."""

    global_id: GlobalTransactionId | None = None


@composite("amqp:discharge:list", 0x32)
class Discharge:
    """The body of a message that discharges a transaction (§4.5.3)."""

    txn_id: TransactionId
    fail: Boolean | None = None
