"""Databases made equal, and kept so: summaries when a neighbour comes, then floods, requests for what is missing."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from amqpmesh.topology.adjacency import Adjacency
from amqpmesh.topology.database import NEW, Database, Outcome, Verdict
from amqpmesh.topology.flooding import MAX_RECORDS, ROOM, Conversation
from amqpmesh.topology.messages import (
    MAX_CERTIFICATES,
    Carried,
    Held,
    Listed,
    Records,
    Request,
    Summary,
    Wanted,
)
from amqpmesh.topology.outbox import Outbox
from amqpmesh.topology.records import CERTIFICATE, Key, Kind, Record

WAITING_TIME: Final = 10.0
"""Seconds that a record waits for its certificate; by then it has been sent again."""

HELD_OCTETS: Final = 40
"""What a row of a summary takes besides the id and the key ids, at most."""

MAX_HELD: Final = 1024
"""Origins in one summary message."""

MAX_PATIENCE: Final = 16
"""How many times longer than at first a gap waits before it is asked about again."""


@dataclass(slots=True)
class Waiting:
    """Records that name a certificate that is not known, and who has sent them."""

    records: list[tuple[Carried, float, str]]
    asked_at: float


class Exchange:
    """The conversations with all neighbours, and the database that they keep.

    `took` is called for each record that was taken in, `own` for each of this router's that it has not said in this
    life, `complete` when a neighbour's database has come.
    """

    def __init__(
        self,
        outbox: Outbox,
        database: Database,
        took: Callable[[Verdict, float], None],
        own: Callable[[Record, float], None],
        complete: Callable[[float], None],
    ) -> None:
        self.conversations: dict[str, Conversation] = {}
        self._outbox = outbox
        self._settings = outbox.settings
        self._timers = outbox.timers
        self._database = database
        self._took = took
        self._own = own
        self._complete = complete
        self._waiting: dict[bytes, Waiting] = {}
        self._gaps: dict[str, int] = {}  # by origin, how often it was asked
        self._touched: dict[Conversation, None] = {}  # something is queued, or may be sent now

    # Neighbours come and go

    def came_up(self, adjacency: Adjacency, now: float) -> None:
        """An adjacency is up."""
        conversation = self.conversations.get(adjacency.router)
        if conversation is None:
            conversation = self.conversations[adjacency.router] = Conversation(adjacency.router, adjacency.epoch)
            conversation.adjacencies.append(adjacency)
            if any(each.introduced and not each.full for each in self.conversations.values()):
                self._timers.set(("introduce", adjacency.router), now + self._settings.introduce_time)
            else:
                self.introduce(conversation, now)
        else:
            conversation.adjacencies.append(adjacency)

    def introduce(self, conversation: Conversation, now: float) -> None:
        """Tell a neighbour what is here, so that it sends the rest."""
        conversation.introduced = True
        self._send_summary(conversation, answer=True)
        self._timers.cancel(("introduce", conversation.router))
        self._timers.set(("load", conversation.router), now + self._settings.load_time)

    def _introduce_others(self, now: float) -> None:
        for conversation in list(self.conversations.values()):
            if not conversation.introduced:
                self.introduce(conversation, now)

    def went_down(self, adjacency: Adjacency, now: float) -> None:
        """An adjacency is not up any more; what was not acknowledged on it goes by another, if there is one."""
        conversation = self.conversations[adjacency.router]
        conversation.adjacencies.remove(adjacency)
        if conversation.adjacencies:
            conversation.resend_all()
            self._touched[conversation] = None
            return
        del self.conversations[adjacency.router]
        for name in ("introduce", "load", "flood", "resend", "acknowledge"):
            self._timers.cancel((name, adjacency.router))
        if not conversation.full:
            self._introduce_others(now)

    def loaded(self, conversation: Conversation, now: float) -> None:
        """The time for the neighbour's database is over."""
        if not conversation.heard_all:
            self._send_summary(conversation, answer=True)
            self._timers.set(("load", conversation.router), now + self._settings.load_time)
        self._fill(conversation, now)

    def _fill(self, conversation: Conversation, now: float) -> None:
        if conversation.heard_all:
            self._timers.cancel(("load", conversation.router))
        if not conversation.full:
            conversation.full = True
            conversation.missing.clear()
            self._complete(now)
            self._introduce_others(now)

    # Summaries

    def _send_summary(self, conversation: Conversation, *, answer: bool) -> None:
        for summary in self._summaries(answer=answer):
            self._outbox.send(conversation.adjacencies[0], summary)

    def _summaries(self, *, answer: bool) -> Iterator[Summary]:
        database, area = self._database, self._settings.area
        lists = tuple(Listed(authority, stored.key.sequence) for authority, stored in database.lists.items())
        rows: list[Held] = []
        after, room = "", ROOM - 4096
        for name in sorted(database.origins):
            origin = database.origins[name]
            certificates = tuple(sorted(origin.key_ids())[:MAX_CERTIFICATES])
            row = Held(name, *origin.pair, origin.log.sequence, certificates)
            octets = HELD_OCTETS + len(name) + sum(len(key_id) + 2 for key_id in certificates)
            if octets > room or len(rows) == MAX_HELD:
                yield Summary(after, rows[-1].origin, tuple(rows), lists, answer, area)
                after, rows, room = rows[-1].origin, [], ROOM - 4096
            rows.append(row)
            room -= octets
        yield Summary(after, None, tuple(rows), lists, answer, area)

    def hear_summary(self, conversation: Conversation, summary: Summary, now: float) -> None:
        """Send what the neighbour lacks of a range of origins, and note what it has that is not here yet."""
        database = self._database
        theirs = {held.origin: held for held in summary.held}
        lists = dict(summary.lists)
        newer = (
            stored for authority, stored in database.lists.items() if stored.key.sequence > lists.get(authority, -1)
        )
        self._offer(conversation, [stored.key for stored in newer])
        for name in sorted(database.origins):
            if name > summary.after and (summary.through is None or name <= summary.through):
                self._offer(conversation, self._lacking(name, theirs.get(name)))
        if not conversation.full:
            for held in summary.held:
                # What it has of this router's life before is answered by a jump above that, and not waited for.
                if held.origin == self._outbox.router or not self._lacks(held):
                    continue
                if len(conversation.missing) < self._settings.max_origins:  # no more would be taken
                    conversation.missing[held.origin] = held
        if summary.through is not None:
            return
        if summary.answer and conversation.heard_all:
            self._send_summary(conversation, answer=False)  # the one that was sent first has been forgotten there
        conversation.heard_all = True
        if not conversation.introduced and not conversation.missing:
            self.introduce(conversation, now)
        self._fill_if_complete(conversation, now)

    def _lacking(self, name: str, held: Held | None) -> list[Key]:
        """What somebody lacks of an origin."""
        database = self._database
        origin = database.origins[name]
        if held is None or held.epoch < origin.pair.epoch:
            return list(database.keys_of(origin))
        if held.epoch > origin.pair.epoch:
            return []
        keys = [key for key in database.certificate_keys(origin) if bytes.fromhex(key.origin) not in held.key_ids]
        if held.links < origin.pair.sequence:
            keys.append(origin.link.key)
        if held.addresses < origin.log.sequence:
            keys += origin.log.since(held.addresses)
        return keys

    def _lacks(self, held: Held) -> bool:
        """Whether somebody has what is not here."""
        origin = self._database.origins.get(held.origin)
        if origin is None:
            dead = self._database.dead.get(held.origin)
            return dead is None or (held.epoch, held.links) > dead
        here = origin.link.key
        if held.epoch != here.epoch:
            return held.epoch > here.epoch
        return held.links > here.sequence or held.addresses > origin.log.sequence

    # Records

    def hear_records(self, conversation: Conversation, records: Records, now: float) -> None:
        """Take in records; they are acknowledged unless one of them is to be sent again."""
        if records.acknowledged:
            self.hear_acknowledgement(conversation, records.acknowledged)
        settled = True
        held = self._database.held
        for carried in records.records:
            key = held(carried.body)  # most of what comes in a flood has come before
            if key is not None:
                conversation.has(key)
            elif not self._hear(carried, now, conversation.router):
                settled = False
        if settled:
            conversation.to_acknowledge.append(records.number)
            if len(conversation.to_acknowledge) >= MAX_RECORDS:
                self.acknowledge(conversation)
            else:
                self._timers.set_earlier(("acknowledge", conversation.router), now + self._settings.acknowledge_time)

    def acknowledge(self, conversation: Conversation) -> None:
        """Send the acknowledgements that nothing has taken along."""
        while (message := conversation.acknowledgement(self._settings.area)) is not None:
            self._outbox.send(conversation.adjacencies[0], message)

    def _hear(self, carried: Carried, now: float, neighbour: str) -> bool:
        """Take in a record; whether it has been dealt with."""
        verdict = self._database.accept(carried.signed, carried.age_ms / 1000, now)
        if verdict.outcome is NEW:
            self.flood(verdict, now, neighbour)
            return True
        conversation = self.conversations.get(neighbour)
        match verdict.outcome:
            case Outcome.HELD:
                assert verdict.key is not None
                if conversation is not None:
                    conversation.has(verdict.key)
            case Outcome.OWN:
                assert verdict.record is not None
                self._own(verdict.record, now)
            case Outcome.WAITING:
                self._wait(carried, now, neighbour, verdict.origin)
                return False
            case Outcome.EARLY:
                return False
            case Outcome.PACED:
                self._outbox.drop(verdict.origin, neighbour, verdict.reason, verdict.detail)
                return False
            case Outcome.LATE:
                self._outbox.dropped["late"] += 1
            case Outcome.DROPPED:
                self._outbox.drop(verdict.origin, neighbour, verdict.reason, verdict.detail)
                if conversation is not None and verdict.origin in conversation.missing:
                    del conversation.missing[verdict.origin]
                    self._fill_if_complete(conversation, now)
        return True

    def _fill_if_complete(self, conversation: Conversation, now: float) -> None:
        if conversation.heard_all and not conversation.missing:
            self._fill(conversation, now)

    def flood(self, verdict: Verdict, now: float, neighbour: str | None = None) -> None:
        """A record was taken in: everybody gets it but the neighbour that it came from, and those who have it."""
        key, origin = verdict.key, verdict.origin
        assert key is not None
        complete = []
        for router, conversation in self.conversations.items():
            held = conversation.missing.get(origin) if conversation.missing else None
            if router != neighbour and not (held is not None and _holds(held, key)):
                conversation.offer(key)
                self._touched[conversation] = None
            if held is not None and not self._lacks(held):
                del conversation.missing[origin]
                complete.append(conversation)
        self._took(verdict, now)
        for conversation in complete:
            self._fill_if_complete(conversation, now)
        if key.kind is CERTIFICATE:
            self._released(bytes.fromhex(key.origin), now)
        elif origin:
            self._look_for_gap(origin, now)

    def _offer(self, conversation: Conversation, keys: Iterable[Key]) -> None:
        for key in keys:
            conversation.offer(key)
        self._touched[conversation] = None

    def pace(self, now: float) -> None:
        """See to it that what is queued leaves, and leaves again if it is lost."""
        settings = self._settings
        for conversation in self._touched:
            conversation.prune(self._database.get)
            if conversation.adjacencies and conversation.wants_to_send(settings.window):
                at = max(now, conversation.flushed_at + settings.flood_time)
                self._timers.set_earlier(("flood", conversation.router), at)
        self._touched.clear()

    def send_queued(self, conversation: Conversation, now: float) -> None:
        """Send what the window allows."""
        settings, outbox = self._settings, self._outbox
        conversation.flushed_at = now
        while conversation.wants_to_send(settings.window):
            message = conversation.next_message(self._database.get, outbox.number + 1, settings.area, now)
            if message is None:
                break
            outbox.number += 1
            outbox.send(conversation.adjacencies[0], message)
        if not conversation.to_acknowledge:
            self._timers.cancel(("acknowledge", conversation.router))
        self._watch(conversation)

    def resend(self, conversation: Conversation, now: float) -> None:
        """What was not acknowledged in time leaves again."""
        conversation.resend_overdue(self._settings.retransmit_time, now)
        self._touched[conversation] = None
        self._watch(conversation)

    def _watch(self, conversation: Conversation) -> None:
        at = conversation.resend_at(self._settings.retransmit_time)
        if at is None:
            self._timers.cancel(("resend", conversation.router))
        else:
            self._timers.set(("resend", conversation.router), at)

    def hear_acknowledgement(self, conversation: Conversation, numbers: Iterable[int]) -> None:
        """Records have arrived."""
        conversation.acknowledged(numbers)
        self._touched[conversation] = None
        self._watch(conversation)

    # What is missing

    def hear_request(self, conversation: Conversation, request: Request) -> None:
        """Send what was asked for, as far as it is here."""
        database = self._database
        for wanted in request.wanted:
            if wanted.kind == Kind.CERTIFICATE:
                certificate = database.certificates.get(wanted.key_id)
                self._offer(conversation, () if certificate is None else (certificate.key,))
            elif wanted.kind == Kind.ADDRESSES and (origin := database.origins.get(wanted.origin)) is not None:
                self._offer(conversation, database.keys_of(origin))

    def _wait(self, carried: Carried, now: float, neighbour: str, origin: str) -> None:
        if sum(len(each.records) for each in self._waiting.values()) >= self._settings.max_waiting:
            self._outbox.drop(origin, neighbour, "full", "too many records wait for their certificates")
            return
        waiting = self._waiting.get(carried.key_id)
        if waiting is None:
            waiting = self._waiting[carried.key_id] = Waiting([], float("-inf"))
        waiting.records.append((carried, now, neighbour))
        self._timers.set_earlier(("waiting",), now + WAITING_TIME)
        if now - waiting.asked_at >= self._settings.retransmit_time:
            waiting.asked_at = now
            self._ask(neighbour, Wanted(Kind.CERTIFICATE, "", carried.key_id))

    def _released(self, key_id: bytes, now: float) -> None:
        waiting = self._waiting.pop(key_id, None)
        for carried, since, neighbour in () if waiting is None else waiting.records:
            self._hear(carried._replace(age_ms=carried.age_ms + round((now - since) * 1000)), now, neighbour)

    def wait_no_longer(self) -> None:
        """Forget what waits: what is still wanted will come again."""
        self._waiting.clear()

    def _look_for_gap(self, name: str, now: float) -> None:
        """An origin's link state says how far its addresses are: who has less waits a little, then asks."""
        if not self._is_behind(name):
            if self._gaps.pop(name, None) is not None:
                self._timers.cancel(("gap", name))
        elif name not in self._gaps:
            self._gaps[name] = 0
            self._timers.set(("gap", name), now + self._settings.gap_time)

    def _is_behind(self, name: str) -> bool:
        origin = self._database.origins.get(name)
        return origin is not None and origin.log.is_behind(origin.state.addresses)

    def ask_for_gap(self, name: str, now: float) -> None:
        """Ask one neighbour after the other, more and more seldom."""
        if not self._is_behind(name) or not self.conversations:
            del self._gaps[name]
            return
        self._gaps[name] += 1
        asked = self._gaps[name]
        routers = sorted(self.conversations)
        self._ask(routers[asked % len(routers)], Wanted(Kind.ADDRESSES, name, b""))
        self._timers.set(("gap", name), now + self._settings.gap_time * min(2**asked, MAX_PATIENCE))

    def _ask(self, neighbour: str, wanted: Wanted) -> None:
        conversation = self.conversations.get(neighbour)
        if conversation is not None:
            self._outbox.send(conversation.adjacencies[0], Request((wanted,), self._settings.area))


def _holds(held: Held, key: Key) -> bool:
    """Whether somebody who has that of an origin has a record of it."""
    if key.kind is Kind.CERTIFICATE:
        return bytes.fromhex(key.origin) in held.key_ids
    return held.epoch == key.epoch and key.sequence <= (held.links if key.kind is Kind.LINK_STATE else held.addresses)
