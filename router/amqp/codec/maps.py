"""Maps whose keys Python would confuse (§1.6.23).

To the standard, true, long 1, uint 1 and double 1.0 are four keys, and a list is as good a key as any; to a dict the
four are one, and a list is none. So two keys are identical here if their encodings are. What a dict can hold is a
dict; the rest is a `PairMap`. Of what may have thousands of entries each is read when it is asked for: `Entries`.
"""

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from typing import Any, TypeAlias

from amqpmesh.router.amqp.codec.encoder import REFUSALS, write_value
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import shown

MAX_NUMERIC_KEYS = 256
"""How many keys a decoded dict may have if some are not strings, symbols or binary; a map with more is a PairMap.
Anybody can choose numbers that collide in a dict, and so make it quadratic; the hashes of octets are secret to the
process."""

_SECRETLY_HASHED = frozenset({str, Symbol, bytes})


class PairMap(Mapping[Any, Any]):
    """An ordered map with any AMQP values as keys, told apart by type as well as by value: `m[UInt(1)]` is not `m[1]`.

    Two are equal if they hold equal pairs in the same order: the standard's maps are ordered.
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
        """The pairs, in order."""
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        """The values, in order."""
        return _Values(self)

    def pairs(self) -> Iterator[tuple[Any, Any]]:
        """The pairs, in order, without looking for any."""
        return iter(self._pairs.values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PairMap):
            return NotImplemented
        return list(self._pairs) == list(other._pairs) and list(self.values()) == list(other.values())

    __hash__ = None  # type: ignore[assignment]  # as dict: its values may be mutable

    def __repr__(self) -> str:
        return f"PairMap({list(self._pairs.values())!r})"


ReadEntry: TypeAlias = Callable[[bytes, int], tuple[Any, Any, int]]
"""(octets, offset) to (key, value, offset behind them). Raises: ProtocolError: there is no legal entry."""


class Entries(Mapping[Any, Any]):
    """A map as it came, of which each entry is decoded when it is asked for, in order, and nothing is kept.

    `len` and truth cost nothing; to iterate, over `items()` too, costs what is read of it; to look for a key may read
    all. Keys that are identical are not found out.
    Raises: ProtocolError, by whatever reads an entry: decode-error or invalid-field (CONNECTION): it is not legal.
        resource-limit-exceeded (LINK): its value alone holds more than `FEW_VALUES`.
    """

    __slots__ = ("_count", "_octets", "_read")

    def __init__(self, octets: bytes, count: int, read: ReadEntry) -> None:
        """Args: octets: the constituents. count: of the entries."""
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
        """The entries, in order."""
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        """Their values, in order."""
        return _Values(self)

    def pairs(self) -> Iterator[tuple[Any, Any]]:
        """The entries, in order, without looking for any."""
        offset = 0
        for _ in range(self._count):
            key, value, offset = self._read(self._octets, offset)
            yield key, value

    __hash__ = None  # type: ignore[assignment]  # as dict

    def __repr__(self) -> str:
        return f"<Entries: {self._count}>"


# The views of `Mapping` look each key up, which encodes it, or reads all before it: of a map that is the key of a map,
# and so on, that would be twice the work for each level.


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
    """A decoded map, in order: a dict where a dict can tell the keys apart.

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
