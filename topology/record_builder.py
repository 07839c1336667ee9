"""Records that a router makes of itself: signed link states and addresses, with pairs that only grow."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

from amqpmesh.topology.address_book import Advert
from amqpmesh.topology.address_log import StoredRecord
from amqpmesh.topology.records import (
    MAX_ADDRESS,
    MAX_BODY,
    MAX_CONSUMERS,
    MAX_NEIGHBOURS,
    AddressDelta,
    Addresses,
    Entry,
    Kind,
    LinkState,
    Name,
    Neighbour,
    Record,
    SignedRecord,
    encode,
)
from amqpmesh.topology.schema import pack
from amqpmesh.topology.signing import Signer

MAX_TENANT: Final = 255
MAX_WORD: Final = 32
PART: Final = 24 * 1024
"""Octets of entries in one record: several records fit a message, and a lost one is soon sent again."""

LINK_STATE_HEAD: Final = 1024
"""The most octets of the other items of a link state."""

MAX_ENTRIES: Final = 4096
MAX_DELTAS: Final = 1024
"""Deltas before a full state replaces them, whatever their size: a new neighbour has to verify all of them."""

T = TypeVar("T", Entry, Name)


class RecordBuilder:
    """The builder of this router's records."""

    def __init__(self, router: str, epoch: int, area: str, signer: Signer) -> None:
        self.router = router
        self.epoch = epoch
        self.signer = signer
        self.entries: dict[Name, Advert] = {}
        """The advertised addresses, without the changes in `pending`."""
        self.pending: dict[Name, Advert | None] = {}
        self.transit = True
        self.overload = False
        self._area = area
        self._links = 0
        self._addresses = 0

    def raise_epoch(self, epoch: int) -> None:
        """Start a new epoch above one that was seen in records of this router."""
        self.epoch = max(self.epoch, epoch) + 1
        self._links = self._addresses = 0

    def link_state(self, neighbours: Sequence[Neighbour], now: float) -> StoredRecord:
        """Make a link state. If it has no room for all neighbours, the most expensive ones are dropped."""
        self._links += 1
        room = MAX_BODY - LINK_STATE_HEAD
        kept = []
        for neighbour in sorted(neighbours, key=lambda each: (each.cost, each.router))[:MAX_NEIGHBOURS]:
            room -= len(pack(neighbour))
            if room < 0:
                break
            kept.append(neighbour)
        record = LinkState(
            origin=self.router,
            epoch=self.epoch,
            sequence=self._links,
            neighbours=tuple(kept),
            addresses=self._addresses,
            transit=self.transit,
            area=self._area,
            overload=self.overload,
        )
        return self._signed(Kind.LINK_STATE, record, now)

    def deltas(self, now: float, most: int | None = None) -> list[StoredRecord]:
        """Make deltas of pending changes. Args: most: addresses; the others stay pending."""
        pending = {name: self.pending.pop(name) for name in list(islice(self.pending, most))}
        changed = {name: advert for name, advert in pending.items() if self.entries.get(name) != advert}
        entries = [_entry(name, advert) for name, advert in changed.items() if advert is not None]
        removed = [name for name, advert in changed.items() if advert is None]
        for entry in entries:
            self.entries[entry.key] = entry.advert
        for name in removed:
            del self.entries[name]
        made = []
        for some in _parts(entries):
            self._addresses += 1
            record = AddressDelta(self.router, self.epoch, self._addresses, some, (), self._area)
            made.append(self._signed(Kind.ADDRESS_DELTA, record, now))
        for gone in _parts(removed):
            self._addresses += 1
            record = AddressDelta(self.router, self.epoch, self._addresses, (), gone, self._area)
            made.append(self._signed(Kind.ADDRESS_DELTA, record, now))
        return made

    def state(self, now: float, *, new_sequence: bool = False) -> list[StoredRecord]:
        """Make a full state in parts, with the sequence of the last delta, or a new one."""
        if new_sequence:
            self._addresses += 1
        parts = list(_parts([_entry(name, advert) for name, advert in self.entries.items()])) or [()]
        return [
            self._signed(
                Kind.ADDRESSES,
                Addresses(self.router, self.epoch, self._addresses, number, len(parts), part, self._area),
                now,
            )
            for number, part in enumerate(parts)
        ]

    def _signed(self, kind: Kind, record: Record, now: float) -> StoredRecord:
        body = encode(record)
        key_id, signature = self.signer.sign(kind, body)
        return StoredRecord(record.key, SignedRecord(kind, key_id, body, signature), now, record)


def refusal(tenant: str, name: str, advert: Advert) -> str | None:
    """Return the reason why an address cannot be advertised; None: it can."""
    if len(tenant) > MAX_TENANT or len(name) > MAX_ADDRESS:
        return f"an address of {len(name):,} characters; {MAX_ADDRESS:,} are advertised at most"
    if not 0 <= advert.consumers <= MAX_CONSUMERS or not 0 <= advert.producers <= MAX_CONSUMERS:
        return f"{advert.consumers} consumers and {advert.producers} producers cannot be kept"
    if len(advert.distribution) > MAX_WORD:
        return f"a distribution of {len(advert.distribution):,} characters"
    try:
        (tenant + name).encode()
    except UnicodeEncodeError:
        return "an address that UTF-8 cannot write"
    return None


def _entry(name: Name, advert: Advert) -> Entry:
    # A plain string, so that it compares and sorts as at other routers.
    return Entry(name.tenant, name.name, str(advert.distribution), advert.consumers, advert.producers)


def _parts(rows: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """Divide rows into groups that fit one record each."""
    group: list[T] = []
    room = PART
    for row in rows:
        octets = len(pack(row))
        if octets > room or len(group) == MAX_ENTRIES:
            yield tuple(group)
            group, room = [], PART
        group.append(row)
        room -= octets
    if group:
        yield tuple(group)
