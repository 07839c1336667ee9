"""What is recorded of links, deliveries and the graph, on its way to whoever writes it (`telemetry`).

The kernel stores what it relays without a decision itself; here is what others decide. Nothing waits: what the writer
has no room for is lost, and counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from amqpmesh.router import kernel
from amqpmesh.router.address_syntax import without_secret
from amqpmesh.router.amqp.link import Link, Receiver
from amqpmesh.router.amqp.standard.definitions import LinkCondition
from amqpmesh.router.model.lane import Keys
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.model.node import Address, address_of
from amqpmesh.router.telemetry.schema import KEY_OCTETS, Flag, Happening, Kind, Outcome

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator, Mapping

    from amqpmesh.router.amqp.standard.definitions import Error
    from amqpmesh.router.config.telemetry import TelemetryConfig
    from amqpmesh.router.core import Core
    from amqpmesh.router.kernel import Leg, Recorder, Relay
    from amqpmesh.router.model.connections import ConnectionRecord

ALL: Final = 2**32
"""Of so many keys a sample is taken."""

NUMBERED: Final = 10_000
"""Addresses that anonymous senders send to, and conditions of rejections, that have a number, at most; then all are
numbered anew.
"""

NAME: Final = 256
"""Characters of a name that are recorded: peers choose them, fifty thousand records may wait, and each has four."""

LONGEST_CONDITION: Final = 128
"""Octets of a condition that are recorded: a peer can make up any, and the standard's are shorter."""

_OUTCOMES: Final = {
    kernel.ACCEPTED: Outcome.ACCEPTED,
    kernel.REJECTED: Outcome.REJECTED,
    kernel.RELEASED: Outcome.RELEASED,
    kernel.MODIFIED: Outcome.MODIFIED,
}


class Writer(Protocol):
    """Who takes what was recorded, and never makes anybody wait."""

    def take(self, kind: Kind, records: list[dict[str, Any]]) -> None:
        """Some of one kind, in order."""

    def take_hops(self, words: array[int], used: int, first: int, count: int) -> array[int] | None:
        """Hop records. Args: used: words. first: the number of the first record, lost ones included.

        Returns: where to store others; None: there is no room now.
        """

    def gone(self, number: int) -> None:
        """The number of a link or address means nothing any more, once what is on its way is recorded."""

    def room(self) -> array[int] | None:
        """Where to store some; None: there is no room now."""


