"""Two patterns that stand for each other, address by address: an address under one has one name under the other.

Both have the same wildcards in the same order, and at most one `#`. What a wildcard stands for in the address stands in
its place in the name: `invoices/#` as `billing/invoices/#` makes `billing/invoices/2026/7` of `invoices/2026/7`.
"""

from __future__ import annotations

from typing import Final

from amqpmesh.policies.access import is_reserved
from amqpmesh.policies.patterns import Step, steps

LONGEST: Final = 255
"""Characters of the longest pattern."""

MOST_TOKENS: Final = 255
"""Tokens of the longest address that has another name. The rest of a much longer one is one token in patterns, whatever
separators it has: so its tokens would not be the same under both names."""

_WILDCARDS: Final = ("*", "#")


def fault(pattern: str) -> str | None:
    """Return the reason to refuse one of the two patterns; None: there is none."""
    if not pattern:
        return "must not be empty"
    if len(pattern) > LONGEST:
        return f"must be at most {LONGEST} characters"
    if is_reserved(pattern):
        return "is a router's own address"
    # A name before an `@` is at one container. A variable has a value for each peer, and the pattern is for a tenant.
    forbidden = next((each for each in ("@", "${", "\0") if each in pattern), None)
    if forbidden is not None:
        return f"must not have {forbidden!r}"
    return "must have at most one #" if wildcards(pattern).count("#") > 1 else None


def wildcards(pattern: str) -> tuple[str, ...]:
    """Return the wildcards of a pattern, in their order."""
    return tuple(word for _, word in steps(pattern) if word in _WILDCARDS)


def renamed(address: str, under: str, to: str) -> str | None:
    """Return the other name of an address. Args: under, to: patterns without a fault, with the same wildcards.

    Returns: None: the address does not fall under the pattern `under`, has too many tokens, or would have no name.
    """
    taken = _taken(steps(address), steps(under))
    if taken is None:
        return None
    name = _filled(steps(to), taken)
    return name if name and name.count("/") + name.count(".") < MOST_TOKENS else None


def _taken(address: list[Step], pattern: list[Step]) -> list[str | None] | None:
    """Return what each wildcard of a pattern stands for, in their order; None for a `#`: for nothing.

    Returns: None: the address does not fall under the pattern, or is too long.
    """
    if len(address) > MOST_TOKENS:
        return None
    place = next((at for at, (_, word) in enumerate(pattern) if word == "#"), None)
    if place is None:
        return _matched(address, pattern)
    behind = len(pattern) - place - 1
    run = address[place : len(address) - behind]
    if len(address) < len(pattern) - 1 or (run and run[0][0] != pattern[place][0]):
        return None
    before = _matched(address[:place], pattern[:place])
    after = _matched(
        address[len(address) - behind :] if behind else [], pattern[place + 1 :], is_first=not (place or run)
    )
    if before is None or after is None:
        return None
    return [*before, _joined(run) if run else None, *after]


def _matched(address: list[Step], pattern: list[Step], *, is_first: bool = False) -> list[str | None] | None:
    """Return what each `*` of a pattern without `#` stands for; None: the address does not fall under it.

    Args: is_first: the first token has no separator before it, whatever the pattern has.
    """
    if len(address) != len(pattern):
        return None
    found: list[str | None] = []
    for at, ((separator, token), (wanted, word)) in enumerate(zip(address, pattern, strict=True)):
        if separator != wanted and not (is_first and at == 0):
            return None
        if word == "*":
            found.append(token)
        elif word != token:
            return None
    return found


def _filled(pattern: list[Step], taken: list[str | None]) -> str:
    """Return the address in which the wildcards of a pattern stand for `taken`."""
    values = iter(taken)
    found: list[Step] = []
    for separator, word in pattern:
        value = next(values) if word in _WILDCARDS else word
        if value is not None:
            found.append((separator, value))
    return _joined(found)


def _joined(row: list[Step]) -> str:
    """Join steps to a text, without a separator before the first token."""
    return "".join(separator + token for separator, token in row)[len(row[0][0]) :] if row else ""
