"""Indexes of rules about peers, by what the rules ask of a peer.

A policy has thousands of groups, and a peer is in a few of them. An index finds those that can have the peer without
asking each of them; the rule itself decides.
"""

import ipaddress
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, Generic, NamedTuple, TypeVar

from amqpmesh.policies.access import Peer
from amqpmesh.policies.names import NamePattern

T = TypeVar("T")
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

HOST: Final = "host"
"""The attribute of a peer that networks are about; the others are names."""


CLAIM: Final = "claim."
"""The prefix of an attribute that is a claim of the peer's token."""


class Form(NamedTuple):
    """The part of an attribute that is compared."""

    part: str
    """`all`, `prefix` or `suffix` of a name; `4` or `6`: the version of a network."""
    size: int
    """The characters of a prefix or suffix, or the bits of a network's prefix; 0 for a whole name."""


class Key(NamedTuple):
    """A value that a peer must show for a condition to hold."""

    shown: str
    """The attribute of `Peer`, or one of its claims: `claim.team`."""
    form: Form
    value: str | int


Condition = Sequence[Key]
"""Keys of which a peer shows at least one if the condition holds for it. Without keys: the condition has none to find
it by."""


def names(shown: str, patterns: Iterable[NamePattern]) -> Condition:
    """Return the condition that one of some patterns matches a name."""
    keys = [_key(shown, each) for each in patterns]
    found = [each for each in keys if each is not None]
    return found if len(found) == len(keys) else ()


def _key(shown: str, pattern: NamePattern) -> Key | None:
    first, last = pattern.prefix, pattern.suffix
    if pattern.is_name:
        return Key(shown, Form("all", 0), first)
    if first:
        return Key(shown, Form("prefix", len(first)), first)
    return Key(shown, Form("suffix", len(last)), last) if last else None


def networks(some: Iterable[Network]) -> Condition:
    """Return the condition that the address of a peer's host is in one of some networks."""
    return [
        Key(HOST, Form(str(each.version), each.prefixlen), _leading_bits(each.network_address, each.prefixlen))
        for each in some
    ]


@lru_cache(maxsize=16)  # all rules ask for the same host, one after the other
def host_address(host: str) -> Address | None:
    """Return the address of a peer's host, an IPv4 address in IPv6 as itself; None: it is none, as of a stream."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


class PeerIndex(Generic[T]):
    """Rules, found by what a peer shows. The time of a search grows with what it finds, not with the rules."""

    def __init__(self, rules: Iterable[tuple[T, Iterable[Condition]]]) -> None:
        """Args: rules: each with its conditions, all of which hold for a peer that the rule is about."""
        rows = [(rule, [set(keys) for keys in conditions if keys]) for rule, conditions in rules]
        # A rule is found by its rarest condition: a thousand groups may name the same users, each another network.
        uses = Counter(key for _, conditions in rows for keys in conditions for key in keys)
        self._always: list[tuple[int, T]] = []
        self._found: dict[Key, list[tuple[int, T]]] = {}
        self._forms: dict[str, set[Form]] = {}
        for place, (rule, conditions) in enumerate(rows):
            if not conditions:
                self._always.append((place, rule))
                continue
            for key in min(conditions, key=lambda keys: sum(uses[each] for each in keys)):
                self._found.setdefault(key, []).append((place, rule))
                self._forms.setdefault(key.shown, set()).add(key.form)

    def candidates(self, peer: Peer) -> list[T]:
        """Return the rules that can be about a peer, in their order; each other rule is not."""
        found = dict(self._always)
        for shown, forms in self._forms.items():
            for text in _shown(peer, shown):
                for form in forms:
                    value = _part(text, form)
                    if value is not None:
                        found.update(self._found.get(Key(shown, form, value), ()))
        return [found[place] for place in sorted(found)]


def _shown(peer: Peer, shown: str) -> tuple[str, ...]:
    """Return what a peer shows of an attribute: a claim and the groups of a token may have several texts."""
    if shown.startswith(CLAIM):
        return peer.claims.get(shown.removeprefix(CLAIM), ())
    if shown == "groups":
        return peer.groups
    text = getattr(peer, shown)
    return () if text is None else (text,)


def _part(text: str, form: Form) -> str | int | None:
    """Return the part of an attribute that has a form; None: it has no such part."""
    part, size = form
    if part == "all":
        return text
    if part in ("prefix", "suffix"):
        return None if size > len(text) else text[:size] if part == "prefix" else text[-size:]
    address = host_address(text)
    return None if address is None or str(address.version) != part else _leading_bits(address, size)


def _leading_bits(address: Address, size: int) -> int:
    return int(address) >> (address.max_prefixlen - size)
