"""Rules for delivery annotations, which are meant for the next hop (§3.2.2); the mesh has some of its own."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

MESH_PREFIX = "x-opt-mesh-"
"""The prefix of the keys of the mesh's own annotations."""
IGNORABLE_PREFIX = "x-opt-"
"""The prefix of keys that a container may ignore if it does not understand them (§3.2.10)."""

K = TypeVar("K", bound=str | int)
V = TypeVar("V")


class DeliveryAnnotationsRule(StrEnum):
    """Rules for the delivery annotations of an address' messages; the values are words of the configuration."""

    PASS = "pass"  # noqa: S105 - a word of the configuration, no password
    DROP = "drop"


def passes(key: str | int, rule: DeliveryAnnotationsRule, *, within_mesh: bool) -> bool:
    """Tell whether a delivery annotation passes to the next hop.

    Args: key: a symbol, or one of the reserved ulongs (§3.2.10).
        within_mesh: it comes from a neighbour and goes to one. Only there the mesh's own annotations have a meaning:
            from a client they would be a forgery, and to a client a leak.
    """
    if isinstance(key, str) and key.startswith(MESH_PREFIX):
        return within_mesh
    return rule is DeliveryAnnotationsRule.PASS


def passing(annotations: Mapping[K, V], rule: DeliveryAnnotationsRule, *, within_mesh: bool) -> dict[K, V]:
    """Return the delivery annotations that pass to the next hop, in their order."""
    return {key: value for key, value in annotations.items() if passes(key, rule, within_mesh=within_mesh)}


def must_be_understood(key: str | int) -> bool:
    """Tell whether a container must understand this annotation, by the strict reading of §3.2.10."""
    return not (isinstance(key, str) and key.startswith(IGNORABLE_PREFIX))
