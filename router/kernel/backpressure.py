"""Back-pressure: a connection's next frame waits until another connection's output is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.fast_route import _FIRST, _fits, _is_free, _is_full
from amqpmesh.router.kernel.router_state import _BESIDE

if TYPE_CHECKING:
    from amqpmesh.router.kernel.connection_endpoint import KernelConnection
    from amqpmesh.router.kernel.fast_route import FastRoute
    from amqpmesh.router.kernel.router_state import KernelRouter

#: Octets. A payload of fewer is small, and copied on its way, as a view of it costs more.
SMALL: Final = 4096
_COPIED: Final = SMALL
#: Seconds that what comes on a connection waits for an output at most, and octets a second that make up for waiting: so
#: a MiB that is read with much before it waits no longer than 30 ms.
PATIENCE: Final = 0.02
PACE: Final = 1e8
_PATIENCE: Final = PATIENCE
_PACE: Final = PACE
#: Seconds for which nobody waits for an output that has taken longer.
IMPATIENCE: Final = 1.0


def _goes_to(router: KernelRouter, wire: KernelConnection, sink: KernelConnection) -> None:
    """Something large that comes on a connection leaves by this output."""
    if wire.toward != sink.number:
        wire.toward = sink.number
        wire.toward_since = router.now


def _wait_for_output(router: KernelRouter, wire: KernelConnection, sink: KernelConnection, is_full: bool) -> None:
    """Leave the next frame of a connection unread until output of another connection is written, if that is harmless.

    Both transports must support waiting (`patient`). Then it is harmless as long as no write of the output was tried.
    Otherwise all later frames of the connection wait, too. So all its large traffic has to leave by that output, no
    small message came for 100 ms, and that output was not slow lately.

    Args: is_full: too much output waits there. Else a window is too narrow, and the frame that widens it comes after
        the waiting ones if both are on one connection.
    """
    if (wire.patient and sink.patient) and (
        (is_full and sink.out and not sink.sending)
        or (
            (is_full or sink is not wire)
            and wire.toward == sink.number
            and router.now >= sink.slow_until
            and router.now - max(wire.toward_since, router.small_at) >= _BESIDE
        )
    ):
        wire.waits_for = sink


def _wait_for_route(router: KernelRouter, wire: KernelConnection, route: FastRoute, octets: int) -> None:
    """As `_wait_for_output`, of the first exit that takes the next delivery once more can be written.

    Args: octets: of a large one, in its first frame; 0: it is small.
    """
    for link in route.bulk if octets and route.order == _FIRST else route.links:
        is_full = _is_full(link)
        if _is_free(link) and (is_full or not _fits(link, octets)):
            _wait_for_output(router, wire, link.session.wire, is_full)
            break


def _limit_wait(router: KernelRouter, wire: KernelConnection) -> None:
    """Count the time that the next frame of a connection waits, and end the wait once all waits took too long.

    Other frames wait behind it, so neither a chatty peer nor many short waits may prolong that.
    """
    sink = wire.waits_for
    assert sink is not None
    if wire.waits_since < 0:
        wire.waits_since = router.now
    if wire.waited + router.now - wire.waits_since >= _PATIENCE:
        sink.slow_until = router.now + IMPATIENCE
        wire.waits_for = None
        wire.waited = 0.0
