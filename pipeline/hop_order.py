"""The order of hop records with the same delivery key, found column by column for many keys at a time.

A router that sends a delivery to another one leaves a record, and so does the other router. The second record follows
the first if it names the first router as the one that the delivery came from, and has one hop less left (behind the
ingress router: the same number of hops). A delivery with one path is a chain. A multicast is a tree, and each path from
its root to a leaf is a chain. If records of a single path are missing, the others are still one chain. In a tree,
records behind a gap are a chain without a beginning, since the place of the gap is not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Numbers = np.ndarray[Any, np.dtype[Any]]

SAME: Final = ("key", "began", "hops_left", "router", "leaving")
"""Records that are equal in all of these are the same passage of the same delivery."""


@dataclass(frozen=True, slots=True)
class Chains:
    """Chains of records, by their places in the table."""

    table: pa.Table
    """The records, each passage once."""
    places: Numbers
    """The places of all chains, one chain after the other, each from its beginning."""
    offsets: Numbers
    """The offset in `places` of each chain; and the end of the last."""
    complete: Numbers
    """For each chain: it begins where the delivery entered the mesh, no record is missing, and none can follow."""
    legs: Numbers
    """For each chain: the number of chains of its key."""
    contradictions: pa.Array
    """For each chain: sentences on contradictions between its records."""

    @property
    def first(self) -> Numbers:
        """The place of each chain's first record."""
        places: Numbers = self.places[self.offsets[:-1]]
        return places

    @property
    def last(self) -> Numbers:
        """The place of each chain's last record."""
        places: Numbers = self.places[self.offsets[1:] - 1]
        return places


def chains(table: pa.Table) -> Chains:
    """Return the chains of records.

    Args: table: all records of some keys, sorted by key; within a key, first those with `began`, then by most
        `hops_left`; then by `router` and `leaving`, a number for the outgoing link. Further columns are incoming_peer,
        outgoing_peer, from_router and to_router as in `hops`, and any others.
    """
    said: dict[int, list[str]] = {}
    table = _without_repeats(table, said)
    group = _groups(table)
    began, to_router = _flags(table, "began"), _flags(table, "to_router")
    parent = _parents(table, group, began)
    follows = np.concatenate([[False], group[1:] == group[:-1]])[: len(group)]
    # In a key of one path, a record without a predecessor follows the last known record before it.
    gap = (parent < 0) & ~began & follows & _has_distinct_hops(table, group, began)[group]
    parent[gap] = np.flatnonzero(gap) - 1
    for place in np.flatnonzero(gap):
        if not to_router[place - 1]:
            earlier, later = _router(table, place - 1), _router(table, place)
            _add_sentence(
                said, group[place], f"{earlier} sent it to no router, and {later} has recorded it behind that"
            )
    for place in np.flatnonzero(began & follows):
        if _router(table, place - 1) != _router(table, place):
            sentence = f"it began its way at {_router(table, place - 1)}, and at {_router(table, place)}"
            _add_sentence(said, group[place], sentence)
    leaf = np.ones(len(group), bool)
    leaf[parent[parent >= 0]] = False
    leaves = np.flatnonzero(leaf)
    places, offsets = _walks(leaves, parent)
    gaps = np.concatenate([[0], np.cumsum(gap[places])])
    complete = began[places[offsets[:-1]]] & (gaps[offsets[1:]] == gaps[offsets[:-1]]) & ~to_router[leaves]
    legs = np.bincount(group[leaves])[group[leaves]] if len(leaves) else leaves
    sentences = pa.array(
        [said.get(each, []) for each in group[leaves].tolist()] if said else [[]] * len(leaves), _TEXTS
    )
    return Chains(table, places, offsets, complete, legs, sentences)


_TEXTS: Final = pa.list_(pa.string())


def _add_sentence(said: dict[int, list[str]], group: int, sentence: str) -> None:
    said.setdefault(int(group), []).append(sentence)


def _router(table: pa.Table, place: Any) -> str:
    found: str = table.column("router")[int(place)].as_py()
    return found


