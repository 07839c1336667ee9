"""How much may be taken of somebody, or said: so much in a second, and some of it at once."""

from typing import Final, NamedTuple

NEVER: Final = float("-inf")
"""Up to when somebody has used what he may who has used nothing yet."""


class Rate(NamedTuple):
    """A token bucket; what is remembered of a user is one time, up to when he has used his share (`spent`)."""

    a_second: float
    burst: float
    """What may be used at once after a quiet time. What is more than that by itself counts as that much."""

    def when(self, spent: float, amount: float) -> float:
        """From when on an amount may be used; a time that has passed: now."""
        return spent - (self.burst - min(amount, self.burst)) / self.a_second

    def used(self, spent: float, amount: float, now: float) -> float:
        """`spent`, once an amount is used."""
        return max(spent, now) + amount / self.a_second

    def part(self, of_rate: float, of_burst: float) -> "Rate":
        """A smaller one, for who wants to be sure that he stays within this."""
        return Rate(self.a_second * of_rate, max(1.0, self.burst * of_burst))
