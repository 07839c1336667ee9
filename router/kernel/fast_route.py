"""Links by which deliveries of a node leave without a decision, and the choice among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amqpmesh.router.kernel.link_endpoint import KernelLink

#: In which order links are taken: the first that is ready, the one with the least unsettled, or by turns.
FIRST: Final = 0
LEAST: Final = 1
TURNS: Final = 2
_FIRST: Final = FIRST
_LEAST: Final = LEAST

#: Octets of a frame that are not payload, in the middle of a delivery or, with a tag, at its begin: no more than these.
_FRAME_HEAD: Final = 80


class FastRoute:
    """The links by which deliveries of a node leave, decided once and valid for many deliveries.

    It is valid while `generation` is the router's. Each change of the node sets it to 0.
    """

    __slots__ = ("bulk", "drops", "generation", "hops", "lent", "links", "order", "quiet", "room", "turn", "wanted")

    def __init__(self) -> None:
        self.generation = 0
        #: Those that may take a delivery, if they are ready for it; and where they are lanes, which is in the order
        #: `_FIRST`, those for large ones: they take a small one, too, if no other does.
        self.links: list[KernelLink] = []
        self.bulk: list[KernelLink] = []
        self.order = _FIRST
        #: The turn of who was chosen last, if it is given the delivery; 0: there was nobody else.
        self.turn = 0
        #: Octets of payload that certainly fit into one frame.
        self.room = 0
        #: How many more deliveries the way out may be given; -1: it lends nothing, and asks nothing.
        self.lent = -1
        #: How many of those may be given before the way out is to be told.
        self.quiet = 0
        #: How many hops a delivery may make that begins its way through the mesh here.
        self.hops = 0
        #: Delivery annotations do not pass.
        self.drops = False
        #: A delivery came that could not leave by them: they are to be decided anew.
        self.wanted = False


def _ready_link(route: FastRoute) -> KernelLink | None:
    """The exit that the next delivery takes, and `route.turn`; None: none is ready for the first frame of one."""
    route.turn = 0
    if route.order == _FIRST:
        for link in route.links:
            if _is_ready(link):
                return link
        for link in route.bulk:
            if _is_ready(link):
                return link
        return None
    if len(route.links) == 1:
        link = route.links[0]
        return link if _is_ready(link) else None
    best: KernelLink | None = None
    ready = turn = 0
    for link in route.links:
        if not _is_ready(link):
            continue
        ready += 1
        if link.turn > turn:
            turn = link.turn
        if (
            best is None
            or (route.order == _LEAST and link.outstanding < best.outstanding)
            or ((route.order != _LEAST or link.outstanding == best.outstanding) and link.turn < best.turn)
        ):
            best = link
    if ready > 1:
        route.turn = turn + 1
    return best


def _link_for_large(route: FastRoute, octets: int) -> KernelLink | None:
    """The exit that a delivery takes which does not leave in one frame, or not in the one that it began with.

    Of lanes it is another link, for which nothing small waits. Args: octets: of it that are here.
    Returns: None: none takes all of that now, or what is here is nothing.
    """
    if route.order == _FIRST:
        route.turn = 0
        for link in route.bulk:
            if octets and _is_free(link) and _fits(link, octets) and not _is_full(link):
                return link
        return None
    out = _ready_link(route)
    return out if out is not None and octets and _fits(out, octets) and not _is_full(out) else None


def _is_ready(link: KernelLink) -> bool:
    """A sender can take the first frame of a delivery now."""
    session = link.session
    wire = session.wire
    return wire.sending + len(wire.out) <= wire.backlog and session.remote_incoming_window > 0 and _is_free(link)


def _is_free(link: KernelLink) -> bool:
    """The same, however much waits to be written, and however narrow the window of its session is."""
    return (
        link.link_credit > 0
        and link.session.channel != -1
        and link.outstanding < link.max_outstanding
        and link.current is None
        and link.leg is None
    )


def _fits(link: KernelLink, octets: int) -> bool:
    """Tell whether the window of a sender's session has room for the frames that so many octets need."""
    session = link.session
    room = session.wire.remote_max_frame_size - _FRAME_HEAD
    return session.remote_incoming_window > 0 and (octets + room - 1) // room <= session.remote_incoming_window


def _is_full(link: KernelLink) -> bool:
    """So much waits to be written that nothing large is added to it by this sender."""
    wire = link.session.wire
    return (wire.sending + len(wire.out)) * link.part > wire.backlog
