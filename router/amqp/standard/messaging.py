"""Types of part 3: sections, sources and targets."""

from enum import ReprEnum
from typing import TypeAlias

from amqpmesh.router.amqp.codec import types
from amqpmesh.router.amqp.codec.composite import choices, composite, restricted
from amqpmesh.router.amqp.codec.field_types import (
    AnyValue,
    Binary,
    Boolean,
    List,
    Map,
    Multiple,
    SimpleValue,
    String,
    Timestamp,
    UByte,
    UInt,
    ULong,
    Uuid,
)
from amqpmesh.router.amqp.codec.types import Primitive, Symbol
from amqpmesh.router.amqp.standard.definitions import Milliseconds, Seconds, SequenceNo
from amqpmesh.router.amqp.standard.delivery_states import (
    Accepted,
    DeliveryState,
    Modified,
    Outcome,
    Received,
    Rejected,
    Released,
)

__all__ = [
    "MESSAGE_FORMAT",
    "Accepted",
    "Address",
    "AmqpSequence",
    "AmqpValue",
    "Annotations",
    "ApplicationProperties",
    "Data",
    "DeleteOnClose",
    "DeleteOnNoLinks",
    "DeleteOnNoLinksOrMessages",
    "DeleteOnNoMessages",
    "DeliveryAnnotations",
    "DeliveryState",
    "DistributionMode",
    "FilterSet",
    "Footer",
    "Header",
    "LifetimePolicy",
    "MessageAnnotations",
    "MessageId",
    "Modified",
    "NodeProperties",
    "Outcome",
    "Properties",
    "Received",
    "Rejected",
    "Released",
    "Section",
    "Source",
    "Target",
    "TerminusDurability",
    "TerminusExpiryPolicy",
]

MESSAGE_FORMAT = 0
"""The message-format of messages that consist of the sections below (§3.2.16)."""

Annotations: TypeAlias = Map[Symbol | types.ULong, AnyValue]
"""A map whose keys are symbols or ulongs (§3.2.10)."""

MessageId: TypeAlias = ULong | Uuid | Binary | String
"""The types that provide "message-id": an int is a ulong (§3.2.11 to §3.2.14)."""

Address: TypeAlias = String
"""The type that provides "address" (§3.2.15)."""


# §3.2: sections, in their order in a message.


@composite("amqp:header:list", 0x70)
class Header:
    """Transport headers for a message (§3.2.1)."""

    durable: Boolean = False
    priority: UByte = 4
    ttl: Milliseconds | None = None
    first_acquirer: Boolean = False
    delivery_count: UInt = 0


@restricted("amqp:delivery-annotations:map", 0x71)
class DeliveryAnnotations:
    """Annotations for the next node only (§3.2.2)."""

    value: Annotations


@restricted("amqp:message-annotations:map", 0x72)
class MessageAnnotations:
    """Annotations for the infrastructure, which are propagated (§3.2.3)."""

    value: Annotations


@composite("amqp:properties:list", 0x73)
class Properties:
    """Immutable properties of the message (§3.2.4)."""

    message_id: MessageId | None = None
    user_id: Binary | None = None
    to: Address | None = None
    subject: String | None = None
    reply_to: Address | None = None
    correlation_id: MessageId | None = None
    content_type: Symbol | None = None
    content_encoding: Symbol | None = None
    absolute_expiry_time: Timestamp | None = None
    creation_time: Timestamp | None = None
    group_id: String | None = None
    group_sequence: SequenceNo | None = None
    reply_to_group_id: String | None = None


@restricted("amqp:application-properties:map", 0x74)
class ApplicationProperties:
    """The application's own properties (§3.2.5)."""

    value: Map[String, SimpleValue]


@restricted("amqp:data:binary", 0x75)
class Data:
    """A body, or a part of one, of opaque octets (§3.2.6)."""

    value: Binary


@restricted("amqp:amqp-sequence:list", 0x76)
class AmqpSequence:
    """A body, or a part of one, of structured elements (§3.2.7)."""

    value: List


