"""Messages on transit lanes: their final addresses, in a delivery annotation that is put in and taken out again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.encoded_values import _DELIVERY_ANNOTATIONS, _HEADER, uint32

if TYPE_CHECKING:
    from amqpmesh.router.kernel.fast_route import FastRoute


#: The exchange of a message that its sender has settled: where its transit lane begins, it leaves unsettled, so that
#: the last router can tell that it waits there; where the lane ends, it leaves settled, and is accepted.
TRACKED: Final = 1
HANDED_ON: Final = 2
_TRACKED: Final = TRACKED
_HANDED_ON: Final = HANDED_ON


class TransitRoute:
    """The route of an address at another router: the route of a transit lane, and the final address.

    Args: route: of the lane. address: the final address. annotations: the delivery-annotations section with it.
        settled_annotations: the same for messages that come settled.
    """

    __slots__ = ("address", "annotations", "octets", "route", "settled_annotations")

    def __init__(self, route: FastRoute, address: str, annotations: bytes, settled_annotations: bytes) -> None:
        self.route = route
        self.address = address
        self.octets = address.encode()
        self.annotations = annotations
        self.settled_annotations = settled_annotations


class SettledRoute:
    """The route of an address at the end of a transit lane, for messages that their senders have settled."""

    __slots__ = ("route",)

    def __init__(self, route: FastRoute) -> None:
        self.route = route


def _with_annotations(data: bytes, at: int, bare_at: int, end: int, annotations: bytes) -> bytes | None:
    """Return a payload with a section of delivery annotations; None: it has one.

    Args: at, end: of the payload in `data`. bare_at: the bare message; the head sections before it are regular.
    """
    if _annotations_at(data, at, bare_at) >= 0:
        return None
    split = _after_header(data, at, bare_at)
    return data[at:split] + annotations + data[split:end]


def _annotations_at(data: bytes, at: int, bare_at: int) -> int:
    """Return the begin of the delivery annotations; -1: there are none. Args: as of `_with_annotations`."""
    at = _after_header(data, at, bare_at)
    return at if at < bare_at and data[at + 2] == _DELIVERY_ANNOTATIONS else -1


def _after_header(data: bytes, at: int, bare_at: int) -> int:
    """Return the end of the header; `at`: there is none. Args: as of `_with_annotations`."""
    return _section_end(data, at) if at < bare_at and data[at + 2] == _HEADER else at


def _section_end(data: bytes, at: int) -> int:
    """Return the end of the head section at `at`, which is regular."""
    form = data[at + 3]
    if form == 0x45:
        return at + 4
    return at + 5 + data[at + 4] if form == 0xC0 or form == 0xC1 else at + 8 + uint32(data, at + 4)
