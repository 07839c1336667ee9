"""Back-pressure: a connection's next frame waits until another connection's output is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.fast_route import _FIRST, _fits, _is_free, _is_full
from amqpmesh.router.kernel.router_state import _BESIDE

if TYPE_CHECKING:
    from amqpmesh.router.kernel.connection_endpoint import KernelConnection
    from amqpmesh.router.kernel.fast_route import FastRoute
    from amqpmesh.router.kernel.router_state import KernelRouter

#: Octets. A payload of fewer is small, and is copied: a view of it costs more.
SMALL: Final = 4096
_COPIED: Final = SMALL
#: The most seconds that the input of a connection waits for an output. Octets that are read make up for waits, `PACE`
#: of them for a second: so a MiB of input waits for 30 ms at most.
PATIENCE: Final = 0.02
PACE: Final = 1e8
_PATIENCE: Final = PATIENCE
_PACE: Final = PACE
#: Seconds for which no input waits for an output that took longer than `PATIENCE`.
IMPATIENCE: Final = 1.0


def _goes_to(router: KernelRouter, wire: KernelConnection, sink: KernelConnection) -> None:
    """Note that a large delivery from a connection leaves by this output."""
    if wire.toward != sink.number:
        wire.toward = sink.number
        wire.toward_since = router.now


def _wait_for_output(router: KernelRouter, wire: KernelConnection, sink: KernelConnection, is_full: bool) -> None:
    """Leave the next frame of a connection unread until the output of another connection is written.

    All later frames of the connection wait, too. So both transports must support waiting (`patient`), and one of these
    must hold:

    - The output is full, and no write of it was tried yet: the next write may make room at once.
    - All large deliveries of the connection have left by this output for 100 ms, no small message has come to the
      router meanwhile, and the output was not slow recently.

    Args: is_full: too much output waits. If false, a session's window is too narrow. Then the connections must differ:
        on the same one, the frame that widens the window would come behind the waiting frames.
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
    """Wait, as `_wait_for_output` does, for the first link of a route that needs only more room for output.

    Args: octets: of the first frame of a large delivery; 0: the delivery is small.
    """
    for link in route.bulk if octets and route.order == _FIRST else route.links:
        is_full = _is_full(link)
        if _is_free(link) and (is_full or not _fits(link, octets)):
            _wait_for_output(router, wire, link.session.wire, is_full)
            break


def _limit_wait(router: KernelRouter, wire: KernelConnection) -> None:
    """Count the time that the next frame of a connection waits, and end the wait when the waits add up to too much.

    Other frames wait behind it, so many short waits count like one long wait.
    """
    sink = wire.waits_for
    assert sink is not None
    if wire.waits_since < 0:
        wire.waits_since = router.now
    if wire.waited + router.now - wire.waits_since >= _PATIENCE:
        sink.slow_until = router.now + IMPATIENCE
        wire.waits_for = None
        wire.waited = 0.0
