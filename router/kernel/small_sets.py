"""Compact ordered sets for zero or few items.

A router has tens of thousands of such sets, and most of them hold one item or none. A `SmallSet` is a tuple while it is
small, so an empty set takes no memory of its own, and an `OrderedDict` above `_MAX_TUPLE` items. Both keep the order of
insertion and support `in`, `len`, iteration and truth. The functions return the changed set, which the caller stores:

    node.outgoing = with_item(node.outgoing, link)
    node.outgoing = without_item(node.outgoing, link)
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeAlias, TypeVar

_Item = TypeVar("_Item")

SmallSet: TypeAlias = tuple[_Item, ...] | OrderedDict[_Item, None]

#: A linear search through so many items is faster than a look-up by hash.
_MAX_TUPLE: Final = 4


def with_item(items: SmallSet[_Item], item: _Item) -> SmallSet[_Item]:
    """Return the set with one more item, at the end; an item that is in it keeps its place."""
    if isinstance(items, tuple):
        if item in items:
            return items
        if len(items) < _MAX_TUPLE:
            return (*items, item)
        items = OrderedDict.fromkeys(items)
    items[item] = None
    return items


def without_item(items: SmallSet[_Item], item: _Item) -> SmallSet[_Item]:
    """Return the set without an item, if it is in it."""
    if isinstance(items, tuple):
        if item not in items:
            return items
        return () if len(items) == 1 else tuple([each for each in items if each is not item])
    items.pop(item, None)
    return items or ()


def with_item_first(items: SmallSet[_Item], item: _Item) -> SmallSet[_Item]:
    """Return the set with an item before all others; the item may be in it already."""
    if isinstance(items, tuple) and len(items) < _MAX_TUPLE:
        return (item, *[each for each in items if each is not item])
    if isinstance(items, tuple):
        items = OrderedDict.fromkeys(items)
    items[item] = None
    items.move_to_end(item, last=False)
    return items


def shared(items: SmallSet[_Item], other: SmallSet[_Item]) -> SmallSet[_Item]:
    """Return `other` if both sets are equal tuples, else `items`: equal sets then share one tuple in memory."""
    return other if isinstance(items, tuple) and items == other else items


def first(items: SmallSet[_Item]) -> _Item:
    """Return the oldest item. Raises: StopIteration: the set is empty."""
    if isinstance(items, tuple) and items:
        return items[0]
    return next(iter(items))
