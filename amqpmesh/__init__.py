"""amqpmesh: a brokerless AMQP 1.0 router.

Every public name is imported from here; the rooms (`amqpmesh.router`, `amqpmesh.policies`, ...) are where they live.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
