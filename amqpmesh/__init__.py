"""amqpmesh: a brokerless AMQP 1.0 router.

Every public name is imported from here; the rooms (`amqpmesh.router`, `amqpmesh.policies`, ...) are where they live.
Each room is read when a name of it is first asked for, so that the command line is there at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqpmesh.policies.annotations import DeliveryAnnotationsRule
    from amqpmesh.policies.distribution import Distribution
    from amqpmesh.router.amqp.codec.types import (
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
    from amqpmesh.router.amqp.standard.definitions import Error, ReceiverSettleMode, SenderSettleMode
    from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Rejected, Released
    from amqpmesh.router.amqp.standard.messaging import AmqpSequence, AmqpValue, Data, Source, Target
    from amqpmesh.router.client.connect import Connection, connect
    from amqpmesh.router.client.delivery import Delivery
    from amqpmesh.router.client.links.incoming import DeliveryAbortedError
    from amqpmesh.router.client.receiver import Receiver
    from amqpmesh.router.client.requester import Requester
    from amqpmesh.router.client.sender import Sender
    from amqpmesh.router.client.sent import Sent
    from amqpmesh.router.config.differences import Difference
    from amqpmesh.router.config.file import (
        AddressConfig,
        ConnectorConfig,
        ConnectorTlsConfig,
        ElsewhereConfig,
        HttpConfig,
        Limits,
        LinkConfig,
        ListenerConfig,
        LogConfig,
        MeshConfig,
        Overflow,
        PasswordConfig,
        PlaceConfig,
        PolicyConfig,
        RedirectConfig,
        RouterConfig,
        TlsConfig,
        TokenIssuerConfig,
        TokenKeyConfig,
        TokensConfig,
        Watch,
        WebSocketConfig,
    )
    from amqpmesh.router.config.tables import Effect
    from amqpmesh.router.config.user_checks import Login, UserIdentity
    from amqpmesh.router.io.dialing import Backoff
    from amqpmesh.router.message.content import Message
    from amqpmesh.router.message.outcomes import ModifiedError, Outcome, OutcomeError, RejectedError, ReleasedError
    from amqpmesh.router.runtime.applying import Applied
    from amqpmesh.router.runtime.reload import UserChange
    from amqpmesh.router.runtime.router import Router
    from amqpmesh.router.statistics.common import ConnectionDirection, Direction, Outcomes, Reason
    from amqpmesh.router.statistics.configured import (
        ConnectorState,
        ConnectorStatistics,
        ContainerLinkState,
        ContainerLinkStatistics,
        ListenerStatistics,
        PolicyStatistics,
        TableStatistics,
        UserStatistics,
    )
    from amqpmesh.router.statistics.mesh_statistics import (
        AdvertStatistics,
        DisagreementStatistics,
        LaneStatistics,
        MeshStatistics,
        NeighbourStatistics,
        RouteStatistics,
    )
    from amqpmesh.router.statistics.router_statistics import (
        AddressStatistics,
        ConnectionStatistics,
        LimitStatistics,
        LinkStatistics,
        NodeStatistics,
        RateStatistics,
        RouterStatistics,
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
    "Applied",
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
    "Difference",
    "Direction",
    "DisagreementStatistics",
    "Distribution",
    "Effect",
    "ElsewhereConfig",
    "Error",
    "Float",
    "HttpConfig",
    "InDoubtError",
    "Int",
    "LaneStatistics",
    "LimitStatistics",
    "Limits",
    "LinkConfig",
    "LinkDetachedError",
    "LinkRedirectError",
    "LinkStatistics",
    "LinkStolenError",
    "ListenerConfig",
    "ListenerStatistics",
    "LogConfig",
    "Login",
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
    "PolicyConfig",
    "PolicyStatistics",
    "Primitive",
    "ProtocolError",
    "RateStatistics",
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
    "TableStatistics",
    "Target",
    "Timestamp",
    "TlsConfig",
    "TokenIssuerConfig",
    "TokenKeyConfig",
    "TokensConfig",
    "UByte",
    "UInt",
    "ULong",
    "UShort",
    "UserChange",
    "UserIdentity",
    "UserStatistics",
    "Watch",
    "WebSocketConfig",
    "__version__",
    "connect",
]

if not TYPE_CHECKING:  # a type checker that saw `__getattr__` would believe in every name
    _HOMES = {
        name: module
        for module, names in {
            "amqpmesh.policies.annotations": ("DeliveryAnnotationsRule",),
            "amqpmesh.policies.distribution": ("Distribution",),
            "amqpmesh.router.amqp.standard.definitions": ("Error", "ReceiverSettleMode", "SenderSettleMode"),
            "amqpmesh.router.amqp.standard.delivery_states": ("Accepted", "Modified", "Rejected", "Released"),
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
            "amqpmesh.router.amqp.standard.messaging": ("AmqpSequence", "AmqpValue", "Data", "Source", "Target"),
            "amqpmesh.router.amqp.codec.types": (
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
            "amqpmesh.router.config.differences": ("Difference",),
            "amqpmesh.router.config.file": (
                "AddressConfig",
                "ConnectorConfig",
                "ConnectorTlsConfig",
                "ElsewhereConfig",
                "HttpConfig",
                "Limits",
                "LinkConfig",
                "ListenerConfig",
                "LogConfig",
                "MeshConfig",
                "Overflow",
                "PasswordConfig",
                "PlaceConfig",
                "PolicyConfig",
                "RedirectConfig",
                "RouterConfig",
                "TlsConfig",
                "TokenIssuerConfig",
                "TokenKeyConfig",
                "TokensConfig",
                "Watch",
                "WebSocketConfig",
            ),
            "amqpmesh.router.config.tables": ("Effect",),
            "amqpmesh.router.config.user_checks": ("Login", "UserIdentity"),
            "amqpmesh.router.io.dialing": ("Backoff",),
            "amqpmesh.router.client.connect": ("Connection", "connect"),
            "amqpmesh.router.client.delivery": ("Delivery",),
            "amqpmesh.router.client.links.incoming": ("DeliveryAbortedError",),
            "amqpmesh.router.client.receiver": ("Receiver",),
            "amqpmesh.router.client.requester": ("Requester",),
            "amqpmesh.router.client.sender": ("Sender",),
            "amqpmesh.router.client.sent": ("Sent",),
            "amqpmesh.router.runtime.applying": ("Applied",),
            "amqpmesh.router.runtime.reload": ("UserChange",),
            "amqpmesh.router.runtime.router": ("Router",),
            "amqpmesh.router.message.content": ("Message",),
            "amqpmesh.router.message.outcomes": (
                "ModifiedError",
                "Outcome",
                "OutcomeError",
                "RejectedError",
                "ReleasedError",
            ),
            "amqpmesh.router.statistics.common": (
                "ConnectionDirection",
                "Direction",
                "Outcomes",
                "Reason",
            ),
            "amqpmesh.router.statistics.configured": (
                "ConnectorState",
                "ConnectorStatistics",
                "ContainerLinkState",
                "ContainerLinkStatistics",
                "ListenerStatistics",
                "PolicyStatistics",
                "TableStatistics",
                "UserStatistics",
            ),
            "amqpmesh.router.statistics.mesh_statistics": (
                "AdvertStatistics",
                "DisagreementStatistics",
                "LaneStatistics",
                "MeshStatistics",
                "NeighbourStatistics",
                "RouteStatistics",
            ),
            "amqpmesh.router.statistics.router_statistics": (
                "AddressStatistics",
                "ConnectionStatistics",
                "LimitStatistics",
                "LinkStatistics",
                "NodeStatistics",
                "RateStatistics",
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
