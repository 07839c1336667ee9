"""Segments in memory, of what a router has recorded lately, for those who listen. No threads, tasks or clocks.

Each is whole: it explains the links that its hop records name, and begins and ends as a segment on the disk does. The
segment of a tenant has no records of others: its segments, records, links and deliveries have numbers of their own, and
links of others are one link without a name there.
"""

from __future__ import annotations

from array import array
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from amqpmesh.router.telemetry.schema import EVERYTHING, UNIT_WORDS, Kind, Unit
from amqpmesh.router.telemetry.segments import beginning, block, bodies, ending
from amqpmesh.router.telemetry.tenant_numbers import LARGEST, Permutation, TenantNumbers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

_LOW: Final = 0xFFFF_FFFF

_MARK: Final = 56
"""The shift of the octet of a unit's word 2 that tells its kind."""

_CONDITION: Final = (1 << 28) - 1

_UPPER: Final = 48
"""The shift of the upper bits of counters in a key unit, and of the attempt in a wide unit."""

_EPOCH: Final = (1 << _UPPER) - 1

MOST: Final = 2**20
"""Octets of records after which a segment is to be closed at once."""

_MAP: Final = 250
"""Octets of a map record without its names, about. Peers choose the names."""

FOREIGN: Final = LARGEST
"""In the segment of a tenant the number of all links by which its deliveries left to receivers of other tenants."""


class _Maps(NamedTuple):
    """Map records of one kind. `first`: the number of the first."""

    kind: Kind
    first: int
    records: list[dict[str, Any]]


class _Hops(NamedTuple):
    """Hop records. `first`: the number of the first."""

    first: int
    hops: int
    words: array[int]
    named: Collection[int] = ()
    """Of a tenant: the numbers in them, as the router counts them."""


