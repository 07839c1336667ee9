"""Links whose large messages have come faster than their rates of octets allow: what they owe is paid in time.

Places of their sessions' windows are withheld meanwhile (`RateMeter.withhold`), so that no more of the messages comes.
"""

from __future__ import annotations

from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amqpmesh.router.kernel import RateMeter

INTERVAL: Final = 0.02
"""Seconds between two looks at a link, or at a line of links, at least. Credit for a rate of thousands in a second
comes in pieces as large as the rate allows in this time: each piece costs a turn of the router.
"""

AT_ONCE: Final = 500
"""Links that are looked at in one turn; of more, and in a longer line, the others are looked at the next time."""

PAUSE: Final = 0.001
"""Seconds after which further links, and the lines of further tenants, are looked at: others are served meanwhile."""


class Debtors:
    """The links of a router that owe octets, in the order in which they are looked at."""

    def __init__(self) -> None:
        self._links: dict[RateMeter, None] = {}
        self.due = inf
        """The time of the next look, seconds."""

    def enter(self, meter: RateMeter) -> None:
        """Have a link looked at, until it has paid."""
        self._links[meter] = None
        self.due = min(self.due, meter.at + INTERVAL)

    def leave(self, meter: RateMeter) -> None:
        """Free what is withheld of a link, whatever it owes."""
        if meter.withheld:
            del self._links[meter]
            meter.give_back()

    def take(self, now: float) -> list[RateMeter]:
        """Return the links to look at now: each is to be settled, and passed to `look`."""
        if now < self.due:
            return []
        self.due = now + PAUSE if len(self._links) > AT_ONCE else inf
        return list(islice(self._links, AT_ONCE))

    def look(self, meter: RateMeter, now: float) -> None:
        """Free what is withheld of a link that was settled and owes nothing, or have it looked at again."""
        del self._links[meter]
        seconds = meter.due()
        if seconds <= 0:
            meter.give_back()
            return
        self._links[meter] = None
        self.due = min(self.due, now + max(INTERVAL, seconds))
