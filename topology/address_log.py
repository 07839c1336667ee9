"""The address records of one origin: a full state in parts, and the deltas since.

A delta changes the state of the sequence before it, a full state takes the place of everything up to its sequence.
Sequence 0 is the empty state, which needs no record. Deltas that come too early wait; a full state counts when its last
part has come.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from amqpmesh.topology.address_book import Advert
from amqpmesh.topology.records import ADDRESS_DELTA, AddressDelta, Addresses, Key, Name, Record, SignedRecord, adverts

MAX_EARLY: Final = 256
"""Deltas that wait for one before them; of more, a full state takes the place."""


class StoredRecord:
    """A record that is kept. There are some for each router of the mesh, and they come by the thousand."""

    __slots__ = ("key", "octets", "record", "signed", "signed_at")

    def __init__(self, key: Key, signed: SignedRecord, signed_at: float, record: Record | None) -> None:
        self.key = key
        self.signed = signed
        self.signed_at = signed_at
        """When it was made, as far as its age tells: on the clock of `now`, seconds."""
        self.record = record
        """Its body, until it was followed. Certificates and lists of revocations are for the verifier alone."""
        self.octets = len(signed.body) + len(signed.signature) + len(signed.key_id)
        """What it takes."""

    def without_body(self) -> "StoredRecord":
        """The same without its body: what that says of thousands of addresses is the book's to keep, and neighbours
        are told it as it is signed."""
        return StoredRecord(self.key, self.signed, self.signed_at, None)


class Effect(NamedTuple):
    """What becomes of an origin's addresses: `entries` are new or different; the rest is gone, or only `removed` is."""

    entries: Mapping[Name, Advert]
    removed: tuple[Name, ...]
    all: bool


class LogVerdict(Enum):
    """What became of a record."""

    NEW = "new"
    HELD = "held"
    STALE = "stale"
    FULL = "full"


_NONE: Final[Mapping[int, StoredRecord]] = MappingProxyType({})
_NO_PARTS: Final[Mapping[int, Mapping[Name, Advert]]] = MappingProxyType({})
_NOTHING: Final = (0, 0)


