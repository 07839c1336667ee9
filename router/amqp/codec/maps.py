"""Maps with keys that a dict cannot hold or tell apart (§1.6.23).

In AMQP, true, long 1, uint 1 and double 1.0 are four different keys, and a list is a legal key. In a dict those four
are one key, and a list is not allowed. So keys are identical here if their encodings are. A decoded map is a dict if a
dict can hold it, else a `PairMap`. A map that may have thousands of entries is `Entries`, decoded on demand.
"""

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from typing import Any, TypeAlias

from amqpmesh.router.amqp.codec.encoder import REFUSALS, write_value
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import shown

MAX_NUMERIC_KEYS = 256
"""The most keys of a decoded dict that has keys other than strings, symbols or binary; a larger map is a PairMap.
A peer can choose numbers whose hashes collide, which makes a dict quadratic. Hashes of text and octets are salted."""

_SECRETLY_HASHED = frozenset({str, Symbol, bytes})


class PairMap(Mapping[Any, Any]):
    """An ordered map with AMQP values as keys, which differ by type as well as by value: `m[UInt(1)]` is not `m[1]`.

    Two maps are equal if they hold equal pairs in the same order: the standard's maps are ordered.
    Raises: ValueError: two keys are identical.
    """

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        self._pairs: dict[bytes, tuple[Any, Any]] = {}
        for key, value in pairs:
            if self._pairs.setdefault(write_value(key, 0), pair := (key, value)) is not pair:
                raise ValueError(f"the key {shown(key)} occurs twice")

    def __getitem__(self, key: Any) -> Any:
        try:
            return self._pairs[write_value(key, 0)][1]
        except REFUSALS as error:
            raise KeyError(key) from error

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self._pairs.values())

    def __len__(self) -> int:
        return len(self._pairs)

    def items(self) -> ItemsView[Any, Any]:
        """Return a view of the pairs, in order."""
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        """Return a view of the values, in order."""
        return _Values(self)

    def pairs(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over the pairs, in order, without key look-ups."""
        return iter(self._pairs.values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PairMap):
            return NotImplemented
        return list(self._pairs) == list(other._pairs) and list(self.values()) == list(other.values())

    __hash__ = None  # type: ignore[assignment]  # as dict: its values may be mutable

    def __repr__(self) -> str:
        return f"PairMap({list(self._pairs.values())!r})"


ReadEntry: TypeAlias = Callable[[bytes, int], tuple[Any, Any, int]]
"""A function from (octets, offset) to (key, value, offset behind them). Raises: ProtocolError: an illegal entry."""


class Entries(Mapping[Any, Any]):
    """A map that is kept encoded; each read decodes entries anew, in order.

    `len` and truth cost nothing. Iteration, over `items()` too, decodes the entries that are read. A look-up may decode
    them all. Identical keys are not detected.
    Raises: ProtocolError, when an entry is read: decode-error or invalid-field (CONNECTION): it is not legal.
        resource-limit-exceeded (LINK): its value alone holds more than `FEW_VALUES`.
    """

    __slots__ = ("_count", "_octets", "_read")

    def __init__(self, octets: bytes, count: int, read: ReadEntry) -> None:
        """Args: octets: the encoded constituents. count: the number of entries."""
        self._octets = octets
        self._count = count
        self._read = read

    def __getitem__(self, key: Any) -> Any:
        for one, value in self.pairs():
            if one == key:
                return value
        raise KeyError(key)

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self.pairs())

    def __len__(self) -> int:
        return self._count

    def items(self) -> ItemsView[Any, Any]:
        """Return a view of the entries, in order."""
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        """Return a view of the values, in order."""
        return _Values(self)

    def pairs(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over the entries, in order, without key look-ups."""
        offset = 0
        for _ in range(self._count):
            key, value, offset = self._read(self._octets, offset)
            yield key, value

    __hash__ = None  # type: ignore[assignment]  # as dict

    def __repr__(self) -> str:
        return f"<Entries: {self._count}>"


# The views of `Mapping` look up each key, which encodes it or decodes all entries before it. For maps that are keys of
# maps that would double the work with each level.


class _Items(ItemsView[Any, Any]):
    __slots__ = ()
    _mapping: PairMap | Entries

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._mapping.pairs()


class _Values(ValuesView[Any]):
    __slots__ = ()
    _mapping: PairMap | Entries

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._mapping.pairs())


def make_map(keys: Sequence[Any], values: Sequence[Any]) -> Mapping[Any, Any]:
    """Make a decoded map, in order: a dict if a dict can tell its keys apart, else a `PairMap`.

    Raises: ValueError: two keys are identical.
    """
    numeric = not _SECRETLY_HASHED.issuperset(map(type, keys))
    if not numeric:
        plain = dict(zip(keys, values, strict=True))
        if len(plain) == len(keys):
            return plain
    pairs = PairMap(zip(keys, values, strict=True))
    if len(keys) > MAX_NUMERIC_KEYS:
        return pairs
    try:
        plain = dict(zip(keys, values, strict=True))
    except TypeError:
        return pairs
    return plain if len(plain) == len(keys) else pairs