def _without_repeats(table: pa.Table, said: dict[int, list[str]]) -> pa.Table:
    """Remove records of the same passage as the record before them, and note the contradiction in `said`."""
    again = np.ones(max(0, table.num_rows - 1), bool)
    for name in SAME:
        if again.any():
            again &= _equal_to_previous(table.column(name))
    if not again.any():
        return table
    group = _groups(table)
    for place in np.flatnonzero(again) + 1:
        before, here = table.slice(place - 1, 1).to_pylist()[0], table.slice(place, 1).to_pylist()[0]
        other = ", ".join(name for name in here if here[name] != before[name])
        how = f"with another {other}" if other else "alike"
        _add_sentence(said, group[place], f"{here['router']} has recorded it twice, {how}")
    return table.filter(pa.array(np.concatenate([[True], ~again])))


def _groups(table: pa.Table) -> Numbers:
    """Return a number for each key, from 0."""
    if not table.num_rows:
        return np.zeros(0, np.int64)
    return np.concatenate([[0], np.cumsum(~_equal_to_previous(table.column("key")))])


def _equal_to_previous(column: pa.ChunkedArray) -> Numbers:
    """Return for each value except the first whether it equals the one before; two nulls are equal."""
    before, after = column.slice(0, len(column) - 1), column.slice(1)
    same = pc.fill_null(pc.equal(before, after), False)
    if column.null_count:
        same = pc.or_(same, pc.and_(pc.is_null(before), pc.is_null(after)))
    return np.asarray(same)


def _flags(table: pa.Table, name: str) -> Numbers:
    return np.asarray(pc.fill_null(table.column(name), False))


def _has_distinct_hops(table: pa.Table, group: Numbers, began: Numbers) -> Numbers:
    """Return for each key whether no two of its records are equally far from the beginning, as on a single path."""
    left = np.asarray(table.column("hops_left"))
    beside = (group[1:] == group[:-1]) & (began[1:] == began[:-1]) & (began[1:] | (left[1:] == left[:-1]))
    straight = np.ones(int(group[-1]) + 1 if len(group) else 0, bool)
    straight[group[1:][beside]] = False
    return straight


def _parents(table: pa.Table, group: Numbers, began: Numbers) -> Numbers:
    """Return for each record the place of the one before it on its path; -1: there is none."""
    routers = table.column("router").combine_chunks().dictionary_encode()
    here, size = np.asarray(routers.indices), len(routers.dictionary)

    def peers(name: str, is_router: str) -> Numbers:
        found = pc.fill_null(pc.index_in(table.column(name), value_set=routers.dictionary), -1)
        return np.where(_flags(table, is_router), np.asarray(found), -1)

    came_from, went_to = peers("incoming_peer", "from_router"), peers("outgoing_peer", "to_router")
    left = np.asarray(table.column("hops_left"))
    left_behind = np.where(began, left, left - 1)
    goers = np.flatnonzero((went_to >= 0) & (left_behind >= 0))
    comers = np.flatnonzero((came_from >= 0) & ~began)
    parent = np.full(len(group), -1, np.int64)
    if not len(goers) or not len(comers):
        return parent
    # One number for key, distance, and both routers of a passage. It is exact: that many fit into 63 bits.
    passage = ((group[goers] * _LEVELS + left_behind[goers]) * size + here[goers]) * size + went_to[goers]
    sought = ((group[comers] * _LEVELS + left[comers]) * size + came_from[comers]) * size + here[comers]
    order = np.argsort(passage, kind="stable")
    found = np.minimum(np.searchsorted(passage, sought, sorter=order), len(order) - 1)
    matches = passage[order[found]] == sought
    parent[comers[matches]] = goers[order[found[matches]]]
    return parent


_LEVELS: Final = 256
"""More than the greatest `hops_left`, which is one octet."""


def _walks(leaves: Numbers, parent: Numbers) -> tuple[Numbers, Numbers]:
    """Return the places on the ways from the roots to these leaves, one way after the other.

    Returns: also the offset of each way, and of the end.
    """
    steps = [leaves]
    while len(leaves) and (steps[-1] >= 0).any():
        # Each parent is before its child in the table, so the loop ends.
        steps.append(np.where(steps[-1] >= 0, parent[steps[-1]], -1))
    backwards = np.stack(steps[::-1], axis=1)
    on_the_way = backwards >= 0
    return backwards[on_the_way], np.concatenate([[0], np.cumsum(on_the_way.sum(axis=1))]).astype(np.int32)
