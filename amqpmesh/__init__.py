"""amqpmesh: a brokerless AMQP 1.0 router.

Every public name is imported from here; the rooms (`amqpmesh.router`, `amqpmesh.policies`, ...) are where they live.
Each room is read when a name of it is first asked for, so that the command line is there at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqpmesh.policies.annotations import DeliveryAnnotationsRule
    from amqpmesh.policies.distribution import Distribution
    from amqpmesh.router.amqp.definitions import Error, ReceiverSettleMode, SenderSettleMode
    from amqpmesh.router.amqp.delivery_states import Accepted, Modified, Rejected, Released
    from amqpmesh.router.amqp.errors import (
        AmqpMeshError,
        CommandError,
        ConfigError,
        ConnectionClosedError,
        ConnectionRedirectError,
        InDoubtError,
        LinkDetachedError,
        LinkRedirectError,
        LinkStolenError,
        ProtocolError,
        SaslError,
        SessionEndedError,
    )
    from amqpmesh.router.amqp.messaging import AmqpSequence, AmqpValue, Data, Source, Target
    from amqpmesh.router.amqp.types import (
        Array,
        Byte,
        Char,
        Decimal32,
        Decimal64,
        Decimal128,
        Described,
        Float,
        Int,
        Long,
        Primitive,
        Short,
        Symbol,
        Timestamp,
        UByte,
        UInt,
        ULong,
        UShort,
    )
    from amqpmesh.router.config import (
        AddressConfig,
        ConnectorConfig,
        ConnectorTlsConfig,
        ElsewhereConfig,
        Limits,
        LinkConfig,
        ListenerConfig,
        LogConfig,
        MeshConfig,
        Overflow,
        PasswordConfig,
        PlaceConfig,
        RedirectConfig,
        RouterConfig,
        TlsConfig,
    )
    from amqpmesh.router.io.client.backoff import Backoff
    from amqpmesh.router.io.client.connection import Connection, connect
    from amqpmesh.router.io.client.delivery import Delivery, DeliveryAbortedError
    from amqpmesh.router.io.client.receiver import Receiver
    from amqpmesh.router.io.client.requester import Requester
    from amqpmesh.router.io.client.sender import Sender
    from amqpmesh.router.io.client.sent import Sent
    from amqpmesh.router.io.node import Router
    from amqpmesh.router.message import Message
    from amqpmesh.router.outcomes import ModifiedError, Outcome, OutcomeError, RejectedError, ReleasedError
    from amqpmesh.router.reasons import Reason
    from amqpmesh.router.statistics import (
        AddressStatistics,
        AdvertStatistics,
        ConnectionDirection,
        ConnectionStatistics,
        ConnectorState,
        ConnectorStatistics,
        ContainerLinkState,
        ContainerLinkStatistics,
        Direction,
        LaneStatistics,
        LinkStatistics,
        ListenerStatistics,
        MeshStatistics,
        NeighbourStatistics,
        NodeStatistics,
        Outcomes,
        RouterStatistics,
        RouteStatistics,
        Statistics,
    )

__version__ = "0.1.0"

__all__ = [
    "Accepted",
    "AddressConfig",
    "AddressStatistics",
    "AdvertStatistics",
    "AmqpMeshError",
    "AmqpSequence",
    "AmqpValue",
    "Array",
    "Backoff",
    "Byte",
    "Char",
    "CommandError",
    "ConfigError",
    "Connection",
    "ConnectionClosedError",
    "ConnectionDirection",
    "ConnectionRedirectError",
    "ConnectionStatistics",
    "ConnectorConfig",
    "ConnectorState",
    "ConnectorStatistics",
    "ConnectorTlsConfig",
    "ContainerLinkState",
    "ContainerLinkStatistics",
    "Data",
    "Decimal32",
    "Decimal64",
    "Decimal128",
    "Delivery",
    "DeliveryAbortedError",
    "DeliveryAnnotationsRule",
    "Described",
    "Direction",
    "Distribution",
    "ElsewhereConfig",
    "Error",
    "Float",
    "InDoubtError",
    "Int",
    "LaneStatistics",
    "Limits",
    "LinkConfig",
    "LinkDetachedError",
    "LinkRedirectError",
    "LinkStatistics",
    "LinkStolenError",
    "ListenerConfig",
    "ListenerStatistics",
    "LogConfig",
    "Long",
    "MeshConfig",
    "MeshStatistics",
    "Message",
    "Modified",
    "ModifiedError",
    "NeighbourStatistics",
    "NodeStatistics",
    "Outcome",
    "OutcomeError",
    "Outcomes",
    "Overflow",
    "PasswordConfig",
    "PlaceConfig",
    "Primitive",
    "ProtocolError",
    "Reason",
    "Receiver",
    "ReceiverSettleMode",
    "RedirectConfig",
    "Rejected",
    "RejectedError",
    "Released",
    "ReleasedError",
    "Requester",
    "RouteStatistics",
    "Router",
    "RouterConfig",
    "RouterStatistics",
    "SaslError",
    "Sender",
    "SenderSettleMode",
    "Sent",
    "SessionEndedError",
    "Short",
    "Source",
    "Statistics",
    "Symbol",
    "Target",
    "Timestamp",
    "TlsConfig",
    "UByte",
    "UInt",
    "ULong",
    "UShort",
    "__version__",
    "connect",
]

if not TYPE_CHECKING:  # a type checker that saw `__getattr__` would believe in every name
    _HOMES = {
        name: module
        for module, names in {
            "amqpmesh.policies.annotations": ("DeliveryAnnotationsRule",),
            "amqpmesh.policies.distribution": ("Distribution",),
            "amqpmesh.router.amqp.definitions": ("Error", "ReceiverSettleMode", "SenderSettleMode"),
            "amqpmesh.router.amqp.delivery_states": ("Accepted", "Modified", "Rejected", "Released"),
            "amqpmesh.router.amqp.errors": (
                "AmqpMeshError",
                "CommandError",
                "ConfigError",
                "ConnectionClosedError",
                "ConnectionRedirectError",
                "InDoubtError",
                "LinkDetachedError",
                "LinkRedirectError",
                "LinkStolenError",
                "ProtocolError",
                "SaslError",
                "SessionEndedError",
            ),
            "amqpmesh.router.amqp.messaging": ("AmqpSequence", "AmqpValue", "Data", "Source", "Target"),
            "amqpmesh.router.amqp.types": (
                "Array",
                "Byte",
                "Char",
                "Decimal32",
                "Decimal64",
                "Decimal128",
                "Described",
                "Float",
                "Int",
                "Long",
                "Primitive",
                "Short",
                "Symbol",
                "Timestamp",
                "UByte",
                "UInt",
                "ULong",
                "UShort",
            ),
            "amqpmesh.router.config": (
                "AddressConfig",
                "ConnectorConfig",
                "ConnectorTlsConfig",
                "ElsewhereConfig",
                "Limits",
                "LinkConfig",
                "ListenerConfig",
                "LogConfig",
                "MeshConfig",
                "Overflow",
                "PasswordConfig",
                "PlaceConfig",
                "RedirectConfig",
                "RouterConfig",
                "TlsConfig",
            ),
            "amqpmesh.router.io.client.backoff": ("Backoff",),
            "amqpmesh.router.io.client.connection": ("Connection", "connect"),
            "amqpmesh.router.io.client.delivery": ("Delivery", "DeliveryAbortedError"),
            "amqpmesh.router.io.client.receiver": ("Receiver",),
            "amqpmesh.router.io.client.requester": ("Requester",),
            "amqpmesh.router.io.client.sender": ("Sender",),
            "amqpmesh.router.io.client.sent": ("Sent",),
            "amqpmesh.router.io.node": ("Router",),
            "amqpmesh.router.message": ("Message",),
            "amqpmesh.router.outcomes": ("ModifiedError", "Outcome", "OutcomeError", "RejectedError", "ReleasedError"),
            "amqpmesh.router.reasons": ("Reason",),
            "amqpmesh.router.statistics": (
                "AddressStatistics",
                "AdvertStatistics",
                "ConnectionDirection",
                "ConnectionStatistics",
                "ConnectorState",
                "ConnectorStatistics",
                "ContainerLinkState",
                "ContainerLinkStatistics",
                "Direction",
                "LaneStatistics",
                "LinkStatistics",
                "ListenerStatistics",
                "MeshStatistics",
                "NeighbourStatistics",
                "NodeStatistics",
                "Outcomes",
                "RouteStatistics",
                "RouterStatistics",
                "Statistics",
            ),
        }.items()
        for name in names
    }

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
