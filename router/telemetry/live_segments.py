"""Segments in memory, of what a router has recorded lately, for those who listen. No threads, tasks or clocks.

Each is whole: it explains the links that its hop records name, and begins and ends as a segment on the disk does. The
segment of a tenant has nothing of others: its records have numbers of their own.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from amqpmesh.router.telemetry.schema import EVERYTHING, UNIT_WORDS, VERSION, Kind, Unit
from amqpmesh.router.telemetry.segments import block, bodies, maps

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

_LOW: Final = 0xFFFF_FFFF

_MARK: Final = 56
"""The shift of the octet of a unit's word 2 that tells its kind."""

_CONDITION: Final = (1 << 28) - 1

MOST: Final = 2**20
"""Octets of records after which a segment is to be closed at once."""

_MAP: Final = 250
"""Octets of a map record, about."""


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


class LiveSegments:
    """The segments of one life of a router, beside those on the disk."""

    def __init__(self, router: str, epoch: int, sample: int, links: Mapping[int, dict[str, Any]]) -> None:
        """Args: epoch: of this life, milliseconds since 1970. sample: recorded keys, of 2**32 possible ones.
        links: those that were explained before, by number.
        """
        self._router = router
        self._epoch = epoch
        self.sample = sample
        #: The number of the last segment. Those on the disk have other numbers.
        self.number = 0
        #: The explanations of links by number, and the numbers of links that ended in this segment, and in the last.
        self._links = dict(links)
        self._ended: set[int] = set()
        self._leaving: set[int] = set()
        self._parts: list[_Maps | _Hops] = []
        self._octets = 0
        #: Records of each tenant in the segments before, by kind.
        self._numbers: dict[tuple[str, Kind], int] = {}

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
            self._octets += _MAP * len(records)

    def take_hops(self, words: memoryview, first: int, count: int) -> None:
        """Accept hop records, for those who listen. Args: words: octets. first: the number of the first one."""
        copied = array("Q")
        copied.frombytes(words)
        self._parts.append(_Hops(first, count, copied))
        self._octets += len(words)

    def forget(self, numbers: Collection[int]) -> None:
        """Forget links that are gone, after the next segment: they may have deliveries that are recorded late."""
        self._ended.update(numbers)

    def close(self, now: int, tenants: Collection[str], dropped: int) -> Iterator[tuple[str, str, bytes]]:
        """Close the segment, and begin the next one.

        Args: now: nanoseconds since 1970. tenants: the keys of those that listen, or `EVERYTHING`. dropped: hop records
            that this life has lost.
        Yields: for each of them its key, the name of the segment, without a suffix, and its octets. A tenant without
            records has no segment.
        """
        parts, self._parts, self._octets = self._parts, [], 0
        if parts:
            self.number += 1
            name = f"{self._epoch:013d}.{self.number:06d}"
            for tenant in tenants:
                wanted = parts if tenant == EVERYTHING else self._of_tenant(parts, tenant)
                if wanted:
                    lost = dropped if tenant == EVERYTHING else 0
                    yield tenant, name, b"".join(self._segment(wanted, tenant, now, lost))
        for number in self._leaving:
            self._links.pop(number, None)
        self._leaving, self._ended = self._ended, set()

    def _segment(self, parts: Sequence[_Maps | _Hops], tenant: str, now: int, dropped: int) -> Iterator[bytes]:
        told = {
            "version": VERSION,
            "router": self._router,
            "epoch": self._epoch,
            "segment": self.number,
            "time": now,
            "sample": self.sample,
        }
        written = 0
        hops = [each for each in parts if isinstance(each, _Hops)]
        named = set().union(*(_links_in(each.words) for each in hops))
        conditions = set().union(*(_conditions_in(each.words) for each in hops))
        links = [
            each
            for number, each in self._links.items()
            if (number in named and tenant in (EVERYTHING, each["tenant"]))
            or (number in conditions and each["direction"] == "condition")
        ]
        for kind, first, records in (
            (Kind.SEGMENT, self.number - 1, [told]),
            (Kind.LINK, 0, links),
            *(each for each in parts if isinstance(each, _Maps)),
        ):
            for at, count, body in bodies(records):
                yield block(kind, 0 if kind is Kind.LINK else first + at, count, body) + body
                written += 1
        for first, count, words in hops:
            octets = words.tobytes()
            yield block(Kind.HOP, first, count, octets) + octets
            written += 1
        end = {"time": now, "hops": sum(each.hops for each in hops), "blocks": written, "dropped": dropped}
        body = maps([end])
        yield block(Kind.END, self.number - 1, 1, body) + body

    def _of_tenant(self, parts: Sequence[_Maps | _Hops], tenant: str) -> list[_Maps | _Hops]:
        """Return the records of a tenant, with numbers that count no others."""
        numbers = {number for number, each in self._links.items() if each["tenant"] == tenant}
        found: list[_Maps | _Hops] = []
        for each in parts:
            if isinstance(each, _Maps):
                records = [record for record in each.records if record.get("tenant") == tenant]
                if records:
                    found.append(_Maps(each.kind, self._count(tenant, each.kind, len(records)), records))
            else:
                words, count = of_links(each.words, numbers)
                if count:
                    found.append(_Hops(self._count(tenant, Kind.HOP, count), count, words))
        return found

    def _count(self, tenant: str, kind: Kind, count: int) -> int:
        """Count records of a tenant. Returns: the number of the first."""
        first = self._numbers.get((tenant, kind), 0)
        self._numbers[tenant, kind] = first + count
        return first


def of_links(words: Sequence[int], numbers: Collection[int]) -> tuple[array[int], int]:
    """Return the hop records of some links, with the units that they need, and how many they are.

    Args: words: of whole units, of a block. numbers: of incoming links, and of addresses of single deliveries.
    """
    found: array[int] = array("Q")
    count = at = 0
    key: Sequence[int] | None = None
    while at < len(words):
        if words[at + 2] >> _MARK == Unit.KEY:
            key = words[at : at + UNIT_WORDS]
            at += UNIT_WORDS
            continue
        end = at + UNIT_WORDS
        number = words[at + 3] & _LOW
        if end < len(words) and words[end + 2] >> _MARK == Unit.WIDE:
            number = words[end + 3] >> 32 or number
            end += UNIT_WORDS
        if number in numbers:
            if key is not None:
                found.extend(key)
                key = None
            found.extend(words[at:end])
            count += 1
        at = end
    return found, count


def _links_in(words: array[int]) -> set[int]:
    """Return the numbers of links and addresses in hop records, and some that are none: it costs less to look at the
    words of all units alike.
    """
    return {number for word in set(words[3::UNIT_WORDS]) for number in (word & _LOW, word >> 32)}


def _conditions_in(words: array[int]) -> set[int]:
    """Return the numbers of conditions in hop records."""
    return {
        words[at] >> 28 & _CONDITION | (words[at - 1] >> 56 & 0xF) << 28
        for at in range(2, len(words), UNIT_WORDS)
        if words[at] >> _MARK == Unit.WIDE
    }
