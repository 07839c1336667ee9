"""Part 4's types, declared (§4.5). Its delivery states are with the others."""

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
"""What provides "global-tx-id": nothing in the standard does yet."""


@choices(Primitive.SYMBOL)
class TransactionCapability(Symbol, ReprEnum):
    """What a coordinator can do (§4.5.7)."""

    LOCAL_TRANSACTIONS = "amqp:local-transactions"
    DISTRIBUTED_TRANSACTIONS = "amqp:distributed-transactions"
    PROMOTABLE_TRANSACTIONS = "amqp:promotable-transactions"
    MULTI_TXNS_PER_SSN = "amqp:multi-txns-per-ssn"
    MULTI_SSNS_PER_TXN = "amqp:multi-ssns-per-txn"


@composite("amqp:coordinator:list", 0x30)
class Coordinator:
    """The target of a link to a transaction coordinator (§4.5.1)."""

    # Symbols, as other capabilities are: the archetype "txn-capability" is open.
    capabilities: Multiple[Symbol] = ()


@composite("amqp:declare:list", 0x31)
class Declare:
    """The body of a message that asks for a transaction (§4.5.2)."""

    global_id: GlobalTransactionId | None = None


@composite("amqp:discharge:list", 0x32)
class Discharge:
    """The body of a message that ends a transaction (§4.5.3)."""

    txn_id: TransactionId
    fail: Boolean | None = None
