"""The delay of the next answer to a login, after wrong passwords."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

FORGOTTEN: Final = 900.0
"""Seconds after which a wrong password is forgotten."""


@dataclass(slots=True)
class _Failures:
    count: int
    last: float


class Guesses:
    """Wrong passwords by host and user.

    The first few cost nothing. From then on each answer waits twice as long as the one before: 1 s, 2 s, 4 s. A user's
    logins from other hosts are not concerned, and a right password ends the wait.
    """

    def __init__(self, *, free: int, longest: float, most: int) -> None:
        """Args: free: wrong passwords that cost nothing. longest: seconds that an answer waits at most. most: pairs of
        host and user that are remembered; of more, the one that failed longest ago is forgotten.
        """
        self._free = free
        self._longest = longest
        self._most = most
        self._failures: OrderedDict[tuple[str, str], _Failures] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of pairs of host and user that are remembered."""
        return len(self._failures)

    def wait(self, host: str, user: str, now: float) -> float:
        """Return the seconds that the next answer waits.

        Args: host: the client's address. user: prepared with SASLprep; it need not exist. now: seconds of any
            monotonic clock.
        """
        failures = self._failures.get((host, user))
        if failures is None or now - failures.last > FORGOTTEN or failures.count < self._free:
            return 0.0
        return min(self._longest, 2.0 ** min(failures.count - self._free, 32))

    def failed(self, host: str, user: str, now: float) -> None:
        """Note a wrong password. Args: as of `wait`."""
        failures = self._failures.pop((host, user), None)
        if failures is None or now - failures.last > FORGOTTEN:
            failures = _Failures(0, now)
        failures.count += 1
        failures.last = now
        self._failures[host, user] = failures
        if len(self._failures) > self._most:
            self._failures.popitem(last=False)

    def succeeded(self, host: str, user: str) -> None:
        """Note a right password."""
        self._failures.pop((host, user), None)
