"""Delivery keys: the delivery-tags of lanes."""

from __future__ import annotations

from typing import Final

#: Octets of the delivery key in a lane's delivery-tag. One more octet follows: the hops that are left.
_KEY: Final = 20

#: The octets of a key before its age: the number of the ingress router.
_NUMBER: Final = 8

#: All octets, as bytes of length one.
_OCTETS: Final = tuple(bytes((octet,)) for octet in range(256))


def onward(tag: bytes) -> bytes:
    """Return the tag on the next lane for a lane's `tag`, with one hop less; empty: no hops are left."""
    last = len(tag) - 1
    if last < 0 or tag[last] < 2:
        return b""
    return tag[:last] + _OCTETS[tag[last] - 1]


def age(tag: bytes) -> bytes:
    """Return the part of a tag that orders the deliveries of one ingress router: a later delivery has a larger one."""
    return tag[_NUMBER:_KEY]
