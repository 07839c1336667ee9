"""Origination of this router's own records, and defence against foreign ones in its name."""

from collections.abc import Callable, Iterable
from typing import Final

from amqpmesh.topology.address_book import Advert
from amqpmesh.topology.address_log import StoredRecord
from amqpmesh.topology.changes import IdentityConflict
from amqpmesh.topology.database import Database, RecordStatus
from amqpmesh.topology.flooding import Flooding
from amqpmesh.topology.outbox import Outbox
from amqpmesh.topology.record_builder import MAX_DELTAS, RecordBuilder, refusal
from amqpmesh.topology.records import LinkState, Name, Neighbour, Record
from amqpmesh.topology.signing import Signer
from amqpmesh.topology.throttling import NEVER, Backoff

CONFLICT: Final = 3
"""Raised epochs within `CONFLICT_TIME` that show another live router with this id: a restart takes one or two."""

CONFLICT_TIME: Final = 60.0
MAX_JUMP_DELAY: Final = 60.0

RATE_PART: Final = 0.8
"""The part of its receivers' rate limits that a router uses. The rest is for messages that bunch on their way."""

LINK_BURST_PART: Final = 0.25
"""The part of the burst for link states: receivers still count the records of its former epochs."""

ADDRESS_BURST_PART: Final = 0.75


class Originator:
    """The origination of this router's records: its pace, their renewal, and a higher epoch if necessary."""

    def __init__(
        self,
        outbox: Outbox,
        builder: RecordBuilder,
        database: Database,
        flooding: Flooding,
        links: Callable[[], tuple[Neighbour, ...]],
    ) -> None:
        """Args: links: returns this router's present neighbours, as it advertises them."""
        self._outbox = outbox
        self._settings = outbox.settings
        self._timers = outbox.timers
        self._builder = builder
        self._database = database
        self._flooding = flooding
        self._links = links
        self._draining = False
        self._last_links: tuple[tuple[Neighbour, ...], bool, bool] = ((), True, False)
        self._link_backoff = Backoff(outbox.settings.link_time)
        self._link_rate = outbox.settings.links.part(RATE_PART, LINK_BURST_PART)
        self._address_rate = outbox.settings.addresses.part(RATE_PART, ADDRESS_BURST_PART)
        self._links_spent = self._addresses_spent = NEVER
        self._addresses_at = NEVER
        self._jumps: list[float] = []
        self._rival_epoch = 0
        self._rival_neighbours: tuple[str, ...] = ()

    @property
    def epoch(self) -> int:
        """The epoch of this router's records."""
        return self._builder.epoch

    @property
    def transit(self) -> bool:
        """True if paths may lead through this router."""
        return self._builder.transit

    @property
    def overload(self) -> bool:
        """True if paths lead through this router only where there is no other way."""
        return self._builder.overload

    @overload.setter
    def overload(self, overload: bool) -> None:
        self._builder.overload = overload

    def links_changed(self, links: tuple[Neighbour, ...], now: float) -> None:
        """Schedule a link state if these links differ from the last one."""
        if (links, self.transit, self.overload) == self._last_links:
            self._timers.cancel(("links",))
        else:
            at = max(self._link_backoff.next(now), self._link_rate.when(self._links_spent, 1))
            self._timers.set_earlier(("links",), at)

    def advertise(self, key: Name, advert: Advert | None, now: float) -> None:
        """Schedule the advertisement of an address."""
        reason = None if advert is None else refusal(key.tenant, key.name, advert)
        if reason is not None:
            self._outbox.drop(self._outbox.router, self._outbox.router, "oversized", reason)
        elif advert is None or not self._draining:
            self._builder.pending[key] = advert
            self._schedule_addresses(now)

    def _schedule_addresses(self, now: float) -> None:
        at = max(
            self._addresses_at + self._settings.delta_time,
            self._address_rate.when(self._addresses_spent, self._settings.address_least),
        )
        self._timers.set_earlier(("addresses",), max(now, at))

    def drain(self, now: float) -> None:
        """Withdraw all addresses, and let no path lead through this router."""
        self._draining = True
        self._builder.transit = False
        self._builder.pending = dict.fromkeys(self._builder.entries)
        self._timers.set_earlier(("addresses",), now)

    def renew(self, signer: Signer, now: float) -> None:
        """Originate all records again, signed with another certificate."""
        self._builder.signer = signer
        for signed in signer.records():
            verdict = self._database.accept(signed, 0.0, now)
            if verdict.status is RecordStatus.NEW:
                self._flooding.flood(verdict, now)
        self.originate_links(now, refresh=True)
        if self._builder.entries:
            self._flood(self._builder.state(now, new_sequence=True), now)

    def originate_links(self, now: float, *, refresh: bool = False) -> None:
        """Originate a link state if it has changed. Args: refresh: originate it even if it has not changed."""
        links = self._links()
        if refresh or (links, self.transit, self.overload) != self._last_links:
            self._last_links = links, self.transit, self.overload
            self._link_backoff.done(now, self._settings.pace_time * len(self._database.origins))
            self._timers.cancel(("links",))
            self._timers.set(("refresh",), now + self._settings.max_age / 3)
            self._flood([self._builder.link_state(links, now)], now)

    def originate_addresses(self, now: float) -> None:
        """Originate a part of the pending address changes; and a full state, once that is smaller than the deltas."""
        self._addresses_at = now
        self._flood(self._builder.deltas(now, self._settings.part), now)
        log = self._database.origins[self._outbox.router].log
        if self._builder.pending:
            self._schedule_addresses(now)
            if log.deltas < MAX_DELTAS:
                return
        if log.deltas >= MAX_DELTAS or log.delta_octets > max(log.state_octets, self._settings.compact):
            self._flood(self._builder.state(now), now)

    def received_own(self, record: Record, now: float) -> None:
        """Handle a newer record in this router's name: of an earlier epoch, or of another router."""
        self._rival_epoch = max(self._rival_epoch, record.epoch)
        if isinstance(record, LinkState):
            self._rival_neighbours = tuple(neighbour.router for neighbour in record.neighbours)
        if ("jump",) in self._timers:
            return
        self._jumps = [at for at in self._jumps if at > now - CONFLICT_TIME] + [now]
        excess = len(self._jumps) - CONFLICT
        delay = 0.0
        if excess >= 0:
            delay = min(2.0**excess, MAX_JUMP_DELAY)
            self._outbox.report(IdentityConflict(self._outbox.router, self._rival_neighbours))
        self._timers.set(("jump",), now + delay)

    def raise_epoch(self, now: float) -> None:
        """Start an epoch above the highest one that was seen, and originate all records again."""
        self._builder.raise_epoch(self._rival_epoch)
        addresses = self._builder.state(now, new_sequence=True) if self._builder.entries else []
        self.originate_links(now, refresh=True)
        self._flood(addresses, now)

    def _flood(self, records: Iterable[StoredRecord], now: float) -> None:
        for stored in records:
            if isinstance(stored.record, LinkState):
                self._links_spent = self._link_rate.used(self._links_spent, 1, now)
            else:
                octets = self._database.weight(len(stored.signed.body))
                self._addresses_spent = self._address_rate.used(self._addresses_spent, octets, now)
            self._flooding.flood(self._database.store(stored), now)
