"""The address records of one origin: a full state in parts, and the deltas since.

A delta changes the state of the sequence before it. A full state replaces everything up to its sequence. Sequence 0 is
the empty state, which needs no record. Deltas that arrive too early wait. A full state takes effect when its last part
has arrived.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from amqpmesh.topology.address_book import Advert
from amqpmesh.topology.records import ADDRESS_DELTA, AddressDelta, Addresses, Key, Name, Record, SignedRecord, adverts

MAX_EARLY: Final = 256
"""Deltas that wait for an earlier one. If there are more, a full state has to replace them."""


class StoredRecord:
    """A stored record. A router stores some for each router of the mesh, thousands in all."""

    __slots__ = ("key", "octets", "record", "signed", "signed_at")

    def __init__(self, key: Key, signed: SignedRecord, signed_at: float, record: Record | None) -> None:
        self.key = key
        self.signed = signed
        self.signed_at = signed_at
        """The time when it was made, by its age: on the clock of `now`, in seconds."""
        self.record = record
        """The body, until it was applied. None for certificates and lists of revocations: the verifier keeps their
        content."""
        self.octets = len(signed.body) + len(signed.signature) + len(signed.key_id)
        """Its size."""

    def without_body(self) -> "StoredRecord":
        """Return the same record without its body.

        The address book keeps the content of an applied record, and neighbours are sent the signed octets.
        """
        return StoredRecord(self.key, self.signed, self.signed_at, None)


class AddressChange(NamedTuple):
    """A change of an origin's addresses.

    `entries` are new or changed. If `all`, all other addresses are gone; otherwise those in `removed`.
    """

    entries: Mapping[Name, Advert]
    removed: tuple[Name, ...]
    all: bool


class LogVerdict(Enum):
    """The judgement of an address record."""

    NEW = "new"
    KNOWN = "known"
    STALE = "stale"
    FULL = "full"


_NONE: Final[Mapping[int, StoredRecord]] = MappingProxyType({})
_NO_PARTS: Final[Mapping[int, Mapping[Name, Advert]]] = MappingProxyType({})
_NOTHING: Final = (0, 0)


class AddressLog:
    """The advertisements of an origin in one epoch."""

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
        """The sequence of the known state, deltas included."""
        self.octets = 0
        self.state_octets = 0
        """The part of `octets` that the full state takes."""
        self._max_octets = most_octets
        # There is one log for each router of the mesh, and most hold one delta, so empty collections are shared.
        self._parts: tuple[StoredRecord, ...] = ()
        self._deltas: tuple[StoredRecord, ...] | list[StoredRecord] = ()  # that of sequence `base` + 1 first
        self._next_parts = _NONE  # the parts of the next full state that have arrived
        self._next_adverts = _NO_PARTS  # their content, read as each of them arrives
        self._next_of = _NOTHING  # its sequence, and its number of parts
        self._early = _NONE  # by sequence

    def __iter__(self) -> Iterator[StoredRecord]:
        """Iterate over all records, in the order that builds the state."""
        yield from self._parts
        yield from (self._next_parts[part] for part in sorted(self._next_parts))
        yield from self._deltas
        yield from (self._early[sequence] for sequence in sorted(self._early))

    def since(self, sequence: int) -> list[Key]:
        """Return the keys of the records that lead from the state of that sequence to the present one."""
        if sequence < self.base:
            return [stored.key for stored in self]
        return [stored.key for stored in (*self._deltas, *self._early.values()) if stored.key.sequence > sequence]

    @property
    def latest(self) -> StoredRecord | None:
        """The record that completed the present state; None: it is the empty state."""
        if self._deltas:
            return self._deltas[-1]
        return self._parts[-1] if self._parts else None

    def is_behind(self, sequence: int) -> bool:
        """Tell whether records are missing: the state is older than that sequence, or a delta came too early."""
        return self.sequence < sequence or bool(self._early)

    def get(self, key: Key) -> StoredRecord | None:
        """Return the record of a key; None: there is none, or it was replaced."""
        if key.kind is ADDRESS_DELTA:
            after = key.sequence - self.base - 1
            return self._deltas[after] if 0 <= after < len(self._deltas) else self._early.get(key.sequence)
        if key.sequence == self.base and key.part < len(self._parts):
            return self._parts[key.part]
        return self._next_parts.get(key.part) if key.sequence == self._next_of[0] else None

    @property
    def delta_octets(self) -> int:
        """The size of all records but those of the full state."""
        return self.octets - self.state_octets

    @property
    def deltas(self) -> int:
        """The number of deltas since the full state."""
        return len(self._deltas)

    def judge(self, record: Addresses | AddressDelta) -> LogVerdict:
        """Judge a record before its signature is verified."""
        if isinstance(record, Addresses):
            if record.sequence <= self.base:
                return LogVerdict.KNOWN if record.sequence == self.base and self._parts else LogVerdict.STALE
            coming, parts = self._next_of
            if record.sequence < coming or (record.sequence == coming and record.parts != parts):
                return LogVerdict.STALE
            return LogVerdict.KNOWN if record.sequence == coming and record.part in self._next_parts else LogVerdict.NEW
        if record.sequence <= self.base:
            return LogVerdict.STALE
        if record.sequence <= self.sequence or record.sequence in self._early:
            return LogVerdict.KNOWN
        is_next = record.sequence == self.sequence + 1
        return LogVerdict.NEW if is_next or len(self._early) < MAX_EARLY else LogVerdict.FULL

    def take(self, stored: StoredRecord) -> tuple[LogVerdict, list[AddressChange], list[StoredRecord]]:
        """Take a verified record.

        Returns: the judgement, the changes in order, and the records that it replaces.
        """
        record = stored.record
        assert isinstance(record, Addresses | AddressDelta)
        wanted = self.judge(record)
        if wanted is LogVerdict.NEW and self._quota_used(record) + stored.octets > self._max_octets:
            wanted = LogVerdict.FULL
        if wanted is not LogVerdict.NEW:
            return wanted, [], []
        self.octets += stored.octets
        changes: list[AddressChange] = []
        dropped: list[StoredRecord] = []
        if isinstance(record, AddressDelta):
            if record.sequence == self.sequence + 1:
                changes.append(self._append(stored, record))
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
                changes += self._install(dropped)
        while (delta := self._early.get(self.sequence + 1)) is not None:
            self._early = _deltas_above(self.sequence + 1, self._early)
            assert isinstance(delta.record, AddressDelta)
            changes.append(self._append(delta, delta.record))
        self.octets -= sum(each.octets for each in dropped)
        return LogVerdict.NEW, changes, dropped

    def _quota_used(self, record: Addresses | AddressDelta) -> int:
        """Return the octets of the records that share a record's quota: the parts of the next full state, or all
        deltas.

        Both have a quota as large as the full state's. Otherwise a full state of more than half of the room could never
        be replaced.
        """
        coming = sum(each.octets for each in self._next_parts.values())
        if isinstance(record, AddressDelta):
            return self.octets - self.state_octets - coming
        return coming if record.sequence == self._next_of[0] else 0

    def _install(self, dropped: list[StoredRecord]) -> list[AddressChange]:
        sequence = self._next_of[0]
        dropped += self._parts
        dropped += self._deltas[: sequence - self.base]
        dropped += (delta for number, delta in self._early.items() if number <= sequence)
        self._parts = tuple(self._next_parts[part] for part in sorted(self._next_parts))
        self._deltas = self._deltas[sequence - self.base :]
        self._early = _deltas_above(sequence, self._early)
        by_part, self._next_adverts = self._next_adverts, _NO_PARTS
        self._next_parts, self._next_of = _NONE, _NOTHING
        self.state_octets = sum(part.octets for part in self._parts)
        self.base = sequence
        if sequence <= self.sequence:
            return []  # the same state in another form: its deltas were applied before
        self.sequence = sequence
        entries: dict[Name, Advert] = {}
        for part in sorted(by_part):
            entries.update(by_part[part])
        return [AddressChange(entries, (), all=True)]

    def _append(self, stored: StoredRecord, delta: AddressDelta) -> AddressChange:
        if isinstance(self._deltas, tuple):
            self._deltas = []
        self._deltas.append(stored.without_body())
        self.sequence += 1
        return AddressChange(adverts(delta.set), delta.removed, all=False)


def _deltas_above(sequence: int, deltas: Mapping[int, StoredRecord]) -> Mapping[int, StoredRecord]:
    return {number: delta for number, delta in deltas.items() if number > sequence} or _NONE
