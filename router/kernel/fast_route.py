"""The links by which deliveries of a node leave without a decision, and the choice among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.head_sections import _PASS_THEIRS

if TYPE_CHECKING:
    from amqpmesh.router.kernel.connection_endpoint import KernelConnection
    from amqpmesh.router.kernel.credit_sinks import CreditSink
    from amqpmesh.router.kernel.fast_shares import FastShare
    from amqpmesh.router.kernel.kept_messages import Keeper
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.router_state import KernelRouter
    from amqpmesh.router.kernel.seen_messages import MessageWindow
    from amqpmesh.router.kernel.tree_history import TreeHistory

#: The choice of a link: the first that is ready, the one with the fewest unsettled deliveries, or by turns. `ALL`: no
#: choice, each delivery leaves by all links (multicast).
FIRST: Final = 0
LEAST: Final = 1
TURNS: Final = 2
ALL: Final = 3
_FIRST: Final = FIRST
_LEAST: Final = LEAST
_ALL: Final = ALL

#: The links of a kind that a route has none of: one list for all routes, which nobody adds to.
NO_LINKS: Final[list[KernelLink]] = []

#: The most octets of a transfer frame without its payload.
_FRAME_HEAD: Final = 80


class FastRoute:
    """The links by which deliveries of a node leave, decided once and valid for many deliveries.

    It is valid while `generation` is the router's. Each change of the node sets it to 0.
    """

    __slots__ = (
        "borrowed",
        "bulk",
        "credit_slack",
        "generation",
        "history",
        "hops",
        "keeper",
        "left_out",
        "links",
        "lists_all",
        "order",
        "passing",
        "queue",
        "relayed",
        "room",
        "share",
        "shares",
        "traced",
        "turn",
        "wanted",
        "window",
    )

    def __init__(self) -> None:
        self.generation = 0
        #: Links that may take a delivery if they are ready. `bulk`: lanes (order `_FIRST`) for large deliveries; they
        #: take small ones, too, if no other link does.
        self.links: list[KernelLink] = NO_LINKS
        self.bulk: list[KernelLink] = NO_LINKS
        #: They are all links by which deliveries may leave: credit that comes or goes leaves the route valid. If not,
        #: links without credit are missing.
        self.lists_all = False
        #: Of a multicast: links that miss each delivery, because they have stalled for too long. Its `links` are in the
        #: order of their connections.
        self.left_out: list[KernelLink] = NO_LINKS
        self.order = _FIRST
        #: The new turn of the link that was chosen last, if it takes the delivery; 0: it was the only one.
        self.turn = 0
        #: Octets of payload that certainly fit into one frame.
        self.room = 0
        #: The shares of an ingress that leads to several nodes. Each has a route of its own, which has the links.
        self.shares: list[FastShare] | None = None
        #: The share by which deliveries leave; None: they leave by no share, or by one of `shares`.
        self.share: CreditSink | None = None
        #: The rules of an address that redelivers.
        self.keeper: Keeper | None = None
        #: The message-ids that the address has seen; None: it does not look at them.
        self.window: MessageWindow | None = None
        #: The credit that is left of the share by which deliveries leave; -1: they leave by no share.
        self.borrowed = -1
        #: Deliveries that may leave before the router must update the pool of that share.
        self.credit_slack = 0
        #: The hops of a delivery that enters the mesh here. Of a multicast: 0: it has no tree.
        self.hops = 0
        #: The history of the tree by which deliveries come; None: they come by no tree.
        self.history: TreeHistory | None = None
        #: Deliveries of anonymous senders that were relayed: their links' counts do not show the address.
        self.relayed = 0
        #: The connection of a receiver that deliveries of the node wait for, while the route is invalid for that.
        self.queue: KernelConnection | None = None
        #: The delivery annotations that pass (`PASS_THEIRS` and its kin).
        self.passing = _PASS_THEIRS
        #: A delivery came while the route was invalid: the router must decide the route again.
        self.wanted = False
        #: The router makes spans of some messages to the address, chosen by `KernelRouter.contexts`.
        self.traced = False


def _ready_link(route: FastRoute) -> KernelLink | None:
    """Return the link for the next delivery, and set `route.turn`; None: no link can take its first frame."""
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
    """Return the link for a delivery of several frames, coming or leaving.

    Lanes have separate links for them, so that small deliveries do not wait.
    Args: octets: of the payload that has come. Returns: None: no link takes all of it now, or there is none.
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
    """Return whether a sender can take the first frame of a delivery now."""
    session = link.session
    wire = session.wire
    return wire.sending + len(wire.out) <= wire.backlog and session.remote_incoming_window > 0 and _is_free(link)


def _is_free(link: KernelLink) -> bool:
    """Return whether a sender can take a delivery, apart from waiting output and its session's window."""
    return (
        link.link_credit > 0
        and link.session.channel != -1
        and link.outstanding < link.max_outstanding
        and link.current is None
        and link.leg is None
    )


def _fits(link: KernelLink, octets: int) -> bool:
    """Return whether the window of a sender's session has room for the frames of `octets`."""
    session = link.session
    room = session.wire.remote_max_frame_size - _FRAME_HEAD
    return session.remote_incoming_window > 0 and (octets + room - 1) // room <= session.remote_incoming_window


def _is_full(link: KernelLink) -> bool:
    """Return whether too much output waits for this sender to add a large delivery."""
    wire = link.session.wire
    return (wire.sending + len(wire.out)) * link.part > wire.backlog


def _lane_stays(router: KernelRouter, link: KernelLink, out: KernelLink) -> bool:
    """Return whether a lane stays attached, and no later delivery of the incoming link waits for it."""
    route = link.fast_route
    return route is not None and route.generation == router.generation and not link.behind and out in route.bulk
