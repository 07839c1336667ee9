"""Database exchange with new neighbours, reliable flooding of records, and requests for missing ones."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from amqpmesh.topology.adjacency import Adjacency
from amqpmesh.topology.database import NEW, Database, RecordStatus, Verdict
from amqpmesh.topology.messages import (
    MAX_CERTIFICATES,
    AgedRecord,
    ListVersion,
    Records,
    Request,
    RequestEntry,
    Summary,
    SummaryEntry,
)
from amqpmesh.topology.neighbour_state import MAX_RECORDS, ROOM, NeighbourState
from amqpmesh.topology.outbox import Outbox
from amqpmesh.topology.records import CERTIFICATE, Key, Kind, Record

CERTIFICATE_TIME: Final = 10.0
"""Seconds that a record waits for its certificate. By then it has been sent again."""

ENTRY_OCTETS: Final = 40
"""The most octets of a summary's row, besides the id and the key ids."""

MAX_ENTRIES: Final = 1024
"""Origins in one summary message."""

MAX_GAP_FACTOR: Final = 16
"""The greatest factor by which the wait before a repeated request for missing deltas grows."""


@dataclass(slots=True)
class UncertifiedRecords:
    """Records that name an unknown certificate, each with its time and sender."""

    records: list[tuple[AgedRecord, float, str]]
    asked_at: float


