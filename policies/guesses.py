"""The delay of the next answer to a login, after wrong passwords."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, Generic, TypeVar

from amqpmesh.policies.largest import Counts

FORGOTTEN: Final = 900.0
"""Seconds after which a wrong password is forgotten."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Remembered(Generic[K, V]):
    """Values by key, some at most. Of more, the oldest one of the tenant with the most is forgotten.

    So guesses at one tenant's users do not make the router forget those at another's.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._tenants: dict[str | None, OrderedDict[K, V]] = {}
        self._counts: Counts[str | None] = Counts()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def limit(self, most: int) -> None:
        """Remember another number of values from now on."""
        self._most = most
        while self._size > most:
            self._forget_one()

    def has(self, tenant: str | None, key: K) -> bool:
        return key in self._tenants.get(tenant, ())

    def get(self, tenant: str | None, key: K) -> V | None:
        values = self._tenants.get(tenant)
        return None if values is None else values.get(key)

    def pop(self, tenant: str | None, key: K) -> V | None:
        values = self._tenants.get(tenant)
        if values is None or key not in values:
            return None
        self._size -= 1
        self._counts.remove(tenant)
        value = values.pop(key)
        if not values:
            del self._tenants[tenant]
        return value

    def put(self, tenant: str | None, key: K, value: V) -> None:
        self.pop(tenant, key)
        self._tenants.setdefault(tenant, OrderedDict())[key] = value
        self._size += 1
        self._counts.add(tenant)
        if self._size > self._most:
            self._forget_one()

    def _forget_one(self) -> None:
        largest = self._counts.largest()
        self.pop(largest, next(iter(self._tenants[largest])))


@dataclass(slots=True)
class _Failures:
    count: float
    last: float


class Guesses:
    """Wrong passwords by host and user.

    The first few cost nothing. From then on each answer waits twice as long as the one before: 1 s, 2 s, 4 s. A user's
    logins from other hosts are not concerned, and a right password ends the wait.
    """

    def __init__(self, *, free: int, longest: float, most: int) -> None:
        """Args: free: wrong passwords that cost nothing. longest: seconds that an answer waits at most. most: pairs of
        host and user that are remembered; of more, the one that failed longest ago is forgotten, of the tenant that has
        the most.
        """
        self._free = free
        self._longest = longest
        self._failures: _Remembered[tuple[str, str], _Failures] = _Remembered(most)

    def renew(self, *, free: int, longest: float, most: int) -> None:
        """Have other limits from now on. Args: as of the class."""
        self._free, self._longest = free, longest
        self._failures.limit(most)

    def __len__(self) -> int:
        """Return the number of pairs of host and user that are remembered."""
        return len(self._failures)

    def wait(self, host: str, user: str, now: float, tenant: str | None = None) -> float:
        """Return the seconds that the next answer waits.

        Args: host: the client's address. user: prepared with SASLprep; it need not exist. now: seconds of any
            monotonic clock. tenant: of the user; None: there are no tenants.
        """
        failures = self._failures.get(tenant, (host, user))
        if failures is None or now - failures.last > FORGOTTEN:
            return 0.0
        return _wait(failures.count - self._free, self._longest)

    def failed(self, host: str, user: str, now: float, tenant: str | None = None) -> None:
        """Note a wrong password. Args: as of `wait`."""
        failures = self._failures.get(tenant, (host, user))
        if failures is None or now - failures.last > FORGOTTEN:
            failures = _Failures(0, now)
        failures.count += 1
        failures.last = now
        self._failures.put(tenant, (host, user), failures)

    def succeeded(self, host: str, user: str, tenant: str | None = None) -> None:
        """Note a right password."""
        self._failures.pop(tenant, (host, user))


class TenantGuesses:
    """Wrong passwords by tenant and network: a few for each of many users are many for the tenant.

    The first ones cost nothing, and as many are forgotten in each 15 minutes. From then on each answer waits longer, up
    to the longest wait. A user that has logged in from a host lately does not wait there for the guesses at others.
    """

    def __init__(self, *, free: int, longest: float, most: int) -> None:
        """Args: free: wrong passwords that cost nothing. longest: seconds that an answer waits at most. most: pairs of
        tenant and network that are remembered, and of host and user that have logged in.
        """
        self._free = free
        self._longest = longest
        self._failures: _Remembered[str, _Failures] = _Remembered(most)
        self._known: _Remembered[tuple[str, str], None] = _Remembered(most)

    def renew(self, *, free: int, longest: float, most: int) -> None:
        """Have other limits from now on. Args: as of the class."""
        self._free, self._longest = free, longest
        self._failures.limit(most)
        self._known.limit(most)

    def __len__(self) -> int:
        """Return the number of pairs that are remembered."""
        return len(self._failures) + len(self._known)

    def wait(self, host: str, user: str, now: float, tenant: str) -> float:
        """Return the seconds that the next answer waits. Args: as of `Guesses.wait`."""
        failures = self._failures.get(tenant, network_of(host))
        if failures is None or self._known.has(tenant, (host, user)):
            return 0.0
        return _wait(self._left(failures, now) - self._free, self._longest)

    def failed(self, host: str, now: float, tenant: str) -> None:
        """Note a wrong password. Args: as of `Guesses.wait`."""
        network = network_of(host)
        failures = self._failures.get(tenant, network)
        left = 0.0 if failures is None else self._left(failures, now)
        self._failures.put(tenant, network, _Failures(left + 1, now))

    def succeeded(self, host: str, user: str, tenant: str) -> None:
        """Note a right password."""
        self._known.put(tenant, (host, user), None)

    def _left(self, failures: _Failures, now: float) -> float:
        return max(0.0, failures.count - (now - failures.last) * self._free / FORGOTTEN)


def network_of(host: str) -> str:
    """Return the network of a host: its address; of IPv6 the first 64 bits, since a guest has all the others."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(ip_network((address, 64), strict=False))
    return host


def _wait(excess: float, longest: float) -> float:
    return min(longest, 2.0 ** min(excess, 32)) if excess >= 0 else 0.0
