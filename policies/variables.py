"""Variables in patterns of addresses: `replies/${user}/#`.

A value stands for itself. It can neither act as `*` or `#`, nor reach beyond its place: else the user `alice.boss`
could have the addresses of `boss`, or the user `#` those of all.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import Final

_VARIABLE: Final = re.compile(r"\$\{([^}]*)\}")
_KNOWN: Final = ("user", "tenant")
CLAIM: Final = "claim."
"""The prefix of variables that stand for a claim of the peer's token: `${claim.team}`."""
_SEPARATORS: Final = "/."
LONGEST: Final = 255
"""Characters of the longest value: it is a part of an address."""
MOST: Final = 64
"""Patterns that one pattern gives at most, for claims with several values. More of them give nothing: a peer that has
some of its rights would be hard to explain.
"""


def names(pattern: str) -> tuple[str, ...]:
    """Return the variables of a pattern, in their order."""
    return tuple(_VARIABLE.findall(pattern))


def fault(pattern: str) -> str | None:
    """Return the reason to refuse a pattern for its variables; None: there is none."""
    unknown = next((name for name in names(pattern) if not (name in _KNOWN or claim_in(name))), None)
    if unknown is not None:
        return f"has the unknown variable ${{{unknown}}}; known are ${{user}}, ${{tenant}} and ${{claim.NAME}}"
    return "has a ${ without its }" if "${" in _VARIABLE.sub("", pattern) else None


def claim_in(variable: str) -> str:
    """Return the name of the claim that a variable stands for; "": it stands for none."""
    return variable.removeprefix(CLAIM) if variable.startswith(CLAIM) else ""


def with_placeholders(pattern: str) -> str:
    """Return a pattern with a letter in place of each variable."""
    return _VARIABLE.sub("x", pattern)


def with_stars(pattern: str) -> str:
    """Return a pattern with a `*` in place of each token that has a variable: no narrower than with any value.

    A value may have a separator that the pattern does not have; such values are left out.
    """
    parts = re.split(r"([/.])", _VARIABLE.sub("\0", pattern))
    return "".join("*" if "\0" in part else part for part in parts)


def filled(pattern: str, values: Mapping[str, str]) -> str | None:
    """Return a pattern with the values of its variables.

    Returns: None: the pattern gives this peer nothing. A variable has no value, or one that is empty or too long, or
        that contains NUL, a separator that the pattern has, too, or a token that would be `*` or `#`, by itself or
        together with what is next to the variable.
    """
    fixed = _VARIABLE.sub("", pattern)
    forbidden = {each for each in _SEPARATORS if each in fixed} | {"\0"}
    for name in names(pattern):
        value = values.get(name, "")
        if not value or len(value) > LONGEST or not forbidden.isdisjoint(value):
            return None
        if _wildcards(value):
            return None
    result = _VARIABLE.sub(lambda found: values[found[1]], pattern)
    return result if _wildcards(result) == _wildcards(with_placeholders(pattern)) else None


def expanded(pattern: str, values: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Return a pattern with the values of its variables, once for each choice of one value for each variable.

    Args: values: those of each variable; a variable without values makes the pattern give nothing.
    """
    variables = tuple(dict.fromkeys(names(pattern)))
    choices = [values.get(name, ()) for name in variables]
    if prod(map(len, choices)) > MOST:
        return
    for chosen in product(*choices):
        found = filled(pattern, dict(zip(variables, chosen, strict=True)))
        if found is not None:
            yield found


def _wildcards(pattern: str) -> int:
    return sum(token in ("*", "#") for token in re.split(r"[/.]", pattern))
