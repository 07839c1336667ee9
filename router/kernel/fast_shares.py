"""The choice among several shares of an ingress, for deliveries that need no decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.kernel.backpressure import _wait_for_route
from amqpmesh.router.kernel.fast_route import _LEAST, FastRoute, _is_full, _is_ready

if TYPE_CHECKING:
    from amqpmesh.router.kernel.connection_endpoint import KernelConnection
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.router_state import KernelRouter


class FastShare:
    """A share of an ingress as the kernel uses it: a node that deliveries may leave by, and the credit there.

    Args: record: the share in the router.
    """

    __slots__ = ("counted", "is_candidate", "is_lane", "is_open", "last_at", "record", "relayed", "route", "turn")

    def __init__(self, record: object) -> None:
        self.record = record
        #: The links of the node, with the credit of the share (`borrowed`, `credit_slack`). It is valid while the route
        #: of the ingress is.
        self.route = FastRoute()
        #: Links whose unsettled deliveries count in a comparison of shares. `is_lane`: all of them count together; else
        #: the one with the fewest counts.
        self.counted: list[KernelLink] = []
        self.is_lane = False
        #: False: the router decides about each delivery that leaves by the share.
        self.is_open = False
        #: False: only the router may choose the share: others are cheaper, or its links have no credit.
        self.is_candidate = True
        #: The turn of the last choice, as of a link (`KernelLink.turn`).
        self.turn = 0
        #: Deliveries that were relayed since the router was last told, and the time of the last one, seconds.
        self.relayed = 0
        self.last_at = -1.0


def _share_for(router: KernelRouter, wire: KernelConnection, route: FastRoute) -> FastShare | None:
    """Return the share for the next delivery, and set `route.turn`; None: the router decides, or the frame must wait.

    The rule is that of `choose` in `policies.distribution`, so the router would take the same share. If the rule leads
    to a share that the kernel may not use, the result is None.

    Args: wire: of the sender.
    """
    best: FastShare | None = None
    least = turn = credited = 0
    route.turn = 0
    assert route.shares is not None
    for share in route.shares:
        if share.route.borrowed <= 0:
            continue
        credited += 1
        if share.turn > turn:
            turn = share.turn
        if not share.is_candidate:
            continue
        outstanding = _outstanding(share) if route.order == _LEAST else 0
        if best is not None and (outstanding > least or (outstanding == least and share.turn >= best.turn)):
            continue
        if share.is_open and _is_busy(share.route):
            continue
        best = share
        least = outstanding
    if best is None:
        if wire.patient:
            _wait_for_share(router, wire, route)
        return None
    if credited > 1:
        route.turn = turn + 1
    return best if best.is_open else None


def _count_shared(router: KernelRouter, link: KernelLink, share: FastShare) -> None:
    """Count a delivery of the sender `link` that was relayed by a share."""
    route = link.fast_route
    assert route is not None
    if route.turn:
        share.turn = route.turn
    share.relayed += 1
    share.last_at = router.now


def _outstanding(share: FastShare) -> int:
    """Return the unsettled deliveries of a share, as they count in a choice (`CreditShare.outstanding`)."""
    least = -1
    together = 0
    for link in share.counted:
        together += link.outstanding
        if link.link_credit > 0 and (least < 0 or link.outstanding < least):
            least = link.outstanding
    if share.is_lane:
        return together
    return least if least > 0 else 0


def _is_busy(route: FastRoute) -> bool:
    """Return whether no link of a share can take a delivery now: it would wait there."""
    busy = True
    for link in route.links:
        if _is_ready(link):
            return False
    for link in route.bulk:
        if _is_ready(link):
            busy = busy and _is_full(link)
    return busy


def _wait_for_share(router: KernelRouter, wire: KernelConnection, route: FastRoute) -> None:
    """Wait, as `_wait_for_route` does, for the first share whose links need only more room for output."""
    assert route.shares is not None
    for share in route.shares:
        if share.is_candidate and share.is_open and share.route.borrowed > 0:
            _wait_for_route(router, wire, share.route, 0)
            if wire.waits_for is not None:
                break
