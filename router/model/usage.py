"""Counts of what tenants, users and hosts have at a router, and the limits of these counts.

A count is kept for each tenant of the policy, and for each user and each host while it has something. So connections
bound the counts of users and hosts. If a router has several workers, each of them counts what it serves itself; of what
is limited, it takes a place among those that the workers share (`Places`), or a portion of them (`Portion`).
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.policies.limits import UNLIMITED, tightest
from amqpmesh.router.credit.places import Shared
from amqpmesh.router.kernel import Budget
from amqpmesh.router.model.portions import Portion, portion_of
from amqpmesh.router.small_set import SmallSet, with_item, without_item

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from amqpmesh.policies.limits import Allowance
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.credit.places import Places
    from amqpmesh.router.model.links import OutgoingLink


class Kind(IntEnum):
    """The things that are counted. Their names in lower case are those of the limits."""

    CONNECTIONS = 0
    SESSIONS = 1
    LINKS = 2
    SENDERS = 3
    RECEIVERS = 4
    DYNAMIC = 5

    @property
    def limit(self) -> str:
        """The name of its limit in a policy."""
        return self.name.lower()


SENDER: Final = (Kind.LINKS, Kind.SENDERS)
RECEIVER: Final = (Kind.LINKS, Kind.RECEIVERS)
"""The kinds that a link counts in, by what its client does."""

Caps = tuple[int | None, ...]

NO_CAPS: Final[Caps] = (None,) * len(Kind)


@lru_cache(maxsize=256)
def caps_of(allowance: Allowance) -> Caps:
    """Return the limits of the counts, in the order of `Kind`."""
    return tuple(getattr(allowance, kind.limit) for kind in Kind)


class Owner(NamedTuple):
    """A tenant, or a user or host of it."""

    tenant: str
    """The key of the tenant."""
    user: str | None = None
    """The user; for a peer without one, its host."""
    host: str | None = None
    """The host whose connections are counted."""
    is_anonymous: bool = False
    """The user is a host, whose peers have not logged in."""


#: The part of what is left that a receiver may have unsettled, if no limit of receivers says how many there will be.
LEASE: Final = 8


class Usage:
    """The counts of one owner, and its limits."""

    __slots__ = (
        "_places",
        "allowance",
        "budget",
        "caps",
        "counts",
        "given",
        "leased",
        "octets",
        "owner",
        "refused",
        "reserved",
        "share",
        "starved",
        "unsettled",
    )

    def __init__(self, owner: Owner, share: Callable[[Owner, Kind | Shared], Places | None] | None) -> None:
        """Args: share: returns the shared places of a count, if it has some; None: there is one worker."""
        self.owner = owner
        self.share = share
        self.allowance = UNLIMITED
        #: Of a user: the limits that its connections have, each with their number. The tightest of them hold.
        self.given: Counter[Allowance] = Counter()
        self.caps = NO_CAPS
        #: The memory that it may take; None: it never had a limit of its own.
        self.budget: Budget | None = None
        #: The deliveries that its receivers may have unsettled, all together, and the refusals for want of them.
        self.leased = 0
        self.starved = 0
        #: What this worker has of the deliveries, and of the octets that may wait, if workers share these limits.
        #: `reserved`: deliveries for a receiver that attaches now.
        self.unsettled: Portion | None = None
        self.octets: Portion | None = None
        self.reserved = 0
        self.counts = [0] * len(Kind)
        #: The number of refusals because of each limit.
        self.refused = [0] * len(Kind)
        self._places: dict[Kind, Places] = {}

    @property
    def is_idle(self) -> bool:
        """True if the owner has nothing."""
        portions = (self.unsettled, self.octets)
        return not any(self.counts) and not any(each.taken for each in portions if each is not None)

    def allow(self, allowance: Allowance, caps: Caps) -> None:
        """Set the limits. What is there already stays, even if it is more than they allow."""
        self.allowance = allowance
        if caps == self.caps:
            return
        self.caps = caps
        if self.share is None:
            return
        for kind in Kind:
            most, places = caps[kind], self._places.get(kind)
            if most is None and places is not None:
                places.release_all()
                del self._places[kind]
            elif most is not None and places is None:
                places = self.share(self.owner, kind)
                if places is not None:
                    self._places[kind] = places
                    places.take_many(self.counts[kind], most)

    def take(self, kind: Kind, *, forced: bool = False) -> bool:
        """Count one more. Args: forced: also beyond the limit. Returns: False: there is no more, and it is refused."""
        most = self.caps[kind]
        if most is not None:
            places = self._places.get(kind)
            if not ((forced or self.counts[kind] < most) if places is None else places.take(most, forced=forced)):
                self.refused[kind] += 1
                return False
        self.counts[kind] += 1
        return True

    def release(self, kind: Kind) -> None:
        """Count one less."""
        self.counts[kind] -= 1
        places = self._places.get(kind)
        if places is not None:
            places.release()

    def reserve(self, number: int, freed: int) -> int:
        """Take deliveries for a receiver that attaches now. Args: freed: see `Member.lease`. Returns: how many."""
        self.keep_reserved(0)
        self.reserved = number if self.unsettled is None else self.unsettled.take(number, freed)
        return self.reserved

    def keep_reserved(self, number: int) -> None:
        """Give back all that is reserved but so much."""
        if self.unsettled is not None:
            self.unsettled.give_back(self.reserved - number)
        self.reserved = number

    def lease(self, number: int) -> None:
        """Count the deliveries that a receiver may have unsettled, which were reserved; negative: it is gone."""
        self.leased += number
        if number > 0:
            self.reserved = 0
        elif self.unsettled is not None:
            self.unsettled.give_back(-number)

    def fit(self) -> bool:
        """Take what the octets that wait need, and give back the rest. Returns: whether more may wait now."""
        assert self.octets is not None
        assert self.budget is not None
        grew = self.octets.fit(self.budget.used)
        self.budget.limit = max(1, self.octets.size)
        return grew

    def used(self, kind: Kind) -> int:
        """Return how many there are, at all workers if the number is limited."""
        places = self._places.get(kind)
        return self.counts[kind] + (0 if places is None else places.others())


def move_account(account: Budget, whole: Budget) -> None:
    """Count the octets of an account as a part of another memory."""
    if account.whole is not whole:
        used = account.used
        account.add(-used)
        account.whole = whole
        account.add(used)


class Full(NamedTuple):
    """A limit that is reached."""

    usage: Usage
    kind: Kind
    rate: str | None = None
    """The name of the rate that is reached; None: the limit is one of how many there are."""

    @property
    def reason(self) -> str:
        """The owner and the limit, for the log."""
        if self.rate is not None:
            return f"limit reached: {self.limit} = {self.allowed:g}/s of {self.whose}"
        return f"limit reached: {self.limit} = {self.allowed} of {self.whose}"

    @property
    def limit(self) -> str:
        """The name of the limit in a policy."""
        if self.rate is not None:
            return self.rate
        return self.kind.limit if self.usage.owner.host is None else f"{self.kind.limit}_per_host"

    @property
    def allowed(self) -> float | None:
        """The value of the limit."""
        if self.rate is not None:
            return getattr(self.usage.allowance, self.rate, None)
        return self.usage.caps[self.kind]

    @property
    def whose(self) -> str:
        """The owner."""
        owner = self.usage.owner
        if owner.host is not None:
            return f"host {owner.host}"
        if owner.user is not None:
            return f"{'host' if owner.is_anonymous else 'user'} {owner.user}"
        return f"tenant {owner.tenant or 'operator'}"


class Member:
    """The part that one connection has in the counts of its tenant, its user, and its host."""

    __slots__ = ("_table", "given", "has_left", "host", "leases", "sessions", "tenant", "user")

    def __init__(self, table: UsageTable, tenant: Usage, user: Usage, host: Usage) -> None:
        self._table = table
        self.tenant = tenant
        self.user = user
        self.host = host
        #: The limits of its user by this connection.
        self.given = UNLIMITED
        #: The sessions that are counted.
        self.sessions: SmallSet[Session] = ()
        #: The deliveries that each receiver may have unsettled, if a limit says it.
        self.leases: dict[OutgoingLink, int] = {}
        #: True if the connection is not counted any more.
        self.has_left = False

    def take(self, *kinds: Kind, forced: bool = False) -> Full | None:
        """Count one more of some kinds, or nothing at all. Returns: the limit that forbids it."""
        taken: list[tuple[Usage, Kind]] = []
        for usage in (self.tenant, self.user):
            for kind in kinds:
                if not usage.take(kind, forced=forced):
                    for each, counted in taken:
                        each.release(counted)
                    return Full(usage, kind)
                taken.append((usage, kind))
        return None

    def release(self, *kinds: Kind) -> None:
        """Count one less of some kinds."""
        for kind in kinds:
            self.tenant.release(kind)
            self.user.release(kind)

    def lease(self, most: int, freed: int = 0) -> int | None:
        """Return how many deliveries one more receiver may have unsettled; None: no limit says it; 0: none are left.

        Args: most: of its own limit. freed: deliveries that receivers of the same user give up for it.
        """
        usages = [each for each in (self.tenant, self.user) if each.allowance.unsettled is not None]
        for usage in usages:
            most = min(most, self._table.part_of(usage, freed))
            if most > 0:
                most = usage.reserve(most, freed)
            if most <= 0:
                usage.starved += 1
                break
        for usage in usages:
            usage.keep_reserved(min(usage.reserved, most))
        return most if usages else None

    def begin_lease(self, link: OutgoingLink, most: int) -> None:
        """Count the deliveries that a receiver may have unsettled."""
        self.leases[link] = most
        self.tenant.lease(most)
        self.user.lease(most)

    def end_lease(self, link: OutgoingLink) -> None:
        """Count them no more, if they were counted."""
        most = self.leases.pop(link, 0)
        self.tenant.lease(-most)
        self.user.lease(-most)

    def release_late(self, *kinds: Kind) -> None:
        """Count one less of some kinds that outlive a connection: it may be the last thing that the user had."""
        self.release(*kinds)
        self._table.forget_idle(self.user)

    def begin(self, session: Session, *, forced: bool = False) -> Full | None:
        """Count a session. Returns: the limit that forbids it."""
        full = self.take(Kind.SESSIONS, forced=forced)
        if full is None:
            self.sessions = with_item(self.sessions, session)
        return full

    def end(self, session: Session) -> None:
        """Count a session no more, if it was counted."""
        if session in self.sessions:
            self.sessions = without_item(self.sessions, session)
            self.release(Kind.SESSIONS)

    def leave(self) -> None:
        """Count the connection and its sessions no more, once; links and nodes are released by themselves."""
        if self.has_left:
            return
        self.has_left = True
        for session in tuple(self.sessions):
            self.end(session)
        self.release(Kind.CONNECTIONS)
        self.host.release(Kind.CONNECTIONS)
        self._table.part_from(self)


class UsageTable:
    """The counts of a router, by their owners."""

    def __init__(self, memory: Budget, workers: int, shared: dict[Budget, Usage] | None = None) -> None:
        """Args: memory: of the router. workers: of the router. shared: where to note parts that they share."""
        self._memory = memory
        self._workers = workers
        #: Returns the shared places of a count, if the router has several workers.
        self.share: Callable[[Owner, Kind | Shared], Places | None] | None = None
        self._usages: dict[Owner, Usage] = {}
        #: By their memory: the counts of which this worker may have a portion of the octets.
        self.shared: dict[Budget, Usage] = {} if shared is None else shared

    def __len__(self) -> int:
        return len(self._usages)

    def __iter__(self) -> Iterator[Usage]:
        """Yield all counts, also while others come and go."""
        return iter(list(self._usages.values()))

    def of(self, owner: Owner) -> Usage:
        """Return the counts of an owner; make them if there are none."""
        usage = self._usages.get(owner)
        if usage is None:
            usage = self._usages[owner] = Usage(owner, self.share)
        return usage

    def find(self, owner: Owner) -> Usage | None:
        """Return the counts of an owner; None: it has nothing."""
        return self._usages.get(owner)

    def forget_idle(self, usage: Usage) -> None:
        """Forget the counts of an owner that has nothing."""
        if usage.is_idle and self._usages.get(usage.owner) is usage:
            del self._usages[usage.owner]
            if usage.budget is not None and self.shared.pop(usage.budget, None) is not None:
                usage.budget.limit = self._memory.limit  # what is left of its connections ends

    def join(
        self, tenant: str, user: str, host: str, *, is_anonymous: bool, of_tenant: Allowance, of_user: Allowance
    ) -> Member:
        """Return a member without anything. Its tenant, user and host have the limits of now."""
        member = Member(
            self,
            self.of(Owner(tenant)),
            self.of(Owner(tenant, user, is_anonymous=is_anonymous)),
            self.of(Owner(tenant, host=host)),
        )
        self.limit(member.tenant, of_tenant)
        self.give(member, of_user)
        self.limit(member.host, of_tenant)
        return member

    def give(self, member: Member, of_user: Allowance) -> None:
        """Set the limits of a user by one of its connections: the tightest of all its connections hold.

        Connections of one user have different ones if they show different tokens.
        """
        user = member.user
        if of_user is not member.given:
            _count(user.given, member.given, -1)
            _count(user.given, of_user, 1)
            member.given = of_user
        self.limit(user, tightest(user.given))

    def part_from(self, member: Member) -> None:
        """Forget what a connection without any part in the counts has shown of its user."""
        if member.given is not UNLIMITED:
            self.give(member, UNLIMITED)
        self.forget_idle(member.user)
        self.forget_idle(member.host)

    def memory_of(self, tenant: str) -> Budget:
        """Return the memory that a tenant may take: a part of the router's, or all of it."""
        usage = self._usages.get(Owner(tenant)) if self._usages else None
        return self._memory if usage is None or usage.budget is None else usage.budget

    def limit(self, usage: Usage, allowance: Allowance) -> None:
        """Set the limits of an owner. Args: allowance: of the tenant, or of each user."""
        if usage.owner.host is not None:
            usage.allow(allowance, (allowance.connections_per_host, *NO_CAPS[1:]))
            return
        usage.allow(allowance, caps_of(allowance))
        self._share(usage, allowance)
        octets = self.octets_of(usage, allowance)
        whole = self._memory if usage.owner.user is None else self.memory_of(usage.owner.tenant)
        if usage.budget is not None:
            usage.budget.limit = whole.limit if octets is None else octets
        elif octets is not None:
            usage.budget = Budget(octets, whole)
        if usage.budget is not None:
            if usage.octets is not None:
                self.shared[usage.budget] = usage
            else:
                self.shared.pop(usage.budget, None)

    def _share(self, usage: Usage, allowance: Allowance) -> None:
        """Have an owner share the limits that are divided into portions with other workers."""
        if self.share is not None:
            used = 0 if usage.budget is None else usage.budget.used
            places = partial(self.share, usage.owner)
            most = allowance.unsettled
            usage.unsettled = portion_of(usage.unsettled, partial(places, Shared.UNSETTLED), most, usage.leased)
            most = self._most_octets(allowance)
            usage.octets = portion_of(usage.octets, partial(places, Shared.OCTETS), most, used, of_octets=True)

    def unsettled_of(self, usage: Usage) -> int | None:
        """Return the deliveries that receivers may have unsettled, at all workers if they share the limit."""
        unsettled = usage.allowance.unsettled if usage.owner.host is None else None
        if unsettled is None or usage.unsettled is not None:
            return unsettled
        return max(1, unsettled // self._workers)

    def part_of(self, usage: Usage, freed: int = 0) -> int:
        """Return the part of these that one more receiver may have. Args: freed: see `Member.lease`.

        With a limit of receivers, all get the same. Without one, each gets a part of what the others have left.
        """
        most, receivers = self.unsettled_of(usage), usage.caps[Kind.RECEIVERS]
        assert most is not None
        portion = usage.unsettled
        left = freed + (most - usage.leased if portion is None else portion.free())
        whole = most * self._workers if portion is None else most
        return min(left, max(1, whole // receivers if receivers else left // LEASE))

    def octets_of(self, usage: Usage, allowance: Allowance) -> int | None:
        """Return the octets that may wait at this worker; None: there is no limit."""
        if usage.octets is not None:
            return max(1, usage.octets.size)
        most = self._most_octets(allowance)
        return None if most is None else max(1, most // self._workers)

    def _most_octets(self, allowance: Allowance) -> int | None:
        """Return the octets that may wait at all workers together; None: there is no limit."""
        limits = [] if allowance.waiting is None else [allowance.waiting]
        if allowance.memory is not None:
            limits.append(allowance.memory.of(self._memory.limit * self._workers))  # a worker's memory is divided
        return max(1, min(limits)) if limits else None

    def enter(self, member: Member, *, forced: bool = False) -> Full | None:
        """Count a connection. Returns: the limit that forbids it; then the member has no part in anything."""
        full = member.take(Kind.CONNECTIONS, forced=forced)
        if full is None and not member.host.take(Kind.CONNECTIONS, forced=forced):
            member.release(Kind.CONNECTIONS)
            full = Full(member.host, Kind.CONNECTIONS)
        if full is not None:
            self.part_from(member)
        return full


def _count(given: Counter[Allowance], allowance: Allowance, number: int) -> None:
    if allowance is not UNLIMITED:
        given[allowance] += number
        if not given[allowance]:
            del given[allowance]