class Recording:
    """What one router records."""

    def __init__(self, core: Core, recorder: Recorder, config: TelemetryConfig, writer: Writer, epoch: int) -> None:
        """Args: epoch: of a router in no mesh, whose keys have none; milliseconds since 1970."""
        self._core = core
        self._recorder = recorder
        self._writer = writer
        self._credit_wait = config.credit_wait
        self._words = writer.room()
        #: The numbers of addresses that anonymous senders send to, and of conditions that receivers reject with.
        self._numbers: dict[Address | bytes, int] = {}
        #: Counts of links as they were told last, by the links' numbers.
        self._counted: dict[int, tuple[tuple[int, ...], int | None]] = {}
        #: Links that are gone, and were told of again with the hop records that are not handed over yet.
        self._told_again: set[int] = set()
        self._generation = -1
        recorder.threshold = round(config.sample * ALL)
        recorder.on_full = self.flush
        recorder.on_rejected = self.condition
        recorder.give(self._words)
        if not core.flow_state.key_prefix:
            Keys(core.id, core.flow_state).begin(epoch)
        core.flow_state.recorder = recorder

    # ------------------------------------------------------------------------------------------------------ deliveries

    def flush(self) -> None:
        """Hand over the hop records that there are."""
        recorder = self._recorder
        if self._words is None:
            self._words = self._writer.room()
        elif recorder.used:
            self._words = self._writer.take_hops(
                self._words, recorder.used, recorder.first, recorder.stored - recorder.first
            )
            self._told_again.clear()
        else:
            return
        recorder.give(self._words)

    def sent(self, leg: Leg) -> None:
        """The last frame of a leg is written."""
        self._recorder.times = 0
        leg.sent_at = self._recorder.time()

    def over(self, relay: Relay) -> None:
        """Nothing more is said of a relay: each of its legs is recorded."""
        if relay.legs:
            for leg in relay.legs:
                self.tried(relay, leg)
        elif not relay.recorded:
            self.unsent(relay, Outcome.ABORTED, None)

    def tried(self, relay: Relay, leg: Leg) -> None:
        """Nothing more is said of a leg, as far as its sender is concerned."""
        delivery = leg.delivery
        outgoing = leg.branch
        if delivery is None or not leg.started or not isinstance(outgoing, OutgoingLink):
            return
        key = self._key(relay, delivery.tag if outgoing.lane is not None else None)
        if key is None:
            return
        # Of what its sender settled routers tell each other that it has left.
        outcome = Outcome.NONE if relay.presettled else outcome_of(leg.outcome)
        if outcome is Outcome.NONE and leg.aborting:
            outcome = Outcome.ABORTED
        if outgoing.gone:
            self._tell_again(outgoing)
        flags = Flag.COPY if leg.copy else 0
        self._store(
            relay, key, flags, outcome, leg.outcome, outgoing.number, delivery.size, leg.sent_at, leg.outcome_at
        )

    def tried_again(self, relay: Relay, leg: Leg) -> None:
        """A try has failed, and another will follow, with a key of its own; copies that are done were of this one."""
        for each in relay.legs:
            if each is leg or (each.copy and each.done):
                self.tried(relay, each)
        relay.counter = 0

    def unsent(self, relay: Relay, outcome: Outcome, state: bytes | None) -> None:
        """It goes to nobody. Args: state: what its sender is told."""
        key = self._key(relay, None)
        relay.recorded = True
        if key is not None:
            size = relay.incoming.size if relay.incoming is not None else 0
            self._store(relay, key, 0, outcome, state, 0, size, -1.0, self._core.now)

    def _key(self, relay: Relay, tag: bytes | None) -> tuple[bytes, int, int, int] | None:
        """What its key begins with, its counter, how many hops were left, and flags; None: it is not of the sample.

        Args: tag: with which it left by a lane.
        """
        source = relay.source
        came_with = relay.tag
        if isinstance(source, IncomingLink) and source.lane is not None and len(came_with) == KEY_OCTETS + 1:
            counter = _counter(came_with)
            return (came_with, counter, came_with[KEY_OCTETS], 0) if self._recorder.takes(counter) else None
        tag = tag or relay.key
        if tag is not None:
            relay.counter = _counter(tag)
        elif not relay.counter:
            flow_state = self._core.flow_state
            flow_state.key_count += 1
            relay.counter = flow_state.key_count
        if relay.attempts <= 1:
            relay.first = relay.counter
        if not self._recorder.takes(relay.counter):
            return None
        return self._core.flow_state.key_prefix, relay.counter, tag[-1] if tag else 0, Flag.BEGAN

    def _store(
        self,
        relay: Relay,
        key: tuple[bytes, int, int, int],
        flags: int,
        outcome: Outcome,
        state: bytes | None,
        outgoing: int,
        size: int,
        left: float,
        said: float,
    ) -> None:
        prefix, counter, hops_left, began = key
        source = relay.source
        incoming = 0
        if isinstance(source, IncomingLink):
            incoming = source.number
            if source not in source.connection.incoming:
                self._tell_again(source)
        if relay.presettled:
            flags |= Flag.SETTLED
        self._recorder.store(
            prefix,
            counter,
            hops_left,
            flags | began,
            outcome,
            incoming,
            outgoing,
            size,
            relay.came,
            left,
            said,
            relay.header_info,
            self._address(relay),
            min(max(relay.attempts, 1), 0xFFFF),
            relay.first if began and relay.first != counter else 0,
            self.condition(state) if state is not None and kernel.state_kind(state) == kernel.REJECTED else 0,
        )

    def _address(self, relay: Relay) -> int:
        """The number of the address where it goes, unless that is its link's."""
        source = relay.source
        address = address_of(relay)
        if address is None or (isinstance(source, IncomingLink) and source.address is not None):
            return 0
        number = self._numbers.get(address)
        if number is None:
            place = {"address": without_secret(address.name)[:NAME] or None, "tenant": address.tenant}
            number = self._numbered(address, {"name": "", "direction": "address", **place})
        return number

    def condition(self, state: bytes) -> int:
        """The number of the condition in an encoded `rejected`; 0: it gives none (§3.4.3)."""
        condition = condition_of(state)
        if condition is None:
            return 0
        number = self._numbers.get(condition)
        if number is None:
            name = condition.decode("ascii", "replace")
            told = {"name": name, "direction": "condition", "address": None, "tenant": None}
            number = self._numbered(condition, told)
        return number

    def _numbered(self, key: Address | bytes, told: dict[str, Any]) -> int:
        """A new number, which is explained by `told`."""
        if len(self._numbers) >= NUMBERED:
            for each in self._numbers.values():
                self._writer.gone(each)
            self._numbers.clear()
        number = self._numbers[key] = self._core.attaching.next_number()
        self._writer.take(Kind.LINK, [{"number": number, "peer": None, "from_router": False, **told}])
        return number

    # ----------------------------------------------------------------------------------------------------------- links

    def up(self, taken: IncomingLink | OutgoingLink) -> None:
        """A link is attached."""
        self._writer.take(Kind.LINK, [self._explained(taken)])
        self._happened(Happening.UP, self._told(taken))

    def _tell_again(self, gone: IncomingLink | OutgoingLink) -> None:
        """A link is gone, and what was on it went on for so long that its number may mean nothing any more."""
        if gone.number not in self._told_again:
            self._told_again.add(gone.number)
            self._writer.take(Kind.LINK, [self._explained(gone)])
            self._writer.gone(gone.number)

    def down(self, taken: IncomingLink | OutgoingLink) -> None:
        """A link is gone."""
        self._happened(Happening.DOWN, self._told(taken))
        self._writer.gone(taken.number)

    def stolen(self, taken: IncomingLink | OutgoingLink) -> None:
        """A link was attached again elsewhere, and is about to go."""
        self._happened(Happening.STOLEN, self._told(taken))

    def refused(self, link: Link, record: ConnectionRecord, error: Error) -> None:
        """A link was not attached."""
        redirected = error.condition == LinkCondition.REDIRECT
        direction = "incoming" if isinstance(link, Receiver) else "outgoing"
        told = {"link": link.name[:NAME], "direction": direction, "peer": record.peer.container_id[:NAME] or None}
        happening = Happening.REDIRECTED if redirected else Happening.REFUSED
        self._happened(happening, {**told, "address": None, "tenant": None}, error=str(error.condition))

    def may_have_waited(self, taken: IncomingLink | OutgoingLink) -> None:
        """Credit was given on a link; for how long it had none may be worth an event."""
        since = taken.zero_credit_since
        if since is not None and taken.link.flow_state.link_credit:
            waited = self._core.now - since
            if waited >= self._credit_wait:
                self._happened(Happening.CREDIT, self._told(taken), waited=round(waited * 1e9))

    def _happened(self, happening: Happening, told: Mapping[str, Any], **more: Any) -> None:
        event = {"time": self._time(), "happening": happening.value, **told, "error": None, "waited": None, **more}
        self._writer.take(Kind.EVENT, [event])

    def counts(self, record: ConnectionRecord) -> None:
        """What the links of a connection have counted, where it is not what was told last."""
        self._writer.take(Kind.COUNTS, [*self._counts((*record.incoming, *record.outgoing, *record.lingering))])

    def last_counts(self, taken: IncomingLink | OutgoingLink) -> None:
        """What a link has counted that is gone."""
        if taken.link.flow_state.deliveries:
            self._writer.take(Kind.COUNTS, [*self._counts((taken,))])
        self._counted.pop(taken.number, None)

    def _counts(self, links: tuple[IncomingLink | OutgoingLink, ...]) -> Iterator[dict[str, Any]]:
        for taken in links:
            counted = taken.link.flow_state
            by_outcome = (counted.accepted, counted.rejected, counted.released, counted.modified)
            now = (counted.deliveries, counted.octets, counted.presettled, *by_outcome)
            time = self._time()
            before, since = self._counted.get(taken.number, (_NOTHING, None))
            self._counted[taken.number] = now, time
            if now == before:
                continue
            yield {
                "time": time,
                "since": since,
                "number": taken.number,
                **self._told(taken),
                "from_router": taken.lane is not None,
                "deliveries": counted.deliveries,
                "octets": counted.octets,
                "presettled": counted.presettled,
                "accepted": counted.accepted,
                "rejected": counted.rejected,
                "released": counted.released,
                "modified": counted.modified,
                "unsettled": counted.outstanding if counted.sender else len(counted.unsettled),
                "credit": counted.link_credit,
            }

    def _explained(self, taken: IncomingLink | OutgoingLink) -> dict[str, Any]:
        """What the number of a link means."""
        told = self._told(taken)
        name = told.pop("link")
        return {"number": taken.number, "name": name, **told, "from_router": taken.lane is not None}

    def _told(self, taken: IncomingLink | OutgoingLink) -> dict[str, Any]:
        """Which link it is, to those who read records."""
        named = taken.lane if taken.lane is not None else taken.address
        connection = taken.connection
        return {
            "link": taken.link.name[:NAME],
            "direction": "incoming" if isinstance(taken, IncomingLink) else "outgoing",
            "peer": self._core.id if connection.own else connection.peer.container_id[:NAME] or None,
            "address": (without_secret(named.name)[:NAME] or None) if named is not None else None,
            "tenant": named.tenant if named is not None else None,
        }

    # ----------------------------------------------------------------------------------------------------------- graph

    def graph_changed(self) -> None:
        """The graph may be another one."""
        mesh = self._core.mesh
        if mesh is None:
            return
        graph = mesh.topology.graph
        changed = graph.changes_since(self._generation) if self._generation >= 0 else set()
        if changed is None:
            self.whole_graph()
            return
        self._generation = graph.generation
        time = self._time()
        self._writer.take(
            Kind.EDGE,
            [
                {"time": time, "origin": origin, "neighbour": to, "cost": graph.cost(origin, to), "whole": False}
                for origin, to in sorted(changed)
            ],
        )

    def whole_graph(self) -> None:
        """The graph as it is: a segment was begun, or nobody knows any more what has changed."""
        mesh = self._core.mesh
        if mesh is None:
            return
        graph = mesh.topology.graph
        self._generation = graph.generation
        time = self._time()
        edges: list[dict[str, Any]] = []
        for origin in graph.routers():
            edges.append({"time": time, "origin": origin, "neighbour": None, "cost": None, "whole": True})
            for neighbour, cost in graph.neighbours(origin).items():
                edges.append({"time": time, "origin": origin, "neighbour": neighbour, "cost": cost, "whole": True})
        self._writer.take(Kind.EDGE, edges)

    def _time(self) -> int:
        """Nanoseconds since 1970."""
        return self._recorder.base + round(self._core.now * 1e9)


