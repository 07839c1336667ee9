"""Patterns of addresses with `*` and `#`, and the most specific one that matches.

An address is a row of tokens separated by `/` and `.`; a token can be empty. In a pattern the token `*` stands for
exactly one token, and `#` for any number of them, also none. Any other token stands for itself, also one that contains
a `*`. The two separators are distinct, since addresses are compared exactly: `a.b` is not `a/b`, and `a/*` matches
`a/b` but not `a.b`. The tokens that a `#` stands for can have either separator. If a `#` stands for nothing, the
separator before it goes with it (`news/#` matches `news`), or the one after it if it comes first (`#/news` matches
`news`).

Only the first 255 separators count. The rest is one long token, in addresses and patterns alike. No address in real use
has as many, and one made to be slow costs a fraction of a millisecond.

The most specific pattern wins. Two patterns are compared token by token from the left: a literal token precedes `*`,
`*` precedes the end of the pattern, and the end precedes `#`. If that decides nothing (`#/a/#` and `#/b/#`, for `a/b`),
the order of the characters does, so the result never depends on the order of the configuration.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Generic, TypeVar

T = TypeVar("T")
Step = tuple[str, str]
"""A separator, "" before the first token, and the token that follows it."""

_SEPARATOR = re.compile(r"([/.])")
_MAX_SEPARATORS = 255
_ANY_BEFORE = ("", "/", ".")


def steps(text: str) -> list[Step]:
    """Split an address or a pattern into steps; the steps joined give the text again."""
    first, *rest = _SEPARATOR.split(text, _MAX_SEPARATORS)
    return [("", first), *zip(rest[::2], rest[1::2], strict=True)]


class _Node(Generic[T]):
    """A node of the table, for the patterns that begin with the same steps."""

    __slots__ = ("hashes", "here", "literals", "stars")

    def __init__(self) -> None:
        self.here: tuple[str, T] | None = None
        """The pattern that ends here, and its value."""
        self.literals: dict[Step, _Node[T]] = {}
        self.stars: dict[str, _Node[T]] = {}
        """The next nodes, by the separator before the `*`; `hashes` likewise."""
        self.hashes: dict[str, _Node[T]] = {}

    def child(self, step: Step) -> "_Node[T]":
        """Return the node that a step leads to, and make it if there is none."""
        separator, word = step
        if word == "*":
            return self.stars.setdefault(separator, _Node())
        if word == "#":
            return self.hashes.setdefault(separator, _Node())
        return self.literals.setdefault(step, _Node())


class _Positions:
    """The positions of an address' steps. A set of positions is a number: bit p means "p tokens are matched"."""

    __slots__ = ("after", "all", "of")

    def __init__(self, address: str) -> None:
        self.of: dict[Step, int] = {}
        """By literal step: the positions that the step comes directly after."""
        self.after: dict[str, int] = dict.fromkeys(_ANY_BEFORE, 1)
        """By separator: the positions that it comes directly after, with any token."""
        row = steps(address)
        for position, (separator, token) in enumerate(row):
            # A pattern meets the first token with a separator only after a `#` that stands for nothing.
            for before in (separator,) if position else _ANY_BEFORE:
                self.of[before, token] = self.of.get((before, token), 0) | 1 << position
            self.after[separator] |= 1 << position
        self.all = (2 << len(row)) - 1


@lru_cache(maxsize=16)  # several tables are asked for the same address, one after the other
def _positions(address: str) -> _Positions:
    return _Positions(address)


class PatternTable(Generic[T]):
    """A value per pattern; `lookup` finds the value of the most specific pattern that an address falls under.

    Raises: ValueError: two patterns are equal; the message names it.
    """

    def __init__(self, patterns: Iterable[tuple[str, T]] = ()) -> None:
        self._root: _Node[T] = _Node()
        self._literal: dict[str, T] = {}
        for pattern, value in patterns:
            self._add(pattern, value)

    def _add(self, pattern: str, value: T) -> None:
        node = self._root
        wild = False
        for step in steps(pattern):
            node = node.child(step)
            wild = wild or step[1] in ("*", "#")
        if node.here is not None:
            raise ValueError(f"pattern {pattern!r} is given twice")
        node.here = (pattern, value)
        if not wild:
            self._literal[pattern] = value

    def may_match(self, address: str) -> bool:
        """Tell whether a pattern begins as an address does. This is faster than `lookup`."""
        root = self._root
        return bool(root.stars or root.hashes) or ("", _SEPARATOR.split(address, 1)[0]) in root.literals

    def lookup(self, address: str) -> T | None:
        """Return the value of the most specific pattern that matches the address; None: no pattern matches."""
        found = self.find(address)
        return None if found is None else found[1]

    def find(self, address: str) -> tuple[str, T] | None:
        """Return the most specific pattern that matches the address, and its value.

        Each node of the table is visited at most once, with all positions at which it can be reached. So an address
        made to be slow costs a few operations on 257 bits for each node, without recursion.
        """
        if address in self._literal:  # nothing is more specific than the address itself
            return address, self._literal[address]
        if not self.may_match(address):
            return None
        where = _positions(address)
        end = where.all ^ where.all >> 1
        # The most specific node is popped first, so a node pushes its `#` first and its literals last.
        stack: list[tuple[_Node[T], int, bool]] = [(self._root, 1, False)]
        while stack:
            node, positions, ends = stack.pop()
            if ends:
                return node.here
            # Most nodes have children of one kind alone: what is empty costs no call.
            if node.hashes:
                for separator in sorted(node.hashes, reverse=True):
                    swallows = positions & where.after[separator]
                    # It can end at any position from the lowest one at which it can start.
                    beyond = where.all & -(swallows & -swallows) << 1 if swallows else 0
                    stack.append((node.hashes[separator], positions | beyond, False))
            if node.here is not None and positions & end:
                stack.append((node, 0, True))
            if node.stars:
                stack.extend(
                    (node.stars[separator], taken << 1, False)
                    for separator in sorted(node.stars, reverse=True)
                    if (taken := positions & where.after[separator])
                )
            if node.literals:
                stack.extend(
                    (node.literals[step], taken << 1, False)
                    for step in sorted(node.literals.keys() & where.of.keys(), reverse=True)
                    if (taken := positions & where.of[step])
                )
        return None
