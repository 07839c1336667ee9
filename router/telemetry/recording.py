"""Buffers of telemetry records about links, deliveries and the graph, until the writer takes them.

The kernel itself records the deliveries that it relays on the fast path; this module records the others. Nothing waits
for a buffer: records for which there is no room are lost, and counted.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final, Protocol

from amqpmesh.policies.access import is_published
from amqpmesh.router import kernel
from amqpmesh.router.address_syntax import without_secret
from amqpmesh.router.amqp.link import Link, Receiver
from amqpmesh.router.amqp.standard.definitions import LinkCondition
from amqpmesh.router.model.foreign_links import name_of, tenant_of
from amqpmesh.router.model.lane import Keys
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.model.node import Node, node_of
from amqpmesh.router.telemetry.schema import KEY_OCTETS, Flag, Happening, Kind, Outcome

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterator, Mapping

    from amqpmesh.router.amqp.standard.definitions import Error
    from amqpmesh.router.config.observability import TelemetryConfig
    from amqpmesh.router.kernel import KernelRouter, Leg, Recorder, Relay
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.topology.linkstate import Topology

ALL: Final = 2**32
"""The number of keys that a sample is a share of."""

NUMBERED: Final = 10_000
"""Addresses of anonymous senders' messages, and conditions of rejections, with a number at most; then the numbering
restarts.
"""

NAME: Final = 256
"""Characters of a recorded name at most: peers choose names, fifty thousand records may wait, and each has
four names.
"""

LONGEST_CONDITION: Final = 128
"""Octets of a recorded condition at most: a peer can invent any, and the standard's are shorter."""

_OUTCOMES: Final = {
    kernel.ACCEPTED: Outcome.ACCEPTED,
    kernel.REJECTED: Outcome.REJECTED,
    kernel.RELEASED: Outcome.RELEASED,
    kernel.MODIFIED: Outcome.MODIFIED,
}


class Writer(Protocol):
    """A writer of records that never makes its caller wait."""

    def take(self, kind: Kind, records: list[dict[str, Any]]) -> None:
        """Take records of one kind, in order."""

    def take_hops(self, words: array[int], used: int, first: int, count: int) -> array[int] | None:
        """Take hop records. Args: used: words. first: the number of the first record, lost ones included.

        Returns: a buffer for the next ones; None: there is no room now.
        """

    def gone(self, number: int) -> None:
        """Forget the number of a link or address, after the records that are under way."""

    def room(self) -> array[int] | None:
        """Return a buffer; None: there is no room now."""