_NOTHING: Final = (0,) * 7


def outcome_of(state: bytes | None) -> Outcome:
    """How a delivery ended whose last state this is."""
    return _OUTCOMES.get(kernel.state_kind(state), Outcome.NONE)


def condition_of(state: bytes) -> bytes | None:
    """The condition of the error in an encoded `rejected`, as far as it is recorded; None: it gives none (§3.4.3)."""
    error = _first_field(state, 0)
    at = _first_field(state, error) if error and state[error] == 0 else 0
    if not at or state[at] not in _SYMBOLS:
        return None
    begin = at + _SYMBOLS[state[at]]
    return state[begin : min(kernel.skip(state, at, len(state)), begin + LONGEST_CONDITION)]


_SYMBOLS: Final = {0xA3: 2, 0xB3: 5}
"""Format codes of symbols, and how many octets stand before their text (§1.6.21)."""

_LISTS: Final = {0xC0: 3, 0xD0: 9}
"""Format codes of lists that are not empty, and how many octets stand before their first field (§1.6.22)."""


def _first_field(data: bytes, at: int) -> int:
    """Where the first field of the described list at `at` stands; 0: it has none. The list was checked before."""
    at = kernel.skip(data, at + 1, len(data))
    first = at + _LISTS.get(data[at], 1)
    return first if first < kernel.skip(data, at, len(data)) else 0


def _counter(tag: bytes) -> int:
    return int.from_bytes(tag[KEY_OCTETS - 6 : KEY_OCTETS], "big")
