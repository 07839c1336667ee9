"""The link-state protocol of a router: (message or timer, now) -> (messages, changes).

`now` is in seconds of any monotonic clock. Each call returns a `Step`. After it, `next_timer` tells when `handle_timer`
is due. There is no I/O here, and the same calls give the same steps.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from random import Random

from amqpmesh.policies.policy_version import PolicyVersion
from amqpmesh.topology.address_book import AddressBook, Advert
from amqpmesh.topology.adjacency import Adjacency, Link
from amqpmesh.topology.changes import (
    AddressesChanged,
    Change,
    Damped,
    Dropped,
    GraphChanged,
    IdentityConflict,
    NeighbourDown,
    NeighbourUp,
    Refused,
    RevocationsChanged,
    Step,
)
from amqpmesh.topology.database import Database, Verdict
from amqpmesh.topology.flooding import Flooding
from amqpmesh.topology.graph import Graph
from amqpmesh.topology.hello_protocol import HelloProtocol
from amqpmesh.topology.messages import Acknowledgement, Hello, Records, Request, Summary, read_message
from amqpmesh.topology.origination import Originator
from amqpmesh.topology.outbox import Outbox
from amqpmesh.topology.paths import Paths, preferred
from amqpmesh.topology.policy_exchange import PolicyExchange
from amqpmesh.topology.record_builder import RecordBuilder
from amqpmesh.topology.records import (
    REVOCATION,
    SURCHARGE,
    LinkState,
    Name,
    Neighbour,
    OpenedRecord,
    SignedRecord,
    costs,
    open_record,
)
from amqpmesh.topology.schema import UnreadableError
from amqpmesh.topology.settings import Settings
from amqpmesh.topology.signing import Signer, Verifier
from amqpmesh.topology.throttling import Backoff

__all__ = [
    "AddressesChanged",
    "Advert",
    "Change",
    "Damped",
    "Dropped",
    "GraphChanged",
    "IdentityConflict",
    "Link",
    "Name",
    "NeighbourDown",
    "NeighbourUp",
    "Refused",
    "RevocationsChanged",
    "Settings",
    "Step",
    "Topology",
]


class Topology:
    """The link-state database of a router, its graph and address book, and its advertisements."""

    def __init__(
        self,
        router: str,
        settings: Settings,
        signer: Signer,
        verifier: Verifier,
        epoch: int,
        now: float,
        *,
        jitter: Random | None = None,
        reader: Callable[[SignedRecord], OpenedRecord] = open_record,
    ) -> None:
        """Start an epoch.

        Args: epoch: greater than in the run before, as far as that is known (milliseconds of the wall clock will do).
            If a neighbour has records of a greater epoch, this router raises its epoch above that.
            reader: as for `Database`.
        """
        self.router = router
        self.settings = settings
        self.graph = Graph()
        self.paths = Paths(self.graph, router)
        self.book = AddressBook()
        self.database = Database(router, settings, verifier, reader)
        self._outbox = Outbox(router, settings)
        self._timers = self._outbox.timers
        # Seeded, so that the same calls give the same steps, and so that routers that start together do not send
        # together.
        seeded = jitter if jitter is not None else Random(f"{router} {epoch}")  # noqa: S311 - it spreads HELLOs
        self._policies = PolicyExchange(self._outbox)
        self._hello_protocol = HelloProtocol(
            self._outbox,
            epoch,
            seeded,
            self._adjacency_up,
            self._adjacency_down,
            self._links_changed,
            lambda: self._policies.offer,
        )
        self._flooding = Flooding(
            self._outbox,
            self.database,
            self._record_stored,
            lambda record, now: self._originator.received_own(record, now),
            self._links_changed,
        )
        builder = RecordBuilder(router, epoch, settings.area, signer)
        self._originator = Originator(self._outbox, builder, self.database, self._flooding, self._links)
        self._path_backoff = Backoff(settings.path_time)
        self._handlers: Mapping[str, Callable[..., None]] = {
            "hello": self._hello_protocol.send_hello,
            "hold": self._hello_protocol.hold_time_over,
            "damped": self._hello_protocol.undamp,
            "exchange": self._on_neighbour(self._flooding.start_exchange),
            "load": self._on_neighbour(self._flooding.loading_over),
            "flood": self._on_neighbour(self._flooding.send_queued),
            "resend": self._on_neighbour(self._flooding.resend),
            "acknowledge": self._on_neighbour(lambda neighbour, _: self._flooding.acknowledge(neighbour)),
            "gap": self._flooding.request_missing,
            "waiting": lambda _: self._flooding.forget_uncertified(),
            "links": self._originator.originate_links,
            "refresh": lambda now: self._originator.originate_links(now, refresh=True),
            "addresses": self._originator.originate_addresses,
            "jump": self._originator.raise_epoch,
            "paths": self._find_paths,
            "age": self._forget_expired,
            "book": self._update_book,
            "dead": lambda origin, _: self.database.forget_pair(origin),
            "sweep": self._sweep,
            "policy": self._policies.piece_is_late,
        }
        for signed in signer.records():
            self.database.accept(signed, 0.0, now)
        self._originator.originate_links(now, refresh=True)
        self._find_paths(now)
        self._sweep(now)
        self._outbox.finish_step()  # there is no neighbour yet

    # Events

    def connected(self, adjacency: Hashable, cost: int | None, now: float, *, expected: str | None = None) -> Step:
        """Add a connection to a neighbour.

        Args: adjacency: its name here. cost: of sending on it, 1 or more; None: the neighbour's for its direction, if
            it has one, or else 1. expected: the id of the router that was authenticated at its other end; None: any.
        Raises: ValueError: a cost below 1, or there is an adjacency of that name.
        """
        self._hello_protocol.connected(adjacency, None if cost is None else _cost(cost), now, expected)
        return self._finish(now)

    def disconnected(self, adjacency: Hashable, now: float) -> Step:
        """Remove a lost connection; an unknown one is ignored."""
        self._hello_protocol.disconnected(adjacency, now)
        return self._finish(now)

    def cost_on(self, adjacency: Hashable) -> int:
        """Return the cost of sending on a connection; 1 for an unknown one."""
        known = self._hello_protocol.adjacencies.get(adjacency)
        return 1 if known is None else known.cost

    def set_cost(self, adjacency: Hashable, cost: int | None, now: float, *, configured: bool = False) -> Step:
        """Change the cost of sending on a connection; an unknown one is ignored. The other direction keeps its cost.

        Args: cost, configured: as of `Adjacency.set_cost`. Raises: ValueError: a cost below 1.
        """
        known = self._hello_protocol.adjacencies.get(adjacency)
        if known is not None and known.set_cost(None if cost is None else _cost(cost), configured=configured):
            self._links_changed(now)
        return self._finish(now)

    def received(self, adjacency: Hashable, data: bytes, now: float) -> Step:
        """Handle a message. It never raises: a bad message is dropped, counted and reported."""
        known = self._hello_protocol.adjacencies.get(adjacency)
        if known is None or known.refused:
            return self._outbox.finish_step()
        try:
            self._receive(known, data, now)
        except UnreadableError as error:
            self._outbox.drop("", known.router, error.reason, str(error))
        return self._finish(now)

    def note_traffic(self, adjacency: Hashable, at: float) -> None:
        """Note that octets arrived on a connection: its hold time starts at the time of the latest octets.

        Call it before `handle_timer`, as often as you like, with times that do not fall. An unknown connection is
        ignored.
        """
        known = self._hello_protocol.adjacencies.get(adjacency)
        if known is not None:
            self._hello_protocol.note_traffic(known, at)

    def advertise(self, tenant: str, name: str, advert: Advert | None, now: float) -> Step:
        """Advertise an address of this router; None: withdraw it.

        An address that cannot be advertised is reported as `Dropped`, with this router as its origin. A draining router
        advertises nothing new.
        """
        self._originator.advertise(Name(tenant, name), advert, now)
        return self._finish(now)

    def drain(self, now: float) -> Step:
        """Withdraw all addresses, and let no path of others lead through this router."""
        self._originator.drain(now)
        self._links_changed(now)
        return self._finish(now)

    def set_overload(self, now: float, *, overload: bool) -> Step:
        """Ask all routers to find paths around this one, where there are any; or ask no longer."""
        self._originator.overload = overload
        self._links_changed(now)
        return self._finish(now)

    def renew(self, signer: Signer, now: float) -> Step:
        """Sign with another certificate from now on, and advertise everything again."""
        self._originator.renew(signer, now)
        return self._finish(now)

    def give_policy(self, version: PolicyVersion | None, data: bytes, now: float) -> Step:
        """Offer a policy to the neighbours, and fetch newer ones from them. Args: version: None: there is none."""
        self._policies.give(version, data, now)
        for adjacency in self._hello_protocol.adjacencies.values():
            if adjacency.up:
                self._hello_protocol.send_hello(adjacency, now)
        return self._finish(now)

    def refuse_policy(self, version: PolicyVersion, now: float) -> Step:
        """Fetch a policy no more, which this router has refused."""
        self._policies.refuse(version, now)
        return self._finish(now)

    def handle_timer(self, now: float) -> Step:
        """Do the work that is due; an early or late call does no harm."""
        return self._finish(now)

    def next_timer(self) -> float | None:
        """Return the time when `handle_timer` is due."""
        return self._timers.next()

    # Queries

    @property
    def epoch(self) -> int:
        """The epoch of this router's records."""
        return self._originator.epoch

    def life_of(self, router: str) -> int | None:
        """Return the epoch of another router's records, which grows when it restarts; None: there are none."""
        origin = self.database.origins.get(router)
        return None if origin is None else origin.pair.epoch

    @property
    def dropped(self) -> Mapping[str, int]:
        """Dropped messages and records so far, by reason."""
        return self._outbox.dropped

    @property
    def sent(self) -> Mapping[str, int]:
        """Messages sent so far, by type."""
        return self._outbox.sent

    def neighbours(self) -> list[Link]:
        """Return all adjacencies, in the order in which they were added."""
        return [self._link(adjacency) for adjacency in self._hello_protocol.adjacencies.values()]

    def routers(self) -> list[str]:
        """Return all known routers, reachable or not, sorted."""
        return self.graph.routers()

    def lookup(self, tenant: str, name: str) -> Mapping[str, Advert]:
        """Return the adverts of an address by reachable routers; see `AddressBook.lookup`."""
        return self.book.lookup(tenant, name)

    def distance(self, router: str) -> int | None:
        """Return the cost of the cheapest path to a router, 0 for this one; None: it cannot be reached.

        This router's own surcharge does not count, nor can it be avoided.
        """
        distance = self.paths.distance(router)
        return distance - SURCHARGE if distance and self._originator.overload else distance

    def length(self, router: str) -> int | None:
        """Return the most edges on a cheapest path to a router; None: it cannot be reached."""
        return self.paths.length(router)

    def parent(self, ingress: str) -> str | None:
        """Return the neighbour before this router in the tree of an ingress router; see `Paths.parent`."""
        return self.paths.parent(ingress)

    def branches(self, ingress: str, destinations: Iterable[str]) -> dict[str, set[str]]:
        """Return the destinations below this router in the tree of an ingress router, by child; see
        `Paths.branches`."""
        return self.paths.branches(ingress, destinations)

    def next_hop(self, destination: str, flow: str, kept: Hashable | None = None) -> Hashable | None:
        """Return the adjacency that a flow takes towards a router; None: there is no path, or it is this router itself.

        Flows spread over equal costs.

        Args: kept: the present adjacency of the flow. It stays while it is one of the cheapest.
        """
        hops = self.paths.next_hops(destination)
        held = self._hello_protocol.adjacencies.get(kept) if kept is not None else None
        if held is not None and held.router in hops and held in self._cheapest(held.router):
            return kept
        hop = preferred(flow, destination, hops, seed=self.router)
        return None if hop is None else self.adjacency(hop, flow)

    def adjacency(self, router: str, flow: str) -> Hashable | None:
        """Return the one of the cheapest adjacencies to a neighbour that a flow takes; None: it is no neighbour."""
        cheapest = self._cheapest(router)
        if len(cheapest) == 1:
            return cheapest[0].name
        by_turn = {str(adjacency.number): adjacency for adjacency in cheapest}
        turn = preferred(flow, router, by_turn, seed=self.router)
        return None if turn is None else by_turn[turn].name

    # Adjacencies

    def _cheapest(self, router: str) -> Sequence[Adjacency]:
        neighbour = self._flooding.neighbours.get(router)
        if neighbour is None:
            return ()
        advertised = [each for each in neighbour.adjacencies if each.advertised]
        if len(advertised) < 2:
            return advertised
        least = min(each.cost for each in advertised)
        return [each for each in advertised if each.cost == least]

    def _link(self, adjacency: Adjacency) -> Link:
        neighbour = self._flooding.neighbours.get(adjacency.router)
        reason = ""
        if adjacency.refused:
            reason = "refused"
        elif adjacency.contested_at is not None:
            reason = "an earlier run of this router still has an adjacency"
        elif not adjacency.up:
            reason = "HELLOs do not go both ways yet"
        elif adjacency.damped_until is not None:
            reason = "lost too often recently"
        elif neighbour is not None and not neighbour.full:
            reason = "the neighbour's database has not arrived yet"
        return Link(adjacency.name, adjacency.router, adjacency.cost, adjacency.up, not reason, reason)

    def _adjacency_up(self, adjacency: Adjacency, now: float) -> None:
        self._flooding.adjacency_up(adjacency, now)
        self._links_changed(now)

    def _adjacency_down(self, adjacency: Adjacency, now: float) -> None:
        self._policies.gone(adjacency, now)
        self._flooding.adjacency_down(adjacency, now)
        self._links_changed(now)

    def _links(self) -> tuple[Neighbour, ...]:
        links = []
        surcharge = SURCHARGE if self._originator.overload else 0
        for router, neighbour in self._flooding.neighbours.items():
            advertised = [each.cost for each in neighbour.adjacencies if each.advertised]
            if advertised and neighbour.full:
                links.append(Neighbour(router, min(advertised) + surcharge, len(advertised)))
        return tuple(sorted(links))

    def _links_changed(self, now: float) -> None:
        """Put this router's own links into its graph at once, and schedule their advertisement."""
        links = self._links()
        self._originator.links_changed(links, now)
        own = self._originator
        self._update_graph(self.router, costs(self.router, links), own.transit, own.overload, now)

    # Messages

    def _receive(self, adjacency: Adjacency, data: bytes, now: float) -> None:
        message = read_message(data)
        if message.area != self.settings.area:
            raise UnreadableError("area", f"of the area {message.area!r}")
        if isinstance(message, Hello):
            self._hello_protocol.receive_hello(adjacency, message, now)
            if adjacency.up:
                self._policies.heard(adjacency, message.policy, now)
            return
        neighbour = self._flooding.neighbours.get(adjacency.router) if adjacency.up else None
        if neighbour is None:
            return  # the neighbour has not noticed yet that the adjacency is down; it will send the message again
        match message:
            case Summary():
                self._flooding.receive_summary(neighbour, message, now)
            case Request():
                self._flooding.receive_request(neighbour, message)
            case Records():
                self._flooding.receive_records(neighbour, message, now)
            case Acknowledgement():
                self._flooding.receive_acknowledgement(neighbour, message.acknowledged)
            case _:
                self._policies.receive(adjacency, message, now)

    # Timers

    def _on_neighbour(self, call: Callable[..., None]) -> Callable[[str, float], None]:
        def found(router: str, now: float) -> None:
            neighbour = self._flooding.neighbours.get(router)
            if neighbour is not None:
                call(neighbour, now)

        return found

    def _finish(self, now: float) -> Step:
        """Do all work that is due, including work that becomes due meanwhile."""
        while True:
            self._flooding.schedule_sending(now)
            due = list(self._timers.due(now))
            if not due:
                break
            for name in due:
                self._handlers[name[0]](*name[1:], now)
        if self.book.has_pending and ("book",) not in self._timers:
            self._update_book(now)
        return self._outbox.finish_step()

    def _update_book(self, now: float) -> None:
        """Update a part of the address book, and schedule the next part."""
        self._outbox.addresses_changed(self.book.update(self.settings.part))
        if self.book.has_pending:
            self._timers.set(("book",), now + self.settings.part_time)

    def _sweep(self, now: float) -> None:
        self.database.forget_certificates(now - self.settings.max_age)
        self._hello_protocol.sweep(now)
        self._timers.set(("sweep",), now + self.settings.max_age)

    # Records

    def _record_stored(self, verdict: Verdict, now: float) -> None:
        """Apply a stored record, of this router or another, to the address book and the graph."""
        record = verdict.record
        for change in verdict.changes:
            if change.all:
                self.book.replace(verdict.origin, change.entries)
            else:
                self.book.apply_delta(verdict.origin, change.entries, change.removed)
        if isinstance(record, LinkState):
            if record.origin != self.router:
                self._timers.cancel(("dead", record.origin))
                signed_at = self.database.origins[record.origin].link.signed_at
                self._timers.set_earlier(("age",), signed_at + self.settings.max_age)
            self._update_graph(record.origin, record.costs, record.transit, record.overload, now)
        elif verdict.key is not None and verdict.key.kind is REVOCATION:
            for origin in self.database.distrusted():
                self._outbox.drop(origin, origin, "untrusted", "its certificate is revoked")
                self._forget(origin, now)
            self._outbox.report(RevocationsChanged(bytes.fromhex(verdict.key.origin), verdict.key.sequence))

    def _update_graph(self, origin: str, links: Mapping[str, int], transit: bool, overload: bool, now: float) -> None:
        self.graph.set_overload(origin, overload=overload)
        if self.graph.update(origin, links, transit=transit):
            self._timers.set_earlier(("paths",), self._path_backoff.next(now))

    def _find_paths(self, now: float) -> None:
        self._path_backoff.done(now, self.settings.pace_time * len(self.graph))
        changed = self.paths.refresh()
        self.book.set_reachable(self.paths.reachable())
        # Even if no route has changed, this router's place in the tree of another one may have.
        self._outbox.report(GraphChanged(changed))

    def _forget_expired(self, now: float) -> None:
        """Forget the routers that have not renewed their link states. One timer serves all of them, since nearly all
        have."""
        for origin, signed_at in self.database.signed_at().items():
            if signed_at + self.settings.max_age <= now:
                self._forget(origin, now)
            else:
                self._timers.set_earlier(("age",), signed_at + self.settings.max_age)

    def _forget(self, origin: str, now: float) -> None:
        """Forget a router that has not renewed its link state, or is no longer trusted."""
        self._timers.set(("dead", origin), now + 2 * self.settings.max_age)
        self.database.forget(origin)
        self.book.forget(origin)
        if self.graph.remove(origin):
            self._timers.set_earlier(("paths",), self._path_backoff.next(now))


def _cost(cost: int) -> int:
    if cost < 1:
        raise ValueError(f"a cost of {cost}: costs are at least 1")
    return cost