@restricted("amqp:amqp-value:*", 0x77)
class AmqpValue:
    """A body of one value (§3.2.8)."""

    value: AnyValue


@restricted("amqp:footer:map", 0x78)
class Footer:
    """Details that can only be computed after the whole bare message (§3.2.9)."""

    value: Annotations


Section: TypeAlias = (
    Header
    | DeliveryAnnotations
    | MessageAnnotations
    | Properties
    | ApplicationProperties
    | Data
    | AmqpSequence
    | AmqpValue
    | Footer
)


# §3.5: sources and targets.


@choices(Primitive.UINT)
class TerminusDurability(int, ReprEnum):
    """The state of a terminus that is held durably (§3.5.5)."""

    NONE = 0
    CONFIGURATION = 1
    UNSETTLED_STATE = 2


@choices(Primitive.SYMBOL)
class TerminusExpiryPolicy(Symbol, ReprEnum):
    """The event that starts the expiry timer of a terminus (§3.5.6)."""

    LINK_DETACH = "link-detach"
    SESSION_END = "session-end"
    CONNECTION_CLOSE = "connection-close"
    NEVER = "never"


@choices(Primitive.SYMBOL)
class DistributionMode(Symbol, ReprEnum):
    """The treatment of a message that was sent on a link: moved, or copied and left for other links (§3.5.7)."""

    MOVE = "move"
    COPY = "copy"


@composite("amqp:delete-on-close:list", 0x2B)
class DeleteOnClose:
    """A dynamic node is deleted with the link that created it (§3.5.10)."""


@composite("amqp:delete-on-no-links:list", 0x2C)
class DeleteOnNoLinks:
    """A dynamic node is deleted when no link is attached to it (§3.5.11)."""


@composite("amqp:delete-on-no-messages:list", 0x2D)
class DeleteOnNoMessages:
    """A dynamic node is deleted when its link has gone and it has no messages (§3.5.12)."""


@composite("amqp:delete-on-no-links-or-messages:list", 0x2E)
class DeleteOnNoLinksOrMessages:
    """A dynamic node is deleted when it has neither links nor messages (§3.5.13)."""


LifetimePolicy: TypeAlias = DeleteOnClose | DeleteOnNoLinks | DeleteOnNoMessages | DeleteOnNoLinksOrMessages
"""The types that provide "lifetime-policy": the lifetime of a dynamic node."""

NodeProperties: TypeAlias = Map[Symbol, LifetimePolicy | AnyValue]
"""Properties of a dynamic node, its `lifetime-policy` among them (§3.5.9)."""

FilterSet: TypeAlias = Map[Symbol, AnyValue]
"""Filters by name (§3.5.8). A value that is neither null nor described is read, too, but is not applied. The reply to
the attach names the filters that are applied."""


@composite("amqp:source:list", 0x28)
class Source:
    """The origin of the messages of a link (§3.5.3)."""

    address: Address | None = None
    durable: TerminusDurability = TerminusDurability.NONE
    expiry_policy: TerminusExpiryPolicy = TerminusExpiryPolicy.SESSION_END
    timeout: Seconds = 0
    dynamic: Boolean = False
    dynamic_node_properties: NodeProperties | None = None
    #: A preference; modes outside of the standard are ignored (§3.5.3).
    distribution_mode: DistributionMode | Symbol | None = None
    filter: FilterSet | None = None
    default_outcome: Outcome | None = None
    outcomes: Multiple[Symbol] = ()
    capabilities: Multiple[Symbol] = ()


@composite("amqp:target:list", 0x29)
class Target:
    """The destination of the messages of a link (§3.5.4)."""

    address: Address | None = None
    durable: TerminusDurability = TerminusDurability.NONE
    expiry_policy: TerminusExpiryPolicy = TerminusExpiryPolicy.SESSION_END
    timeout: Seconds = 0
    dynamic: Boolean = False
    dynamic_node_properties: NodeProperties | None = None
    capabilities: Multiple[Symbol] = ()
