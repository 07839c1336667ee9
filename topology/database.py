"""The link-state database: the newest record of each origin, and the judgement of arriving ones.

Of two records, the one with the higher pair is newer. A router is alive while it renews its link state. When the link
state is older than `max_age`, all records of the router are forgotten. Its pair is kept, so that old records cannot
revive a dead router. Addresses have no age of their own: they hold as long as the link state of their epoch.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Final, NamedTuple

from amqpmesh.topology.address_log import AddressChange, AddressLog, LogVerdict, StoredRecord
from amqpmesh.topology.records import (
    CERTIFICATE,
    LINK_STATE,
    REVOCATION,
    AddressDelta,
    Addresses,
    Key,
    LinkState,
    OpenedRecord,
    Pair,
    Record,
    SignedRecord,
    UnreadableError,
    open_record,
)
from amqpmesh.topology.settings import Settings
from amqpmesh.topology.signing import UntrustedError, Verifier
from amqpmesh.topology.throttling import NEVER

LATE_TIME: Final = 10.0
"""Seconds after a newer record was made, during which an older one is not reported: it may have been sent again."""


NO_LIMIT: Final = 2**63


class RecordStatus(Enum):
    """The judgement of an arriving record."""

    NEW = "new"
    """Stored, to be flooded."""
    KNOWN = "known"
    """Already stored."""
    OWN = "own"
    """A record of this router, newer than its own in this epoch: this router has to raise its epoch."""
    EARLY = "early"
    """Its epoch has no link state yet: the neighbour sends it again."""
    UNCERTIFIED = "waiting"
    """Its certificate is not known."""
    LATE = "late"
    """Replaced a moment ago: it crossed the newer record on its way, as happens in each flood."""
    RATE_LIMITED = "paced"
    """Over the rate limit of its origin: the neighbour sends it again."""
    DROPPED = "dropped"


NEW: Final = RecordStatus.NEW


class Verdict(NamedTuple):
    """The judgement of a record, and its reason."""

    status: RecordStatus
    key: Key | None = None
    origin: str = ""
    changes: tuple[AddressChange, ...] = ()
    reason: str = ""
    detail: str = ""
    record: Record | None = None


class Origin:
    """The records of a router: always a link state, and its address log."""

    __slots__ = ("addresses_spent", "link", "links_spent", "log")

    def __init__(self, link: StoredRecord, log: AddressLog) -> None:
        self.link = link
        self.log = log
        self.links_spent = NEVER
        """The state of its token bucket for link states, over all epochs: see `TokenBucket`."""
        self.addresses_spent = NEVER

    @property
    def pair(self) -> Pair:
        """The pair of its link state."""
        return self.link.key.pair

    @property
    def state(self) -> LinkState:
        """The body of its link state."""
        record = self.link.record
        assert isinstance(record, LinkState)
        return record

    def key_ids(self) -> set[bytes]:
        """Return the key ids of the certificates that its records name."""
        if not self.log.octets:
            return {self.link.signed.key_id}
        return {self.link.signed.key_id, *(stored.signed.key_id for stored in self.log)}


class Database:
    """The stored records of all origins."""

    def __init__(
        self,
        router: str,
        settings: Settings,
        verifier: Verifier,
        reader: Callable[[SignedRecord], OpenedRecord] = open_record,
    ) -> None:
        """Args: reader: opens records; routers in one process can share one with a cache."""
        self.origins: dict[str, Origin] = {}
        self.certificates: dict[bytes, StoredRecord] = {}
        self.revocation_lists: dict[bytes, StoredRecord] = {}
        self.dead: dict[str, Pair] = {}
        self._router = router
        self._settings = settings
        self._verifier = verifier
        self._open = reader
        self._links = settings.links
        self._addresses = settings.addresses
        self.octets = 0
        """The size of all records."""
        self._keys: dict[bytes, Key] = {}  # by body, so that duplicates are not even parsed

    def get(self, key: Key) -> StoredRecord | None:
        """Return the record of a key; None: there is none, or it was replaced."""
        kind = key.kind
        if kind is CERTIFICATE:
            return self.certificates.get(bytes.fromhex(key.origin))
        if kind is REVOCATION:
            found = self.revocation_lists.get(bytes.fromhex(key.origin))
            return found if found is not None and found.key == key else None
        origin = self.origins.get(key.origin)
        if origin is None:
            return None
        link = origin.link
        if kind is LINK_STATE:
            return link if link.key == key else None
        return origin.log.get(key) if link.key.epoch == key.epoch else None

    def keys_of(self, origin: Origin) -> Iterator[Key]:
        """Iterate over the keys of an origin's records, in the order in which they are sent."""
        yield from self.certificate_keys(origin)
        yield origin.link.key
        yield from (stored.key for stored in origin.log)

    def certificate_keys(self, origin: Origin) -> list[Key]:
        """Return the keys of the certificates that an origin's records name."""
        found = (self.certificates.get(key_id) for key_id in sorted(origin.key_ids()))
        return [stored.key for stored in found if stored is not None]

    def key_of(self, body: bytes) -> Key | None:
        """Return the key of the stored record with this body; None: there is none."""
        return self._keys.get(body)

    def accept(self, signed: SignedRecord, age: float, now: float) -> Verdict:
        """Judge a record, and store it if it is new and trusted.

        Args: age: seconds, as given by the sender.
        """
        known_key = self.key_of(signed.body)
        if known_key is not None:
            return Verdict(RecordStatus.KNOWN, known_key)
        if signed.kind == CERTIFICATE:
            return self._accept_certificate(signed, now)
        if signed.kind == REVOCATION:
            return self._accept_list(signed, now)
        try:
            signed, record = self._open(signed)
        except UnreadableError as error:
            return _dropped("", error.reason, str(error))
        origin = record.origin
        if record.area != self._settings.area:
            return _dropped(origin, "area", f"of the area {record.area!r}")
        refusal = self._freshness(record, age, now)
        if refusal is not None:
            return refusal
        is_known = isinstance(record, LinkState) and origin in self.origins
        rate_limited = self._rate_refusal(record, len(signed.body), now)
        if rate_limited is not None:
            return rate_limited
        if self.octets + len(signed.body) > self._settings.max_octets and not is_known and origin != self._router:
            return _dropped(origin, "full", f"{self.octets:,} octets of records are kept")
        try:
            self._verifier.verify(origin, *signed)
        except UntrustedError as error:
            if error.unknown_key:
                return Verdict(RecordStatus.UNCERTIFIED, None, origin)
            return _dropped(origin, "untrusted", error.reason)
        if origin == self._router:
            return Verdict(RecordStatus.OWN, record.key, origin, record=record)
        verdict = self.store(StoredRecord(record.key, signed, now - age, record))
        self._charge(record, len(signed.body), now)
        return verdict

    def store(self, stored: StoredRecord) -> Verdict:
        """Store a record that is new and verified, or this router's own."""
        record = stored.record
        if isinstance(record, LinkState):
            return self._store_links(stored, record)
        assert record is not None
        origin = self.origins[record.origin]
        taken, changes, replaced = origin.log.take(stored)
        if taken is not LogVerdict.NEW:
            return _dropped(record.origin, taken.value, "no room for its addresses")
        self._keep(stored)
        self._release(replaced)
        return Verdict(NEW, stored.key, record.origin, tuple(changes), record=record)

    def signed_at(self) -> dict[str, float]:
        """Return the times when the link states of the other routers were made."""
        return {name: origin.link.signed_at for name, origin in self.origins.items() if name != self._router}

    def forget(self, name: str) -> None:
        """Forget the records of an origin, but keep its pair."""
        origin = self.origins.pop(name)
        self.dead[name] = origin.pair
        if len(self.dead) > self._settings.max_origins:
            del self.dead[next(iter(self.dead))]
        self._release((origin.link, *origin.log))

    def forget_pair(self, name: str) -> None:
        """Forget the pair of a forgotten origin; do nothing if the origin has come back."""
        self.dead.pop(name, None)

    def _keep(self, stored: StoredRecord) -> None:
        self._keys[stored.signed.body] = stored.key
        self.octets += stored.octets

    def _release(self, records: Iterable[StoredRecord]) -> None:
        for stored in records:
            self._keys.pop(stored.signed.body, None)
            self.octets -= stored.octets

    def _store_links(self, stored: StoredRecord, record: LinkState) -> Verdict:
        origin = self.origins.get(record.origin)
        changes: tuple[AddressChange, ...] = ()
        # This router always stores its own records, whatever their size.
        most = NO_LIMIT if record.origin == self._router else self._settings.max_origin_octets
        if origin is None:
            log = AddressLog(most)
            self.origins[record.origin] = Origin(stored, log)
            self.dead.pop(record.origin, None)
        elif origin.link.key.epoch == record.epoch:
            self._release((origin.link,))
            origin.link = stored
        else:  # another epoch: the addresses of the former one do not hold any more
            self._release((origin.link, *origin.log))
            origin.link, origin.log = stored, AddressLog(most)
            changes = (AddressChange({}, (), all=True),)
        self._keep(stored)
        return Verdict(NEW, stored.key, record.origin, changes, record=record)

    def _freshness(self, record: Record, age: float, now: float) -> Verdict | None:
        """Return the judgement of a record that its pair or age makes unwanted; None: it is wanted."""
        name = record.origin
        pair = record.key.pair
        is_links = isinstance(record, LinkState)
        origin = self.origins.get(name)
        if origin is None:
            dead = self.dead.get(name)
            if dead is not None and (pair <= dead if is_links else pair.epoch < dead.epoch):
                return _dropped(name, "replayed", f"{_shown(pair)}, but it was at {_shown(dead)} when it was forgotten")
            if not is_links:
                return Verdict(RecordStatus.EARLY, None, name)
            if len(self.origins) >= self._settings.max_origins:
                return _dropped(name, "full", f"{len(self.origins):,} routers are known")
        elif pair.epoch < (here := origin.link.key).epoch:
            reason = f"{_shown(pair)}, but it is at {_shown(origin.pair)}"
            return self._late_or_dropped(name, "replayed", reason, origin.link, now)
        elif pair.epoch > here.epoch:
            if not is_links and name != self._router:
                return Verdict(RecordStatus.EARLY, None, name)
        elif is_links:
            # The same pair with another body comes from another router with this id, or from an epoch with the same
            # start time. Raise the epoch above it; otherwise some routers would keep that record, and others this one.
            if pair.sequence < here.sequence or (pair.sequence == here.sequence and name != self._router):
                return self._late_or_dropped(
                    name, "stale", f"{_shown(pair)}, but it is at {_shown(origin.pair)}", origin.link, now
                )
        else:
            assert isinstance(record, Addresses | AddressDelta)
            wanted = origin.log.judge(record)
            if wanted is LogVerdict.KNOWN:
                return Verdict(RecordStatus.KNOWN, record.key)
            if wanted is LogVerdict.FULL:
                return _dropped(name, "full", "too many deltas wait for one before them")
            if wanted is LogVerdict.STALE or (name == self._router and record.sequence <= origin.log.sequence):
                reason = f"addresses {pair.sequence}, but they are at {origin.log.sequence}"
                return self._late_or_dropped(name, "stale", reason, origin.log.latest or origin.link, now)
        if is_links and age >= self._settings.max_age:
            return _dropped(name, "stale", f"{age:.0f} s old")
        return None

    def _rate_refusal(self, record: Record, octets: int, now: float) -> Verdict | None:
        """Return the judgement of a record over the rate limit; None: the record is within the limit.

        `_charge` counts the record if it is trusted.
        """
        name = record.origin
        origin = self.origins.get(name)
        if origin is None or name == self._router:
            return None
        if isinstance(record, LinkState):
            if self._links.when(origin.links_spent, 1) <= now:
                return None
            detail = f"more than {self._links.a_second:g} newer link states in a second"
        else:
            if self._addresses.when(origin.addresses_spent, self.weight(octets)) <= now:
                return None
            detail = f"more than {self._addresses.a_second:,.0f} octets of newer addresses in a second"
        return Verdict(RecordStatus.RATE_LIMITED, None, name, (), "paced", detail)

    def _charge(self, record: Record, octets: int, now: float) -> None:
        origin = self.origins[record.origin]
        if isinstance(record, LinkState):
            origin.links_spent = self._links.used(origin.links_spent, 1, now)
        else:
            origin.addresses_spent = self._addresses.used(origin.addresses_spent, self.weight(octets), now)

    def weight(self, octets: int) -> int:
        """Return the amount that a record of addresses counts for the rate limit."""
        return max(octets, self._settings.address_least)

    def _late_or_dropped(self, name: str, reason: str, detail: str, newer: StoredRecord, now: float) -> Verdict:
        if now - newer.signed_at < LATE_TIME:
            return Verdict(RecordStatus.LATE, None, name)
        return _dropped(name, reason, detail)

    # Certificates and lists of revocations are flooded like all other records.

    def _accept_certificate(self, signed: SignedRecord, now: float) -> Verdict:
        try:
            router, key_id = self._verifier.learn(signed.body)
        except UntrustedError as error:
            return _dropped("", "untrusted", error.reason)
        # Drop the fields that no signature covers.
        stored = StoredRecord(
            Key(CERTIFICATE, key_id.hex(), 0, 0, 0), signed._replace(key_id=key_id, signature=b""), now, None
        )
        self.certificates[key_id] = stored
        self._keep(stored)
        return Verdict(RecordStatus.NEW, stored.key, router)

    def _accept_list(self, signed: SignedRecord, now: float) -> Verdict:
        try:
            authority, number = self._verifier.revoke(signed.body)
        except UntrustedError as error:
            return _dropped("", "untrusted", error.reason)
        known = self.revocation_lists.get(authority)
        if known is not None:
            if number <= known.key.sequence:
                return Verdict(
                    RecordStatus.DROPPED, reason="stale", detail=f"list {number}, but {known.key.sequence} is known"
                )
            self._release((known,))
        stored = StoredRecord(
            Key(REVOCATION, authority.hex(), 0, number, 0),
            signed._replace(key_id=authority, signature=b""),
            now,
            None,
        )
        self.revocation_lists[authority] = stored
        self._keep(stored)
        return Verdict(RecordStatus.NEW, stored.key)

    def distrusted(self) -> list[str]:
        """Return the origins with a record that is no longer trusted, after certificates were revoked."""
        return [name for name, origin in self.origins.items() if name != self._router and not self._is_verified(origin)]

    def _is_verified(self, origin: Origin) -> bool:
        try:
            for stored in (origin.link, *origin.log):
                self._verifier.verify(stored.key.origin, *stored.signed)
        except UntrustedError:
            return False
        return True

    def forget_certificates(self, before: float) -> None:
        """Forget the certificates that no record names and that arrived before a time."""
        named = set[bytes]().union(*(origin.key_ids() for origin in self.origins.values()))
        for key_id, stored in list(self.certificates.items()):
            if key_id not in named and stored.signed_at < before:
                del self.certificates[key_id]
                self._release((stored,))
                self._verifier.forget(key_id)


def _dropped(origin: str, reason: str, detail: str) -> Verdict:
    return Verdict(RecordStatus.DROPPED, None, origin, (), reason, detail)


def _shown(pair: Pair) -> str:
    return f"epoch {pair.epoch}, sequence {pair.sequence}"
