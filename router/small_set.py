"""Collections of which a router has tens of thousands, and most of which hold nothing, or one thing.

A `Few` is a tuple as long as it is small, so that an empty one takes no memory of its own, and an `OrderedDict` once it
is not. Either keeps the order in which things came, and is read in the same ways: `in`, `len`, iteration, truth. Who
changes one puts what has become of it in its place:

    node.outgoing = including(node.outgoing, link)
    node.outgoing = excluding(node.outgoing, link)
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeAlias, TypeVar

Thing = TypeVar("Thing")

Few: TypeAlias = tuple[Thing, ...] | OrderedDict[Thing, None]

#: As many are looked through one by one in less time than it takes to find one by its hash.
MOST: Final = 4


def including(few: Few[Thing], thing: Thing) -> Few[Thing]:
    """With one more, behind the others; where it is among them already, it keeps its place."""
    if isinstance(few, tuple):
        if thing in few:
            return few
        if len(few) < MOST:
            return (*few, thing)
        few = OrderedDict.fromkeys(few)
    few[thing] = None
    return few


def excluding(few: Few[Thing], thing: Thing) -> Few[Thing]:
    """Without one of them, if it is one."""
    if isinstance(few, tuple):
        return tuple([each for each in few if each is not thing]) if thing in few else few
    few.pop(thing, None)
    return few or ()


def preceding(few: Few[Thing], thing: Thing) -> Few[Thing]:
    """With one before all others, whether it was among them or not."""
    if isinstance(few, tuple) and len(few) < MOST:
        return (thing, *(each for each in few if each is not thing))
    if isinstance(few, tuple):
        few = OrderedDict.fromkeys(few)
    few[thing] = None
    few.move_to_end(thing, last=False)
    return few


def sharing(few: Few[Thing], other: Few[Thing]) -> Few[Thing]:
    """The same, as one with another small collection of the same things: one tuple less to keep."""
    return other if isinstance(few, tuple) and few == other else few


def first(few: Few[Thing]) -> Thing:
    """The one that has been there longest. Raises: StopIteration: there is none."""
    return next(iter(few))
