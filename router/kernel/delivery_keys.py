"""Delivery keys: the delivery-tags of lanes."""

from __future__ import annotations

from typing import Final

#: Octets of the delivery key in a lane's delivery-tag, which one more follows: hops left.
_KEY: Final = 20

#: Each octet as bytes.
_OCTETS: Final = tuple(bytes((octet,)) for octet in range(256))


def onward(tag: bytes) -> bytes:
    """The tag for the next lane of what came by a lane with this one, which has hops left; empty: it has none."""
    last = len(tag) - 1
    if last < 0 or tag[last] < 2:
        return b""
    return tag[:last] + _OCTETS[tag[last] - 1]
