"""Which delivery annotations pass: they are meant for the next hop (§3.2.2), and the mesh has some of its own."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

MESH_PREFIX = "x-opt-mesh-"
"""What the keys of the mesh's own annotations begin with."""
IGNORABLE_PREFIX = "x-opt-"
"""What the keys begin with that may be passed over by who does not understand them (§3.2.10)."""

K = TypeVar("K", bound=str | int)
V = TypeVar("V")


class DeliveryAnnotationsRule(StrEnum):
    """What happens to the delivery annotations of an address's messages; the values are the configuration's words."""

    PASS = "pass"  # noqa: S105 - a word of the configuration, no password
    DROP = "drop"


def passes(key: str | int, rule: DeliveryAnnotationsRule, *, within_mesh: bool) -> bool:
    """Whether a delivery annotation goes on.

    Args: key: a symbol, or one of the reserved ulongs (§3.2.10).
        within_mesh: it comes from a neighbour and goes to one. Only there the mesh's own annotations have a meaning:
            from a client they would be a forgery, and to a client a leak.
    """
    if isinstance(key, str) and key.startswith(MESH_PREFIX):
        return within_mesh
    return rule is DeliveryAnnotationsRule.PASS


def passing(annotations: Mapping[K, V], rule: DeliveryAnnotationsRule, *, within_mesh: bool) -> dict[K, V]:
    """The delivery annotations that go on, in their order."""
    return {key: value for key, value in annotations.items() if passes(key, rule, within_mesh=within_mesh)}


def must_be_understood(key: str | int) -> bool:
    """Whether a container that does not understand an annotation may not take it, by the strict reading of §3.2.10."""
    return not (isinstance(key, str) and key.startswith(IGNORABLE_PREFIX))
