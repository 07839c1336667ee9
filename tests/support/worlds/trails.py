"""The routers that deliveries visit, read from what routers send to each other."""

from __future__ import annotations

from collections.abc import Iterator
from struct import unpack_from
from typing import Final

from amqpmesh.router.amqp.codec.composite import decode_composite
from amqpmesh.router.amqp.standard.performatives import Transfer

TRANSFER: Final = b"\x00\x53\x14"
KEY: Final = 21
"""Octets of the delivery-tag of what began its way at a router."""


class Trails:
    """The paths of deliveries, by their keys."""

    def __init__(self) -> None:
        self._routers: dict[bytes, list[str]] = {}
        self._hops: dict[bytes, int] = {}
        #: Those that came to a router for the second time.
        self.circles: list[list[str]] = []
        #: How many routers the longest way has.
        self.longest = 0

    def hear(self, sender: str, receiver: str, data: bytes) -> None:
        """Note what one router sends to another."""
        for body in _bodies(data):
            if not body.startswith(TRANSFER):
                continue
            tag = decode_composite(Transfer, body)[0].delivery_tag
            if tag is None or len(tag) != KEY:
                continue
            trail = self._routers.setdefault(tag[:-1], [sender])
            hops = self._hops.setdefault(tag[:-1] + sender.encode(), tag[-1] + 1)
            assert tag[-1] < hops, "each router takes one hop away"
            self._hops[tag[:-1] + receiver.encode()] = tag[-1]
            if receiver in trail:
                self.circles.append([*trail, receiver])
            trail.append(receiver)
            self.longest = max(self.longest, len(trail))


def _bodies(data: bytes) -> Iterator[bytes]:
    """Return the frames in what is sent at once."""
    at = 0
    while at < len(data):
        if data.startswith(b"AMQP", at):
            at += 8
            continue
        size, begins = unpack_from("!IB", data, at)
        yield data[at + 4 * begins : at + size]
        at += size