class LiveSegments:
    """The segments of one life of a router, beside those on the disk."""

    def __init__(
        self,
        router: str,
        epoch: int,
        sample: int,
        links: Mapping[int, dict[str, Any]],
        numbers: dict[tuple[str, Kind], int] | None = None,
        secret: bytes = b"",
    ) -> None:
        """Args: epoch: of this life, milliseconds since 1970. sample: recorded keys, of 2**32 possible ones.
        links: those that were explained before, by number. numbers: kept by the caller, for others of the same life.
        secret: of this life, 64 octets at most, by which tenants get numbers of links.
        """
        self._router = router
        self._epoch = epoch
        self.sample = sample
        #: The explanations of links by number, and the numbers of links that ended in this segment, and in the last.
        self._links = dict(links)
        self._ended: set[int] = set()
        self._leaving: set[int] = set()
        self._parts: list[_Maps | _Hops] = []
        self._octets = 0
        #: Segments, and records of each tenant in them, by kind. Segments on the disk have other numbers.
        self._numbers: dict[tuple[str, Kind], int] = {} if numbers is None else numbers
        self._secret = Permutation(secret)
        #: By their keys: the numbers of links and deliveries that tenants get who listen.
        self._tenants: dict[str, TenantNumbers] = {}

    @property
    def is_due(self) -> bool:
        """True if the segment is large enough to be closed."""
        return self._octets >= MOST

    def take(self, kind: Kind, first: int, records: list[dict[str, Any]], *, wanted: bool) -> None:
        """Accept map records. Args: first: the number of the first. wanted: somebody listens."""
        if kind is Kind.LINK:
            for each in records:
                self._links[each["number"]] = each
                self._leaving.discard(each["number"])
        elif wanted:
            self._parts.append(_Maps(kind, first, records))
            self._octets += sum(
                _MAP + sum(len(value) for value in each.values() if type(value) is str) for each in records
            )

    def take_hops(self, words: memoryview, first: int, count: int) -> None:
        """Accept hop records, for those who listen. Args: words: octets. first: the number of the first one."""
        copied = array("Q")
        copied.frombytes(words)
        self._parts.append(_Hops(first, count, copied))
        self._octets += len(words)

    def forget(self, numbers: Collection[int]) -> None:
        """Forget links that are gone, after the next segment: they may have deliveries that are recorded late."""
        self._ended.update(numbers)

    def close(
        self, now: int, tenants: Collection[str], dropped: int, key: bytes = b""
    ) -> Iterator[tuple[str, str, bytes]]:
        """Close the segment, and begin the next one.

        Args: now: nanoseconds since 1970. tenants: the keys of those that listen, or `EVERYTHING`. dropped: hop records
            that this life has lost. key: a secret of all routers, by which tenants get counters of delivery keys.
        Yields: for each of them its key, the name of the segment, without a suffix, and its octets. A tenant without
            records has no segment.
        """
        parts, self._parts, self._octets = self._parts, [], 0
        self._renumber([each for each in tenants if each != EVERYTHING], key)
        if parts:
            found = self._of_tenants(parts)
            if EVERYTHING in tenants:
                found[EVERYTHING] = parts
            for tenant, records in found.items():
                if records:
                    number = self._count(tenant, Kind.SEGMENT, 1)
                    octets = b"".join(self._segment(records, tenant, number, now, 0 if tenant else dropped))
                    yield tenant, f"{self._epoch:013d}.{number + 1:06d}", octets
        for number in self._leaving:
            self._links.pop(number, None)
        self._leaving, self._ended = self._ended, set()

    def _segment(
        self, parts: Sequence[_Maps | _Hops], tenant: str, number: int, now: int, dropped: int
    ) -> Iterator[bytes]:
        first_body = beginning(self._router, self._epoch, number + 1, now, self.sample)
        yield block(Kind.SEGMENT, number, 1, first_body) + first_body
        written = 1
        hops = [each for each in parts if isinstance(each, _Hops)]
        for kind, first, records in (
            (Kind.LINK, 0, self._explained(hops, tenant)),
            *(each for each in parts if isinstance(each, _Maps)),
        ):
            for at, count, body in bodies(records):
                yield block(kind, 0 if kind is Kind.LINK else first + at, count, body) + body
                written += 1
        for each in hops:
            octets = each.words.tobytes()
            yield block(Kind.HOP, each.first, each.hops, octets) + octets
            written += 1
        body = ending(now, sum(each.hops for each in hops), written, dropped)
        yield block(Kind.END, number, 1, body) + body

    def _renumber(self, tenants: Collection[str], key: bytes) -> None:
        """Have numbers for some tenants alone. Args: key: as of `close`."""
        keys = next((each.keys for each in self._tenants.values() if each.keys.key == key), None) or Permutation(key)
        self._tenants = {
            each: known
            if (known := self._tenants.get(each)) is not None and known.keys is keys
            else TenantNumbers(each, self._secret, keys)
            for each in tenants
        }

    def _explained(self, hops: Sequence[_Hops], tenant: str) -> list[dict[str, Any]]:
        """Return the explanations of the numbers in hop records."""
        if tenant != EVERYTHING:
            return self._explained_to(self._tenants[tenant], set().union(*(each.named for each in hops)), tenant)
        named = set().union(*(_links_in(each.words) for each in hops))
        conditions = set().union(*(_conditions_in(each.words) for each in hops))
        return [
            each
            for number in sorted(named | conditions)
            if (each := self._links.get(number)) is not None and (number in named or each["direction"] == "condition")
        ]

    def _explained_to(self, numbers: TenantNumbers, named: Collection[int], tenant: str) -> list[dict[str, Any]]:
        """Return the explanations of some numbers of links, addresses and conditions, as a tenant gets them."""
        found = [
            {**each, "number": numbers.link(number), "name": numbers.name(each["name"])}
            for number in named
            if (each := self._links.get(number)) is not None and each["tenant"] in (tenant, None)
        ]
        if FOREIGN in named:
            nothing = {"name": "", "peer": None, "from_router": False, "address": None}
            found.append({"number": FOREIGN, "direction": "outgoing", "tenant": tenant, **nothing})
        return sorted(found, key=itemgetter("number"))

    def _of_tenants(self, parts: Sequence[_Maps | _Hops]) -> dict[str, list[_Maps | _Hops]]:
        """Return the records of each of the tenants that listen, with numbers that count no others."""
        found: dict[str, list[_Maps | _Hops]] = {each: [] for each in self._tenants}
        for each in parts if found else ():
            if isinstance(each, _Maps):
                records: dict[str, list[dict[str, Any]]] = {}
                for record in each.records:
                    numbers = self._tenants.get(record.get("tenant") or EVERYTHING)
                    if numbers is not None:
                        own = {**record, "link": numbers.name(record["link"])}
                        if "number" in record:
                            own["number"] = numbers.link(record["number"])
                        records.setdefault(record["tenant"], []).append(own)
                for tenant, some in records.items():
                    found[tenant].append(_Maps(each.kind, self._count(tenant, each.kind, len(some)), some))
            else:
                for tenant, part in of_tenants(each.words, self._links, self._tenants).items():
                    first = self._count(tenant, Kind.HOP, part.count)
                    found[tenant].append(_Hops(first, part.count, part.words, part.named))
        return found

    def _count(self, tenant: str, kind: Kind, count: int) -> int:
        """Count records of a tenant. Returns: the number of the first."""
        first = self._numbers.get((tenant, kind), 0)
        self._numbers[tenant, kind] = first + count
        return first