class AddressLog:
    """What an origin says of its addresses in one epoch."""

    __slots__ = (
        "_deltas",
        "_early",
        "_max_octets",
        "_next_adverts",
        "_next_of",
        "_next_parts",
        "_parts",
        "base",
        "octets",
        "sequence",
        "state_octets",
    )

    def __init__(self, most_octets: int) -> None:
        self.base = 0
        """The sequence of the full state."""
        self.sequence = 0
        """The sequence of the state that is known, deltas included."""
        self.octets = 0
        self.state_octets = 0
        """What the full state takes, of `octets`."""
        self._max_octets = most_octets
        # There is one log for each router of the mesh, and most have a delta and nothing else: what is empty is shared.
        self._parts: tuple[StoredRecord, ...] = ()
        self._deltas: tuple[StoredRecord, ...] | list[StoredRecord] = ()  # that of sequence `base` + 1 first
        self._next_parts = _NONE  # the parts that have come of the next full state
        self._next_adverts = _NO_PARTS  # what they say: there may be too many to look at all when the last one comes
        self._next_of = _NOTHING  # its sequence, and how many parts it has
        self._early = _NONE  # by sequence

    def __iter__(self) -> Iterator[StoredRecord]:
        """All records, in the order that builds the state."""
        yield from self._parts
        yield from (self._next_parts[part] for part in sorted(self._next_parts))
        yield from self._deltas
        yield from (self._early[sequence] for sequence in sorted(self._early))

    def since(self, sequence: int) -> list[Key]:
        """What somebody needs whose state is of that sequence."""
        if sequence < self.base:
            return [stored.key for stored in self]
        return [stored.key for stored in (*self._deltas, *self._early.values()) if stored.key.sequence > sequence]

    @property
    def latest(self) -> StoredRecord | None:
        """The record that the state was last built from; None: it is the empty state."""
        if self._deltas:
            return self._deltas[-1]
        return self._parts[-1] if self._parts else None

    def is_behind(self, sequence: int) -> bool:
        """Whether something is missing of what there is by now: that sequence at least, or what came too early."""
        return self.sequence < sequence or bool(self._early)

    def get(self, key: Key) -> StoredRecord | None:
        """The record of that key, if it still holds."""
        if key.kind is ADDRESS_DELTA:
            after = key.sequence - self.base - 1
            return self._deltas[after] if 0 <= after < len(self._deltas) else self._early.get(key.sequence)
        if key.sequence == self.base and key.part < len(self._parts):
            return self._parts[key.part]
        return self._next_parts.get(key.part) if key.sequence == self._next_of[0] else None

    @property
    def delta_octets(self) -> int:
        """What there is besides the full state."""
        return self.octets - self.state_octets

    @property
    def deltas(self) -> int:
        """How many deltas there are since the full state."""
        return len(self._deltas)

    def judge(self, record: Addresses | AddressDelta) -> LogVerdict:
        """What would become of a record, before anybody has verified it."""
        if isinstance(record, Addresses):
            if record.sequence <= self.base:
                return LogVerdict.HELD if record.sequence == self.base and self._parts else LogVerdict.STALE
            coming, parts = self._next_of
            if record.sequence < coming or (record.sequence == coming and record.parts != parts):
                return LogVerdict.STALE
            return LogVerdict.HELD if record.sequence == coming and record.part in self._next_parts else LogVerdict.NEW
        if record.sequence <= self.base:
            return LogVerdict.STALE
        if record.sequence <= self.sequence or record.sequence in self._early:
            return LogVerdict.HELD
        is_next = record.sequence == self.sequence + 1
        return LogVerdict.NEW if is_next or len(self._early) < MAX_EARLY else LogVerdict.FULL

    def take(self, stored: StoredRecord) -> tuple[LogVerdict, list[Effect], list[StoredRecord]]:
        """Take in a record that has been verified.

        Returns: what became of it, what that changes, in order, and the records that it replaces.
        """
        record = stored.record
        assert isinstance(record, Addresses | AddressDelta)
        wanted = self.judge(record)
        if wanted is LogVerdict.NEW and self._quota_used(record) + stored.octets > self._max_octets:
            wanted = LogVerdict.FULL
        if wanted is not LogVerdict.NEW:
            return wanted, [], []
        self.octets += stored.octets
        effects: list[Effect] = []
        dropped: list[StoredRecord] = []
        if isinstance(record, AddressDelta):
            if record.sequence == self.sequence + 1:
                effects.append(self._append(stored, record))
            else:
                self._early = {**self._early, record.sequence: stored}
        else:
            if self._next_of[0] != record.sequence:
                dropped += self._next_parts.values()
                self._next_parts, self._next_of = _NONE, (record.sequence, record.parts)
                self._next_adverts = {}
            self._next_parts = {**self._next_parts, record.part: stored.without_body()}
            self._next_adverts = {**self._next_adverts, record.part: adverts(record.entries)}
            if len(self._next_parts) == record.parts:
                effects += self._install(dropped)
        while (delta := self._early.get(self.sequence + 1)) is not None:
            self._early = _above(self.sequence + 1, self._early)
            assert isinstance(delta.record, AddressDelta)
            effects.append(self._append(delta, delta.record))
        self.octets -= sum(each.octets for each in dropped)
        return LogVerdict.NEW, effects, dropped

    def _quota_used(self, record: Addresses | AddressDelta) -> int:
        """What a record shares its room with: the parts of the next full state, or all deltas.

        Each has as much as the full state that is there, or it could never be replaced once it takes half of all.
        """
        coming = sum(each.octets for each in self._next_parts.values())
        if isinstance(record, AddressDelta):
            return self.octets - self.state_octets - coming
        return coming if record.sequence == self._next_of[0] else 0

    def _install(self, dropped: list[StoredRecord]) -> list[Effect]:
        sequence = self._next_of[0]
        dropped += self._parts
        dropped += self._deltas[: sequence - self.base]
        dropped += (delta for number, delta in self._early.items() if number <= sequence)
        self._parts = tuple(self._next_parts[part] for part in sorted(self._next_parts))
        self._deltas = self._deltas[sequence - self.base :]
        self._early = _above(sequence, self._early)
        told, self._next_adverts = self._next_adverts, _NO_PARTS
        self._next_parts, self._next_of = _NONE, _NOTHING
        self.state_octets = sum(part.octets for part in self._parts)
        self.base = sequence
        if sequence <= self.sequence:
            return []  # the same state in another form: the deltas have been there before
        self.sequence = sequence
        entries: dict[Name, Advert] = {}
        for part in sorted(told):
            entries.update(told[part])
        return [Effect(entries, (), all=True)]

    def _append(self, stored: StoredRecord, delta: AddressDelta) -> Effect:
        if isinstance(self._deltas, tuple):
            self._deltas = []
        self._deltas.append(stored.without_body())
        self.sequence += 1
        return Effect(adverts(delta.set), delta.removed, all=False)


def _above(sequence: int, deltas: Mapping[int, StoredRecord]) -> Mapping[int, StoredRecord]:
    return {number: delta for number, delta in deltas.items() if number > sequence} or _NONE
