"""Back-pressure: a connection's next frame waits until another connection takes more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.fast_route import _ALL, _FIRST, _fits, _is_free, _is_full, _ready_link
from amqpmesh.router.kernel.router_state import _BESIDE

if TYPE_CHECKING:
    from amqpmesh.router.kernel.connection_endpoint import KernelConnection
    from amqpmesh.router.kernel.fast_route import FastRoute
    from amqpmesh.router.kernel.link_endpoint import KernelLink
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
#: Deliveries of a connection that came one after another for the same route, before its input may wait for that route.
ONE_WAY: Final = 64
_ONE_WAY: Final = ONE_WAY
#: The most seconds that input waits so, while others are served. It waits for `PATIENCE` if none are.
LONGEST: Final = 0.2
_LONGEST: Final = LONGEST
#: The most seconds that input waits so, as long as others go on by the same session: it is their turn.
UTMOST: Final = 2.0
_UTMOST: Final = UTMOST
#: Links of a connection that only sends: with more of them, its input does not wait for a route.
_FEW: Final = 8


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
        wire.waits_on = None


def goes_by(wire: KernelConnection, route: FastRoute | None) -> None:
    """Note the route of a delivery that has come on a connection."""
    if wire.way is route:
        wire.way_count += 1
    else:
        wire.way = route
        wire.way_count = 0


def _wait_in_line(router: KernelRouter, wire: KernelConnection, route: FastRoute, sink: KernelConnection) -> None:
    """Leave the next frame of a connection unread until its route can take it: other deliveries wait there, or the
    receivers have no credit, or the window of a session is used up.

    A delivery that waits in the router costs a decision when it comes and another when it leaves, and others queue
    behind it. Only a connection may wait so that sends and does not receive, and whose deliveries have all come for
    this route lately: those behind the frame have to wait for the same.

    Args: sink: the connection of a receiver, whose next frame may end the wait.
    """
    if (
        wire.patient
        and sink.patient
        and sink is not wire
        and router.now >= sink.slow_until
        and _goes_one_way(wire, route)
    ):
        wire.waits_for = sink
        wire.waits_on = route


def _goes_one_way(wire: KernelConnection, route: FastRoute) -> bool:
    """Return whether a connection only sends, and all that it sends is for one route, as far as is known.

    Its only link says that at once. Of several links, of an anonymous sender too, the deliveries of late do.
    """
    count = 0
    of_late = wire.way is route and wire.way_count >= _ONE_WAY
    for session in wire.sessions.values():
        count += len(session.links)
        if count > _FEW:
            return False
        for link in session.links.values():
            if link.sender:
                return False
            if not of_late and (link.anonymous or count > 1):
                return False
    return count > 0


def _wait_for_receiver(router: KernelRouter, link: KernelLink, route: FastRoute) -> None:
    """Wait, as `_wait_in_line` does, for a receiver of a route whose receivers are not ready.

    A sender with an address has credit for one delivery more than they have. So the router gets to know that there is
    more, and only anonymous senders wait for credit here.
    """
    wire = link.session.wire
    if wire.way is not route or route.order == _ALL:
        return
    longest: KernelLink | None = None
    for out in route.links:
        if (link.anonymous or out.link_credit > 0) and (longest is None or out.last_at < longest.last_at):
            longest = out
    if longest is not None:
        _wait_in_line(router, wire, route, longest.session.wire)


def may_go_on(router: KernelRouter, route: FastRoute) -> bool:
    """Return whether a route can take a delivery that waits for it, as far as the kernel sees."""
    if route.generation != router.generation:
        return route.queue is None
    return route.shares is not None or _ready_link(route) is not None


def _wait_for_route(router: KernelRouter, wire: KernelConnection, route: FastRoute, octets: int) -> None:
    """Wait, as `_wait_for_output` does, for the first link of a route that needs only more room for output.

    Args: octets: of the first frame of a large delivery; 0: the delivery is small.
    """
    for link in route.bulk if octets and route.order == _FIRST else route.links:
        is_full = _is_full(link)
        if _is_free(link) and (is_full or not _fits(link, octets)):
            sink = link.session.wire
            _wait_in_line(router, wire, route, sink)
            if wire.waits_for is None:
                _wait_for_output(router, wire, sink, is_full)
            break


def _passed(route: FastRoute) -> int:
    """Return the next transfer-id of the session in which a route waits for room; -1: it waits for something else."""
    for link in route.links:
        if _is_free(link):
            return link.session.next_outgoing_id
    return -1


def _limit_wait(router: KernelRouter, wire: KernelConnection) -> None:
    """Count the time that the next frame of a connection waits, and end the wait when the waits add up to too much.

    Other frames wait behind it, so many short waits count like one long wait. A wait for room in a session begins again
    when others have got room there: many connections share what one session takes.
    """
    sink = wire.waits_for
    assert sink is not None
    route = wire.waits_on
    passed = -1 if route is None else _passed(route)
    if wire.waits_since < 0:
        wire.waits_since = wire.waits_from = router.now
    elif passed != wire.passed and passed != -1 and router.now - wire.waits_from < _UTMOST:
        wire.waits_since = router.now
    wire.passed = passed
    waited = router.now - wire.waits_since
    if waited >= _LONGEST or (wire.waits_on is None and wire.waited + waited >= _PATIENCE):
        sink.slow_until = router.now + IMPATIENCE
        wire.waits_for = None
        wire.waited = 0.0