class Recording:
    """The recording of one router."""

    def __init__(
        self,
        router: str,
        kernel_router: KernelRouter,
        recorder: Recorder,
        config: TelemetryConfig,
        writer: Writer,
        *,
        epoch: int,
        topology: Topology | None,
        next_number: Callable[[], int],
    ) -> None:
        """Args: epoch: for the keys of a router in no mesh; milliseconds since 1970. next_number: of a link."""
        self._id = router
        self._kernel = kernel_router
        self._topology = topology
        self._next_number = next_number
        self._recorder = recorder
        self._writer = writer
        self.change(config)
        kernel_router.on_waited = self.may_have_waited  # type: ignore[assignment]  # of records of links
        self._words = writer.room()
        #: Numbers of addresses that anonymous senders send to, and of conditions of rejections.
        self._numbers: dict[Node | bytes, int] = {}
        #: The last recorded counts of links, by the links' numbers.
        self._counted: dict[int, tuple[tuple[int, ...], int | None]] = {}
        #: Ended links that were explained again, for hop records that are not handed on yet.
        self._explained_again: set[int] = set()
        #: Messages with records that were dropped.
        self.unpublished = 0
        self._generation = -1
        recorder.on_full = self.flush
        recorder.on_rejected = self.condition
        recorder.on_anonymous = self._address_of
        recorder.on_ended = self._explain_again
        recorder.give(self._words)
        if not kernel_router.key_prefix:
            Keys(router, kernel_router).begin(epoch)

    def begin(self) -> None:
        """Record deliveries from now on, too."""
        self._kernel.recorder = self._recorder

    def end(self) -> None:
        """Record nothing more."""
        self.flush()
        self._kernel.recorder = self._kernel.on_waited = None
        self._kernel.credit_wait = inf

    def change(self, config: TelemetryConfig) -> None:
        """Record another share of the deliveries from now on, and other times without credit."""
        #: Seconds: a longer time without credit is recorded.
        self.credit_wait = self._kernel.credit_wait = config.credit_wait
        self._recorder.threshold = round(config.sample * ALL)

    # ------------------------------------------------------------------------------------------------------ deliveries

    def flush(self) -> None:
        """Hand on the hop records."""
        recorder = self._recorder
        if self._words is None:
            self._words = self._writer.room()
        elif recorder.used:
            self._words = self._writer.take_hops(
                self._words, recorder.used, recorder.first, recorder.stored - recorder.first
            )
            self._explained_again.clear()
        else:
            return
        recorder.give(self._words)

    def sent(self, leg: Leg) -> None:
        """Note that the last frame of a leg is written."""
        self._recorder.times = 0
        leg.sent_at = self._recorder.time()

    def relay_ended(self, relay: Relay) -> None:
        """Record each leg of a relay that has ended."""
        if relay.legs:
            for leg in relay.legs:
                self.attempt_ended(relay, leg)
        elif not relay.recorded:
            self.not_sent(relay, Outcome.ABORTED, None)

    def attempt_ended(self, relay: Relay, leg: Leg) -> None:
        """Record a leg for which nothing more follows, or whose delivery is sent again."""
        delivery = leg.delivery
        outgoing = leg.outgoing
        if delivery is None or not leg.started or not isinstance(outgoing, OutgoingLink):
            return
        key = self._key(relay, delivery.tag if outgoing.lane is not None else None)
        if key is None:
            return
        # Of pre-settled deliveries, routers only tell each other that they were sent.
        outcome = Outcome.NONE if relay.presettled else outcome_of(leg.outcome)
        if outcome is Outcome.NONE and leg.aborting:
            outcome = Outcome.ABORTED
        if outgoing.gone:
            self._explain_again(outgoing)
        flags = Flag.COPY if leg.copy else 0
        self._store(
            relay, key, flags, outcome, leg.outcome, outgoing.number, delivery.size, leg.sent_at, leg.outcome_at
        )

    def attempt_failed(self, relay: Relay, leg: Leg) -> None:
        """Record a failed attempt, which another with its own key will follow.

        Finished copies belong to the failed attempt.
        """
        for each in relay.legs:
            if each is leg or (each.copy and each.done):
                self.attempt_ended(relay, each)
        relay.counter = 0

    def not_sent(self, relay: Relay, outcome: Outcome, state: bytes | None) -> None:
        """Record a delivery that goes to no receiver. Args: state: the outcome for its sender."""
        key = self._key(relay, None)
        relay.recorded = True
        if key is not None:
            size = relay.incoming.size if relay.incoming is not None else 0
            self._store(relay, key, 0, outcome, state, 0, size, -1.0, self._kernel.now)

    def _key(self, relay: Relay, tag: bytes | None) -> tuple[bytes, int, int, int] | None:
        """Return a key's first octets, its counter, the hops left, and flags; None: the sample does not contain the
        key.

        Args: tag: of the delivery on the outgoing lane.
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
            flow_state = self._kernel
            flow_state.key_count += 1
            relay.counter = flow_state.key_count
        if relay.attempts <= 1:
            relay.first = relay.counter
        if not self._recorder.takes(relay.counter):
            return None
        return self._kernel.key_prefix, relay.counter, tag[-1] if tag else 0, Flag.BEGAN

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
            incoming = source.endpoint.flow_state.number
            if source not in source.connection.incoming:
                self._explain_again(source)
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
        """Return the number of a delivery's address; 0: its link has that address."""
        source = relay.source
        node = node_of(relay)
        if node is None or (isinstance(source, IncomingLink) and source.node is not None):
            return 0
        return self._number_of(node)

    def _address_of(self, outgoing: object) -> int:
        """Return the number of the address that deliveries leave from by a link."""
        assert isinstance(outgoing, OutgoingLink)
        return self._number_of(outgoing.node)

    def _number_of(self, node: Node) -> int:
        number = self._numbers.get(node)
        if number is None:
            place = {"address": without_secret(node.name)[:NAME] or None, "tenant": node.tenant}
            number = self._assign_number(node, {"name": "", "direction": "address", **place})
        return number

    def condition(self, state: bytes) -> int:
        """Return the number of the condition in an encoded `rejected`; 0: it has none (§3.4.3)."""
        condition = condition_of(state)
        if condition is None:
            return 0
        number = self._numbers.get(condition)
        if number is None:
            name = condition.decode("ascii", "replace")
            told = {"name": name, "direction": "condition", "address": None, "tenant": None}
            number = self._assign_number(condition, told)
        return number

    def _assign_number(self, key: Node | bytes, told: dict[str, Any]) -> int:
        """Return a new number, and record its meaning `told`."""
        if len(self._numbers) >= NUMBERED:
            for each in self._numbers.values():
                self._writer.gone(each)
            self._numbers.clear()
        number = self._numbers[key] = self._next_number()
        self._writer.take(Kind.LINK, [{"number": number, "peer": None, "from_router": False, **told}])
        return number

    # ----------------------------------------------------------------------------------------------------------- links

    def up(self, link: IncomingLink | OutgoingLink) -> None:
        """Record that a link was attached."""
        self.introduce(link)
        self._record_event(Happening.UP, self._link_fields(link))

    def introduce(self, link: IncomingLink | OutgoingLink) -> None:
        """Record the number of a link, also of one that is there before its recording."""
        told = self._explanation(link)
        if is_published(told["address"] or ""):
            link.endpoint.flow_state.number = kernel.UNRECORDED
        else:
            self._writer.take(Kind.LINK, [told])

    def _explain_again(self, gone: IncomingLink | OutgoingLink) -> None:
        """Explain an ended link's number again: its deliveries lasted so long that the number may be forgotten."""
        if gone.number not in self._explained_again:
            self._explained_again.add(gone.number)
            self._writer.take(Kind.LINK, [self._explanation(gone)])
            self._writer.gone(gone.number)

    def down(self, link: IncomingLink | OutgoingLink) -> None:
        """Record that a link has ended."""
        self._record_event(Happening.DOWN, self._link_fields(link))
        self._writer.gone(link.number)

    def stolen(self, link: IncomingLink | OutgoingLink) -> None:
        """Record that a link was attached again on another connection, and is about to end."""
        self._record_event(Happening.STOLEN, self._link_fields(link))

    def suspended(self, link: IncomingLink | OutgoingLink, happening: Happening) -> None:
        """Record that the end of a link is kept for its peer, or is kept no more. Args: happening: which of these."""
        self._record_event(happening, self._link_fields(link))

    def refused(self, endpoint: Link, record: ConnectionRecord, error: Error) -> None:
        """Record that a link was not attached."""
        redirected = error.condition == LinkCondition.REDIRECT
        direction = "incoming" if isinstance(endpoint, Receiver) else "outgoing"
        told = {"link": endpoint.name[:NAME], "direction": direction, "peer": record.peer.container_id[:NAME] or None}
        happening = Happening.REDIRECTED if redirected else Happening.REFUSED
        self._record_event(happening, {**told, "address": None, "tenant": None}, error=str(error.condition))

    def may_have_waited(self, link: IncomingLink | OutgoingLink) -> None:
        """Record that a link had no credit for long, when it gets credit again."""
        since = link.zero_credit_since
        if since is not None and link.endpoint.flow_state.link_credit:
            waited = self._kernel.now - since
            if waited >= self.credit_wait:
                self._record_event(Happening.CREDIT, self._link_fields(link), waited=round(waited * 1e9))

    def _record_event(self, happening: Happening, told: Mapping[str, Any], **more: Any) -> None:
        if is_published(told["address"] or ""):
            return
        event = {"time": self._time(), "happening": happening.value, **told, "error": None, "waited": None, **more}
        self._writer.take(Kind.EVENT, [event])

    def counts(self, record: ConnectionRecord) -> None:
        """Record the counters of a connection's links that have changed since the last record."""
        self._writer.take(
            Kind.COUNTS, [*self._counts((*record.incoming, *record.outgoing, *record.detached_unsettled))]
        )

    def last_counts(self, link: IncomingLink | OutgoingLink) -> None:
        """Record the final counters of an ended link."""
        if link.endpoint.flow_state.deliveries:
            self._writer.take(Kind.COUNTS, [*self._counts((link,))])
        self._counted.pop(link.number, None)

    def _counts(self, links: tuple[IncomingLink | OutgoingLink, ...]) -> Iterator[dict[str, Any]]:
        for link in links:
            counted = link.endpoint.flow_state
            by_outcome = (counted.accepted, counted.rejected, counted.released, counted.modified)
            now = (counted.deliveries, counted.octets, counted.presettled, *by_outcome)
            time = self._time()
            before, since = self._counted.get(link.number, (_NOTHING, None))
            self._counted[link.number] = now, time
            if now == before or link.endpoint.flow_state.number == kernel.UNRECORDED:
                continue
            yield {
                "time": time,
                "since": since,
                "number": link.number,
                **self._link_fields(link),
                "from_router": link.lane is not None,
                "deliveries": counted.deliveries,
                "octets": counted.octets,
                "presettled": counted.presettled,
                "accepted": counted.accepted,
                "rejected": counted.rejected,
                "released": counted.released,
                "modified": counted.modified,
                "unsettled": link.unsettled,
                "credit": counted.link_credit,
            }

    def _explanation(self, link: IncomingLink | OutgoingLink) -> dict[str, Any]:
        """Return the record that explains a link's number: the link's name, and the fields that identify it."""
        told = self._link_fields(link)
        name = told.pop("link")
        return {"number": link.number, "name": name, **told, "from_router": link.lane is not None}

    def _link_fields(self, link: IncomingLink | OutgoingLink) -> dict[str, Any]:
        """Return the fields that identify a link to readers."""
        lane, connection = link.lane, link.connection
        address, tenant = (name_of(link), tenant_of(link)) if lane is None else (lane.name, lane.tenant)
        return {
            "link": link.endpoint.name[:NAME],
            "direction": str(link.direction),
            "peer": self._id if connection.own else connection.peer.container_id[:NAME] or None,
            "address": None if address is None else without_secret(address)[:NAME] or None,
            "tenant": tenant,
        }

    # ----------------------------------------------------------------------------------------------------------- graph

    def graph_changed(self) -> None:
        """Record the changes of the graph since the last record."""
        if self._topology is None:
            return
        graph = self._topology.graph
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
        """Record the whole graph: at the beginning of a segment, or when the changes are no longer known."""
        if self._topology is None:
            return
        graph = self._topology.graph
        self._generation = graph.generation
        time = self._time()
        edges: list[dict[str, Any]] = []
        for origin in graph.routers():
            edges.append({"time": time, "origin": origin, "neighbour": None, "cost": None, "whole": True})
            for neighbour, cost in graph.neighbours(origin).items():
                edges.append({"time": time, "origin": origin, "neighbour": neighbour, "cost": cost, "whole": True})
        self._writer.take(Kind.EDGE, edges)

    def _time(self) -> int:
        """Return nanoseconds since 1970."""
        return self._recorder.base + round(self._kernel.now * 1e9)


