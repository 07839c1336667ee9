"""Addresses: a table for each pattern, with the rules for the deliveries of matching addresses."""

from enum import StrEnum
from typing import ClassVar, Final

from amqpmesh.policies.access import PREFIXES, is_published, is_reserved
from amqpmesh.policies.annotations import DeliveryAnnotationsRule
from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.address_syntax import refusal
from amqpmesh.router.config.limits import MAX_AHEAD, MAX_WORKERS, UINT_MAX
from amqpmesh.router.config.redirect import RedirectConfig
from amqpmesh.router.config.tables import Effect, Rule, Table, emptiness, setting, table


class Duplicates(StrEnum):
    """The messages that an address drops because it has seen them before."""

    OFF = "off"
    MESSAGE_ID = "message-id"


class Resumption(StrEnum):
    """The links of an address that outlive their connections (§2.6.13)."""

    OFF = "off"
    """None."""
    ON = "on"
    """Those that ask for it."""
    REQUIRED = "required"
    """All: links that do not ask for it are refused."""


class Overflow(StrEnum):
    """The behaviour of a multicast address while one receiver gives no credit and others do."""

    HOLD = "hold"
    DROP = "drop"


def _pattern_refusal(pattern: str) -> str | None:
    if is_reserved(pattern):
        return f"addresses that begin with {' or '.join(PREFIXES)} are the router's own"
    return emptiness(pattern)


def _dead_letter_refusal(address: str) -> str | None:
    return "must be an address, and not a whole container" if address.startswith("@") else refusal(address)


@table
class AddressConfig(Table):
    """The rules for deliveries of the addresses that match a pattern; the most specific pattern counts."""

    EFFECT = Effect.AT_ONCE

    pattern: str = setting(check=_pattern_refusal)
    distribution: Distribution = setting(default=Distribution.BALANCED, effect=Effect.NEW_LINKS)
    max_credit: int = setting(default=500, low=1, high=2**31 - 1)
    ahead: int = setting(default=MAX_AHEAD, low=0, high=MAX_AHEAD)
    max_unsettled: int = setting(default=5000, low=1, high=2**31 - 1, effect=Effect.NEW_LINKS)
    drain_time: float = setting(default=0.25, low=0.0, high=60.0)
    window: int = setting(default=500, low=1, high=2**31 - 1, effect=Effect.NEW_LINKS)
    anonymous_wait: float = setting(default=1.0, low=0.0, high=3600.0)
    overflow: Overflow = setting(default=Overflow.HOLD)
    overflow_time: float = setting(default=1.0, low=0.0, high=3600.0)
    copy_backlog: int = setting(default=2**20, low=0, effect=Effect.NEW_LINKS)
    redeliver: bool = setting(default=False)
    redeliver_max: int = setting(default=64 * 2**10, low=1)
    attempts: int = setting(default=3, low=1, high=UINT_MAX)
    dead_letter: str | None = setting(default=None, check=_dead_letter_refusal)
    absolute_expiry: bool = setting(default=False)
    duplicates: Duplicates = setting(default=Duplicates.OFF)
    duplicate_window: int = setting(default=10_000, low=1, high=1_000_000)
    duplicate_time: float = setting(default=60.0, low=0.1, high=86_400.0)
    delivery_annotations: DeliveryAnnotationsRule = setting(default=DeliveryAnnotationsRule.PASS)
    redirect: RedirectConfig | None = setting(default=None, effect=Effect.NEW_LINKS)
    alias: str | None = setting(default=None, check=refusal, effect=Effect.NEW_LINKS)
    worker: int | None = setting(default=None, low=0, high=MAX_WORKERS, effect=Effect.NEW_LINKS)
    resumption: Resumption = setting(default=Resumption.ON, effect=Effect.NEW_LINKS)

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "overflow",
            'does nothing unless distribution is "multicast"',
            lambda c: c.overflow is not Overflow.HOLD and c.distribution is not Distribution.MULTICAST,
        ),
        Rule(
            "dead_letter",
            "is the pattern's own address",
            lambda c: c.dead_letter is not None and c.dead_letter == c.pattern,
        ),
        Rule(
            "alias",
            "excludes a redirect and a distribution: those of its target apply",
            lambda c: c.alias is not None and (c.redirect or c.distribution is not Distribution.BALANCED),
        ),
        Rule(
            "duplicates",
            'needs the distribution "balanced" or "closest": each receiver of a multicast has messages of its own',
            lambda c: c.drops_duplicates and c.distribution not in (Distribution.BALANCED, Distribution.CLOSEST),
        ),
        Rule(
            "duplicates",
            "excludes an alias and a redirect: the messages have their receivers elsewhere",
            lambda c: c.drops_duplicates and (c.alias is not None or c.redirect is not None),
        ),
        Rule(
            "resumption",
            "excludes an alias, whose target has its own, and a redirect: no other container resumes links",
            lambda c: c.requires_resumption and (c.alias is not None or c.redirect is not None),
        ),
    )

    @property
    def requires_resumption(self) -> bool:
        """True if the links of the address have to be resumable."""
        return self.resumption is Resumption.REQUIRED

    @property
    def is_detour(self) -> bool:
        """True if there is more to a message that names the address than that it goes to the node of that name."""
        return (
            self.alias is not None
            or self.redirect is not None
            or self.distribution is Distribution.UNAVAILABLE
            or self.requires_resumption
        )

    @property
    def drops_duplicates(self) -> bool:
        """True if the address drops messages that it has seen before."""
        return self.duplicates is not Duplicates.OFF

    @property
    def advertised(self) -> str:
        """The distribution in words that other routers compare with theirs."""
        return f"{self.distribution} by {self.duplicates}" if self.drops_duplicates else self.distribution


_PLAIN: Final = AddressConfig(pattern="#")

_PUBLISHED: Final = AddressConfig(
    pattern="#",
    distribution=Distribution.MULTICAST,
    overflow=Overflow.DROP,  # routers never wait for a receiver
    max_credit=16,
    resumption=Resumption.OFF,
)


def own_config(name: str) -> AddressConfig:
    """Return the configuration of an address that is reserved for routers, and that no pattern matches."""
    return _PUBLISHED if is_published(name) else _PLAIN