class Flooding:
    """The states of all neighbours, and the database that is kept equal with theirs.

    `on_stored` is called for each stored record, `on_own` for each record of this router that it did not make in this
    epoch, `on_loaded` when the database of a neighbour has arrived.
    """

    def __init__(
        self,
        outbox: Outbox,
        database: Database,
        on_stored: Callable[[Verdict, float], None],
        on_own: Callable[[Record, float], None],
        on_loaded: Callable[[float], None],
    ) -> None:
        self.neighbours: dict[str, NeighbourState] = {}
        self._outbox = outbox
        self._settings = outbox.settings
        self._timers = outbox.timers
        self._database = database
        self._on_stored = on_stored
        self._on_own = on_own
        self._on_loaded = on_loaded
        self._uncertified: dict[bytes, UncertifiedRecords] = {}
        self._gaps: dict[str, int] = {}  # by origin: the number of requests
        self._dirty: dict[NeighbourState, None] = {}  # something is queued, or can be sent now

    # Neighbours come and go

    def adjacency_up(self, adjacency: Adjacency, now: float) -> None:
        """Take an adjacency that is up: the first one to a neighbour starts the database exchange."""
        neighbour = self.neighbours.get(adjacency.router)
        if neighbour is None:
            neighbour = self.neighbours[adjacency.router] = NeighbourState(adjacency.router, adjacency.epoch)
            neighbour.adjacencies.append(adjacency)
            if any(each.exchange_started and not each.full for each in self.neighbours.values()):
                self._timers.set(("exchange", adjacency.router), now + self._settings.introduce_time)
            else:
                self.start_exchange(neighbour, now)
        else:
            neighbour.adjacencies.append(adjacency)

    def start_exchange(self, neighbour: NeighbourState, now: float) -> None:
        """Send a neighbour the summary of this router's database, so that it sends the records that are
        missing here."""
        neighbour.exchange_started = True
        self._send_summary(neighbour, answer=True)
        self._timers.cancel(("exchange", neighbour.router))
        self._timers.set(("load", neighbour.router), now + self._settings.load_time)

    def _start_other_exchanges(self, now: float) -> None:
        for neighbour in list(self.neighbours.values()):
            if not neighbour.exchange_started:
                self.start_exchange(neighbour, now)

    def adjacency_down(self, adjacency: Adjacency, now: float) -> None:
        """Handle an adjacency that is down: resend its unacknowledged records over another one to the same neighbour.

        Without another adjacency the neighbour is forgotten.
        """
        neighbour = self.neighbours[adjacency.router]
        neighbour.adjacencies.remove(adjacency)
        if neighbour.adjacencies:
            neighbour.resend_all()
            self._dirty[neighbour] = None
            return
        del self.neighbours[adjacency.router]
        for name in ("exchange", "load", "flood", "resend", "acknowledge"):
            self._timers.cancel((name, adjacency.router))
        if not neighbour.full:
            self._start_other_exchanges(now)

    def loading_over(self, neighbour: NeighbourState, now: float) -> None:
        """End the wait for a neighbour's database."""
        if not neighbour.summary_complete:
            self._send_summary(neighbour, answer=True)
            self._timers.set(("load", neighbour.router), now + self._settings.load_time)
        self._set_full(neighbour, now)

    def _set_full(self, neighbour: NeighbourState, now: float) -> None:
        if neighbour.summary_complete:
            self._timers.cancel(("load", neighbour.router))
        if not neighbour.full:
            neighbour.full = True
            neighbour.missing.clear()
            self._on_loaded(now)
            self._start_other_exchanges(now)

    # Summaries

    def _send_summary(self, neighbour: NeighbourState, *, answer: bool) -> None:
        for summary in self._summaries(answer=answer):
            self._outbox.send(neighbour.adjacencies[0], summary)

    def _summaries(self, *, answer: bool) -> Iterator[Summary]:
        database, area = self._database, self._settings.area
        lists = tuple(
            ListVersion(authority, stored.key.sequence) for authority, stored in database.revocation_lists.items()
        )
        rows: list[SummaryEntry] = []
        after, room = "", ROOM - 4096
        for name in sorted(database.origins):
            origin = database.origins[name]
            certificates = tuple(sorted(origin.key_ids())[:MAX_CERTIFICATES])
            row = SummaryEntry(name, *origin.pair, origin.log.sequence, certificates)
            octets = ENTRY_OCTETS + len(name) + sum(len(key_id) + 2 for key_id in certificates)
            if octets > room or len(rows) == MAX_ENTRIES:
                yield Summary(after, rows[-1].origin, tuple(rows), lists, answer, area)
                after, rows, room = rows[-1].origin, [], ROOM - 4096
            rows.append(row)
            room -= octets
        yield Summary(after, None, tuple(rows), lists, answer, area)

    def receive_summary(self, neighbour: NeighbourState, summary: Summary, now: float) -> None:
        """Send the records that the neighbour lacks of a range of origins, and note those that are missing here."""
        database = self._database
        theirs = {entry.origin: entry for entry in summary.held}
        lists = dict(summary.lists)
        newer = (
            stored
            for authority, stored in database.revocation_lists.items()
            if stored.key.sequence > lists.get(authority, -1)
        )
        self._queue(neighbour, [stored.key for stored in newer])
        for name in sorted(database.origins):
            if name > summary.after and (summary.through is None or name <= summary.through):
                self._queue(neighbour, self._missing_there(name, theirs.get(name)))
        if not neighbour.full:
            for entry in summary.held:
                # Records of a former epoch of this router are not waited for: it raises its epoch above them.
                if entry.origin == self._outbox.router or not self._is_missing_here(entry):
                    continue
                if len(neighbour.missing) < self._settings.max_origins:  # more would not be stored
                    neighbour.missing[entry.origin] = entry
        if summary.through is not None:
            return
        if summary.answer and neighbour.summary_complete:
            self._send_summary(neighbour, answer=False)  # the neighbour has forgotten the first one
        neighbour.summary_complete = True
        if not neighbour.exchange_started and not neighbour.missing:
            self.start_exchange(neighbour, now)
        self._set_full_if_loaded(neighbour, now)

    def _missing_there(self, name: str, entry: SummaryEntry | None) -> list[Key]:
        """Return the keys of an origin's records that a neighbour with this entry lacks."""
        database = self._database
        origin = database.origins[name]
        if entry is None or entry.epoch < origin.pair.epoch:
            return list(database.keys_of(origin))
        if entry.epoch > origin.pair.epoch:
            return []
        keys = [key for key in database.certificate_keys(origin) if bytes.fromhex(key.origin) not in entry.key_ids]
        if entry.links < origin.pair.sequence:
            keys.append(origin.link.key)
        if entry.addresses < origin.log.sequence:
            keys += origin.log.since(entry.addresses)
        return keys

    def _is_missing_here(self, entry: SummaryEntry) -> bool:
        """Tell whether a neighbour with this entry has records that are missing here."""
        origin = self._database.origins.get(entry.origin)
        if origin is None:
            dead = self._database.dead.get(entry.origin)
            return dead is None or (entry.epoch, entry.links) > dead
        here = origin.link.key
        if entry.epoch != here.epoch:
            return entry.epoch > here.epoch
        return entry.links > here.sequence or entry.addresses > origin.log.sequence

    # Records

    def receive_records(self, neighbour: NeighbourState, records: Records, now: float) -> None:
        """Store records, and acknowledge the message unless one of them has to be sent again."""
        if records.acknowledged:
            self.receive_acknowledgement(neighbour, records.acknowledged)
        handled = True
        key_of = self._database.key_of
        for carried in records.records:
            key = key_of(carried.body)  # most records of a flood are duplicates
            if key is not None:
                neighbour.remove_queued(key)
            elif not self._receive(carried, now, neighbour.router):
                handled = False
        if handled:
            neighbour.to_acknowledge.append(records.number)
            if len(neighbour.to_acknowledge) >= MAX_RECORDS:
                self.acknowledge(neighbour)
            else:
                self._timers.set_earlier(("acknowledge", neighbour.router), now + self._settings.acknowledge_time)

    def acknowledge(self, neighbour: NeighbourState) -> None:
        """Send the acknowledgements that no message with records has taken along."""
        while (message := neighbour.acknowledgement(self._settings.area)) is not None:
            self._outbox.send(neighbour.adjacencies[0], message)

    def _receive(self, carried: AgedRecord, now: float, sender: str) -> bool:
        """Judge and store a record. Returns: False: it has to be sent again."""
        verdict = self._database.accept(carried.signed, carried.age_ms / 1000, now)
        if verdict.status is NEW:
            self.flood(verdict, now, sender)
            return True
        neighbour = self.neighbours.get(sender)
        match verdict.status:
            case RecordStatus.KNOWN:
                assert verdict.key is not None
                if neighbour is not None:
                    neighbour.remove_queued(verdict.key)
            case RecordStatus.OWN:
                assert verdict.record is not None
                self._on_own(verdict.record, now)
            case RecordStatus.UNCERTIFIED:
                self._await_certificate(carried, now, sender, verdict.origin)
                return False
            case RecordStatus.EARLY:
                return False
            case RecordStatus.RATE_LIMITED:
                self._outbox.drop(verdict.origin, sender, verdict.reason, verdict.detail)
                return False
            case RecordStatus.LATE:
                self._outbox.dropped["late"] += 1
            case RecordStatus.DROPPED:
                self._outbox.drop(verdict.origin, sender, verdict.reason, verdict.detail)
                if neighbour is not None and verdict.origin in neighbour.missing:
                    del neighbour.missing[verdict.origin]
                    self._set_full_if_loaded(neighbour, now)
        return True

    def _set_full_if_loaded(self, neighbour: NeighbourState, now: float) -> None:
        if neighbour.summary_complete and not neighbour.missing:
            self._set_full(neighbour, now)

    def flood(self, verdict: Verdict, now: float, sender: str | None = None) -> None:
        """Flood a stored record to all neighbours, except its sender and those that have it."""
        key, origin = verdict.key, verdict.origin
        assert key is not None
        loaded = []
        for router, neighbour in self.neighbours.items():
            entry = neighbour.missing.get(origin) if neighbour.missing else None
            if router != sender and not (entry is not None and _covers_record(entry, key)):
                neighbour.queue(key)
                self._dirty[neighbour] = None
            if entry is not None and not self._is_missing_here(entry):
                del neighbour.missing[origin]
                loaded.append(neighbour)
        self._on_stored(verdict, now)
        for neighbour in loaded:
            self._set_full_if_loaded(neighbour, now)
        if key.kind is CERTIFICATE:
            self._certificate_arrived(bytes.fromhex(key.origin), now)
        elif origin:
            self._check_gap(origin, now)

    def _queue(self, neighbour: NeighbourState, keys: Iterable[Key]) -> None:
        for key in keys:
            neighbour.queue(key)
        self._dirty[neighbour] = None

    def schedule_sending(self, now: float) -> None:
        """Schedule the sending of queued records."""
        settings = self._settings
        for neighbour in self._dirty:
            neighbour.prune(self._database.get)
            if neighbour.adjacencies and neighbour.wants_to_send(settings.window):
                at = max(now, neighbour.flushed_at + settings.flood_time)
                self._timers.set_earlier(("flood", neighbour.router), at)
        self._dirty.clear()

    def send_queued(self, neighbour: NeighbourState, now: float) -> None:
        """Send queued records, as far as the window allows."""
        settings, outbox = self._settings, self._outbox
        neighbour.flushed_at = now
        while neighbour.wants_to_send(settings.window):
            message = neighbour.next_message(self._database.get, outbox.number + 1, settings.area, now)
            if message is None:
                break
            outbox.number += 1
            outbox.send(neighbour.adjacencies[0], message)
        if not neighbour.to_acknowledge:
            self._timers.cancel(("acknowledge", neighbour.router))
        self._set_resend_timer(neighbour)

    def resend(self, neighbour: NeighbourState, now: float) -> None:
        """Send again the records that were not acknowledged in time."""
        neighbour.resend_overdue(self._settings.retransmit_time, now)
        self._dirty[neighbour] = None
        self._set_resend_timer(neighbour)

    def _set_resend_timer(self, neighbour: NeighbourState) -> None:
        at = neighbour.resend_at(self._settings.retransmit_time)
        if at is None:
            self._timers.cancel(("resend", neighbour.router))
        else:
            self._timers.set(("resend", neighbour.router), at)

    def receive_acknowledgement(self, neighbour: NeighbourState, numbers: Iterable[int]) -> None:
        """Take acknowledgements of sent messages."""
        neighbour.acknowledged(numbers)
        self._dirty[neighbour] = None
        self._set_resend_timer(neighbour)

    # Missing records

    def receive_request(self, neighbour: NeighbourState, request: Request) -> None:
        """Send the requested records, as far as they are stored here."""
        database = self._database
        for wanted in request.wanted:
            if wanted.kind == Kind.CERTIFICATE:
                certificate = database.certificates.get(wanted.key_id)
                self._queue(neighbour, () if certificate is None else (certificate.key,))
            elif wanted.kind == Kind.ADDRESSES and (origin := database.origins.get(wanted.origin)) is not None:
                self._queue(neighbour, database.keys_of(origin))

    def _await_certificate(self, carried: AgedRecord, now: float, sender: str, origin: str) -> None:
        if sum(len(each.records) for each in self._uncertified.values()) >= self._settings.max_waiting:
            self._outbox.drop(origin, sender, "full", "too many records wait for their certificates")
            return
        waiting = self._uncertified.get(carried.key_id)
        if waiting is None:
            waiting = self._uncertified[carried.key_id] = UncertifiedRecords([], float("-inf"))
        waiting.records.append((carried, now, sender))
        self._timers.set_earlier(("waiting",), now + CERTIFICATE_TIME)
        if now - waiting.asked_at >= self._settings.retransmit_time:
            waiting.asked_at = now
            self._request(sender, RequestEntry(Kind.CERTIFICATE, "", carried.key_id))

    def _certificate_arrived(self, key_id: bytes, now: float) -> None:
        waiting = self._uncertified.pop(key_id, None)
        for carried, since, sender in () if waiting is None else waiting.records:
            self._receive(carried._replace(age_ms=carried.age_ms + round((now - since) * 1000)), now, sender)

    def forget_uncertified(self) -> None:
        """Forget all records that wait for a certificate. Neighbours send them again."""
        self._uncertified.clear()

    def _check_gap(self, name: str, now: float) -> None:
        """Compare the address log of an origin with its link state, and request the deltas that stay missing for a
        while."""
        if not self._is_behind(name):
            if self._gaps.pop(name, None) is not None:
                self._timers.cancel(("gap", name))
        elif name not in self._gaps:
            self._gaps[name] = 0
            self._timers.set(("gap", name), now + self._settings.gap_time)

    def _is_behind(self, name: str) -> bool:
        origin = self._database.origins.get(name)
        return origin is not None and origin.log.is_behind(origin.state.addresses)

    def request_missing(self, name: str, now: float) -> None:
        """Request an origin's addresses, from one neighbour after the other, with growing waits."""
        if not self._is_behind(name) or not self.neighbours:
            del self._gaps[name]
            return
        self._gaps[name] += 1
        asked = self._gaps[name]
        routers = sorted(self.neighbours)
        self._request(routers[asked % len(routers)], RequestEntry(Kind.ADDRESSES, name, b""))
        self._timers.set(("gap", name), now + self._settings.gap_time * min(2**asked, MAX_GAP_FACTOR))

    def _request(self, sender: str, wanted: RequestEntry) -> None:
        neighbour = self.neighbours.get(sender)
        if neighbour is not None:
            self._outbox.send(neighbour.adjacencies[0], Request((wanted,), self._settings.area))


def _covers_record(entry: SummaryEntry, key: Key) -> bool:
    """Tell whether a neighbour with this entry has a record."""
    if key.kind is Kind.CERTIFICATE:
        return bytes.fromhex(key.origin) in entry.key_ids
    return entry.epoch == key.epoch and key.sequence <= (
        entry.links if key.kind is Kind.LINK_STATE else entry.addresses
    )
