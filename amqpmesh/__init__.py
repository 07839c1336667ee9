"""amqpmesh: a brokerless AMQP 1.0 router.

Every public name is imported from here; the rooms (`amqpmesh.router`, `amqpmesh.policies`, ...) are where they live.
"""

from amqpmesh.policies.annotations import DeliveryAnnotationsRule
from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.errors import (
    AmqpMeshError,
    CommandError,
    ConfigError,
    ConnectionClosedError,
    LinkDetachedError,
    ProtocolError,
    SaslError,
    SessionEndedError,
)
from amqpmesh.router.config import (
    AddressConfig,
    Limits,
    ListenerConfig,
    LogConfig,
    Overflow,
    RouterConfig,
    TlsConfig,
)
from amqpmesh.router.io.node import Router
from amqpmesh.router.reasons import Reason
from amqpmesh.router.statistics import (
    AddressStatistics,
    ConnectionStatistics,
    Direction,
    LinkStatistics,
    ListenerStatistics,
    NodeStatistics,
    Outcomes,
    RouterStatistics,
    Statistics,
)

__version__ = "0.1.0"

__all__ = [
    "AddressConfig",
    "AddressStatistics",
    "AmqpMeshError",
    "CommandError",
    "ConfigError",
    "ConnectionClosedError",
    "ConnectionStatistics",
    "DeliveryAnnotationsRule",
    "Direction",
    "Distribution",
    "Limits",
    "LinkDetachedError",
    "LinkStatistics",
    "ListenerConfig",
    "ListenerStatistics",
    "LogConfig",
    "NodeStatistics",
    "Outcomes",
    "Overflow",
    "ProtocolError",
    "Reason",
    "Router",
    "RouterConfig",
    "RouterStatistics",
    "SaslError",
    "SessionEndedError",
    "Statistics",
    "TlsConfig",
    "__version__",
]