_NOTHING: Final = (0,) * 7


def outcome_of(state: bytes | None) -> Outcome:
    """Return the outcome of a delivery with this last state."""
    return _OUTCOMES.get(kernel.state_kind(state), Outcome.NONE)


def condition_of(state: bytes) -> bytes | None:
    """Return the condition of the error in an encoded `rejected`, cut to the recorded length; None: it has none
    (§3.4.3).
    """
    error = _first_field(state, 0)
    at = _first_field(state, error) if error and state[error] == 0 else 0
    if not at or state[at] not in _SYMBOLS:
        return None
    begin = at + _SYMBOLS[state[at]]
    return state[begin : min(kernel.skip(state, at, len(state)), begin + LONGEST_CONDITION)]


_SYMBOLS: Final = {0xA3: 2, 0xB3: 5}
"""Format codes of symbols, with the octets before their text (§1.6.21)."""

_LISTS: Final = {0xC0: 3, 0xD0: 9}
"""Format codes of non-empty lists, with the octets before their first field (§1.6.22)."""


def _first_field(data: bytes, at: int) -> int:
    """Return the offset of the first field of the described list at `at`; 0: it has none. The list was
    checked before.
    """
    at = kernel.skip(data, at + 1, len(data))
    first = at + _LISTS.get(data[at], 1)
    return first if first < kernel.skip(data, at, len(data)) else 0


def _counter(tag: bytes) -> int:
    return int.from_bytes(tag[KEY_OCTETS - 6 : KEY_OCTETS], "big")