class Part:
    """The hop records of one tenant."""

    def __init__(self, numbers: TenantNumbers) -> None:
        self.numbers = numbers
        self.words = array("Q")
        self.count = 0
        #: The numbers in them, as the router counts them.
        self.named: set[int] = set()
        #: The fields of the last key unit: ingress, epoch with the upper bits of the counter, and those of the time.
        self._key: tuple[int, int, int] | None = None

    def add(self, key: Sequence[int], unit: array[int]) -> None:
        """Add a record. Args: key: the key unit in force. unit: the units of the record, its links as they are told."""
        ingress, epoch = key[0], key[1] & _EPOCH
        counter = self.numbers.counter(ingress, epoch, key[1] >> _UPPER << 32 | unit[1] & _LOW)
        told = ingress, epoch | counter >> 32 << _UPPER, key[2]
        if told != self._key:
            self._key = told
            self.words.extend((*told, 0))
        unit[1] = unit[1] >> 32 << 32 | counter & _LOW
        unit[3] = self._link(unit[3] & _LOW) | self._link(unit[3] >> 32) << 32
        if len(unit) > UNIT_WORDS:
            first, address, condition = unit[4] & _EPOCH, unit[7] >> 32, _condition(unit, 6)
            if first:
                unit[4] = unit[4] >> _UPPER << _UPPER | self.numbers.counter(ingress, epoch, first)
            if address:
                unit[7] = unit[7] & _LOW | self._link(address) << 32
            if condition:
                condition = self._link(condition)
                unit[5] = unit[5] & ~(0xF << 56) | condition >> 28 << 56
                unit[6] = unit[6] & ~(_CONDITION << 28) | (condition & _CONDITION) << 28
        self.words.extend(unit)
        self.count += 1

    def _link(self, number: int) -> int:
        if number:
            self.named.add(number)
        return self.numbers.link(number)


def of_tenants(
    words: array[int], links: Mapping[int, Mapping[str, Any]], tenants: Mapping[str, TenantNumbers]
) -> dict[str, Part]:
    """Return the hop records of each of some tenants, with the units that they need.

    One pass for all of them: it holds the threads of the process.
    Args: words: of whole units, of a block. links: the explanations of links and addresses.
    """
    found: dict[str, Part] = {}
    key = words[:0]
    at = 0
    while at < len(words):
        if words[at + 2] >> _MARK == Unit.KEY:
            key = words[at : at + UNIT_WORDS]
            at += UNIT_WORDS
            continue
        begin, at = at, at + UNIT_WORDS
        incoming, outgoing = words[begin + 3] & _LOW, words[begin + 3] >> 32
        number = incoming
        if at < len(words) and words[at + 2] >> _MARK == Unit.WIDE:
            number = words[at + 3] >> 32 or number
            at += UNIT_WORDS
        tenant = _tenant_of(links, number)
        if tenant is None or tenant not in tenants:
            continue
        part = found.get(tenant)
        if part is None:
            part = found[tenant] = Part(tenants[tenant])
        unit = words[begin:at]
        if outgoing and _tenant_of(links, outgoing) != tenant:
            outgoing = FOREIGN
        if _tenant_of(links, incoming) != tenant:
            incoming = 0
        unit[3] = incoming | outgoing << 32
        part.add(key, unit)
    return found


def _tenant_of(links: Mapping[int, Mapping[str, Any]], number: int) -> str | None:
    """Return the tenant of a link or an address; None: it is not known, or none of a tenant."""
    link = links.get(number)
    return None if link is None else link["tenant"]


def _links_in(words: array[int]) -> set[int]:
    """Return the numbers of links and addresses in hop records, and some that are none: it costs less to look at the
    words of all units alike.
    """
    return {number for word in set(words[3::UNIT_WORDS]) for number in (word & _LOW, word >> 32)}


def _conditions_in(words: array[int]) -> set[int]:
    """Return the numbers of conditions in hop records."""
    return {_condition(words, at) for at in range(2, len(words), UNIT_WORDS) if words[at] >> _MARK == Unit.WIDE}


def _condition(words: array[int], at: int) -> int:
    """Return the number of the condition in a wide unit. Args: at: the place of its word 2."""
    return words[at] >> 28 & _CONDITION | (words[at - 1] >> 56 & 0xF) << 28
