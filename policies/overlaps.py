"""Comparison of two patterns of addresses: whether an address falls under both, or all of one under the other."""

from __future__ import annotations

from itertools import product
from typing import Final

from amqpmesh.policies.patterns import PatternTable, Step, steps

_MOST_HASHES: Final = 3
"""Signs `#` of the narrower pattern up to which `covers` looks: each multiplies the addresses to try by three."""

_State = tuple[int, bool]
"""A place in a pattern: the number of its steps that are behind, and whether the `#` there stands for a token already.
"""


def overlap(one: str, other: str) -> bool:
    """Tell whether an address falls under both patterns.

    Both are read at the same time, as two automata that take the same tokens. The time is in the product of their
    lengths.
    """
    left, right = steps(one), steps(other)
    if _are_apart(left, right):
        return False
    seen: set[tuple[_State, _State, bool]] = set()
    stack: list[tuple[_State, _State, bool]] = [((0, False), (0, False), True)]
    while stack:
        state = stack.pop()
        if state in seen:
            continue
        seen.add(state)
        a, b, is_first = state
        if a[0] == len(left) and b[0] == len(right) and not is_first:
            return True
        stack.extend((after, b, is_first) for after in _skipped(left, a))
        stack.extend((a, after, is_first) for after in _skipped(right, b))
        for (ours, after), (theirs, after_theirs) in product(_taken(left, a), _taken(right, b)):
            if _agree(ours, theirs, is_first=is_first):
                stack.append((after, after_theirs, False))
    return False


def _are_apart(one: list[Step], other: list[Step]) -> bool:
    """Tell whether the first tokens show that no address falls under both patterns, as they do for most."""
    return one[0] != other[0] and not {one[0][1], other[0][1]} & {"*", "#"}


def _skipped(pattern: list[Step], state: _State) -> list[_State]:
    """Return the places that a pattern reaches without a token: behind a `#`."""
    at, _ = state
    return [(at + 1, False)] if at < len(pattern) and pattern[at][1] == "#" else []


def _taken(pattern: list[Step], state: _State) -> list[tuple[tuple[str | None, str | None], _State]]:
    """Return the tokens that a pattern can take at a place, each with the place behind it.

    A token is a separator and a word; None stands for any.
    """
    at, is_within = state
    if at == len(pattern):
        return []
    separator, word = pattern[at]
    if word == "#":
        return [((None if is_within else separator, None), (at, True))]
    return [((separator, None if word == "*" else word), (at + 1, False))]


def _agree(one: tuple[str | None, str | None], other: tuple[str | None, str | None], *, is_first: bool) -> bool:
    """Tell whether two patterns can take the same token. Args: is_first: no separator stands before it."""
    separators = is_first or None in (one[0], other[0]) or one[0] == other[0]
    return separators and (None in (one[1], other[1]) or one[1] == other[1])


def covers(wide: str, narrow: str) -> bool:
    """Tell whether each address under the pattern `narrow` falls under `wide`, as far as its signs show.

    Addresses under `narrow` are tried in which the wildcards stand for tokens that no pattern has. Returns: False also
    if `narrow` has more than three `#`.
    """
    row, broad = steps(narrow), steps(wide)
    hashes = sum(word == "#" for _, word in row)
    if hashes > _MOST_HASHES or _are_apart(row, broad):
        return False
    table = PatternTable([(wide, None)])
    many = len(broad) + 1  # more than `wide` has stars
    for runs in product((0, 1, many), repeat=hashes):
        for joint in "/.":
            address = _example(row, list(runs), joint)
            if address and table.find(address) is None:
                return False
    return True


def _example(pattern: list[Step], runs: list[int], joint: str) -> str:
    """Return an address under a pattern. Args: runs: the tokens that each `#` stands for. joint: separates them."""
    found: list[str] = []
    left = iter(runs)
    for separator, word in pattern:
        if word == "#":
            tokens = ["\0"] * next(left)
            if tokens:
                found += (separator, joint.join(tokens))
        else:
            found += (separator, "\0" if word == "*" else word)
    return "".join(found[1:])
