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
from amqpmesh.router.statistics import Statistics

__version__ = "0.1.0"

__all__ = [
    "AddressConfig",
    "AmqpMeshError",
    "CommandError",
    "ConfigError",
    "ConnectionClosedError",
    "DeliveryAnnotationsRule",
    "Distribution",
    "Limits",
    "LinkDetachedError",
    "ListenerConfig",
    "LogConfig",
    "Overflow",
    "ProtocolError",
    "Router",
    "RouterConfig",
    "SaslError",
    "SessionEndedError",
    "Statistics",
    "TlsConfig",
    "__version__",
]
