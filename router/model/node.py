"""Who serves an address here: its producers, its consumers, its pool of credit, and what waits between them."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Final

from amqpmesh.policies.access import is_reserved
from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.address_syntax import split
from amqpmesh.router.amqp.standard.messaging import DeleteOnClose, LifetimePolicy
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.credit.pool import Pool
from amqpmesh.router.kernel import Budget
from amqpmesh.router.model.counters import Tally
from amqpmesh.router.small_set import SmallSet

if TYPE_CHECKING:
    from amqpmesh.policies.patterns import PatternTable
    from amqpmesh.router.kernel import FastRoute, Relay
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.credit_share import Share
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.router.model.links import IncomingLink, OutgoingLink

#: What a dynamic node outlives, if nobody says otherwise.
DELETE_ON_CLOSE: Final = DeleteOnClose()


class Waiting:
    """Relays that wait for a receiver's credit: by priority, all 256 of them apart, then in the order they came.

    Some wait only until a deadline. What leaves the queue from its middle is forgotten when it comes up, or when more
    than half of what is remembered has left. A relay waits in one queue at a time: by its ticket it is known which
    place of those that it has had is the one that it has.
    """

    __slots__ = ("_deadlines", "_heap", "size")

    _tickets = count(1)

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Relay]] = []
        self._deadlines: list[tuple[float, int, Relay]] = []
        #: How many wait.
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def add(self, relay: Relay, deadline: float | None = None) -> None:
        """It waits from now on, behind those of its priority, until `deadline` (seconds) at the latest."""
        relay.queued = ticket = next(self._tickets)
        self.size += 1
        heappush(self._heap, (-relay.priority, ticket, relay))
        if deadline is not None:
            heappush(self._deadlines, (deadline, ticket, relay))

    def set_aside(self) -> tuple[int, int, Relay]:
        """Take the first one out of the line, without forgetting it: `put_back` it."""
        return heappop(self._heap)

    def put_back(self, entries: list[tuple[int, int, Relay]]) -> None:
        """They stand where they stood."""
        for entry in entries:
            heappush(self._heap, entry)

    def relays(self) -> list[Relay]:
        """All that wait, in no order."""
        return [relay for _, ticket, relay in self._heap if relay.queued == ticket]

    def first(self) -> Relay | None:
        """The one that leaves next; None if nothing waits."""
        heap = self._heap
        while heap and heap[0][2].queued != heap[0][1]:
            heappop(heap)
        return heap[0][2] if heap else None

    def next_deadline(self) -> float | None:
        """When somebody has waited long enough; None: nobody's wait is limited."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][2].queued != deadlines[0][1]:
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def due(self, now: float) -> Relay | None:
        """One that has waited until its deadline; None if there is none. It is still in the queue."""
        deadline = self.next_deadline()
        return self._deadlines[0][2] if deadline is not None and deadline <= now else None

    def put_off(self, deadline: float) -> None:
        """The one that is due next waits on, until then."""
        _, ticket, relay = self._deadlines[0]
        heapreplace(self._deadlines, (deadline, ticket, relay))

    def remove(self, relay: Relay) -> None:
        """It waits no longer, wherever in the line it stood."""
        if relay.queued:
            relay.queued = 0
            self.size -= 1
            if len(self._heap) > 2 * self.size + 16:
                self._heap = [entry for entry in self._heap if entry[2].queued == entry[1]]
                heapify(self._heap)
            if len(self._deadlines) > 2 * self.size + 16:
                self._deadlines = [entry for entry in self._deadlines if entry[2].queued == entry[1]]
                heapify(self._deadlines)


#: Where nothing waits, and nobody is waited for; and what links have counted, where none has gone.
NOBODY: Final = Waiting()
NOBODY_AWAITED: Final[list[OutgoingLink]] = []
NOTHING: Final = Tally()


class FarSide:
    """What stands here for a node of another container. `RemoteNode` does."""

    __slots__ = ()

    def ingress(self) -> Address:
        """Return the node that the producers are attached to."""
        raise NotImplementedError

    def look(self) -> bool:
        """Attach and detach links as they are needed. Returns: whether the node is needed no more, and forgotten."""
        raise NotImplementedError


class Address:
    """One address of this router: a node that deliveries come to and leave from.

    In a mesh an address is several: where its consumers here are attached; where its producers are, which leads there
    and to other routers (its ingress); and one for each lane that leaves this router.
    """

    __slots__ = (
        "__weakref__",
        "_memory",
        "_pool",
        "awaited",
        "borrowers",
        "config",
        "copies",
        "creditors",
        "draining",
        "excludes",
        "far",
        "fast_route",
        "held",
        "idle_since",
        "incoming",
        "ingress",
        "is_advertised",
        "is_ingress",
        "is_open",
        "kept",
        "lane",
        "left_at",
        "lenders",
        "lifetime",
        "maker",
        "name",
        "outgoing",
        "past",
        "returning",
        "shares",
        "suspended",
        "tenant",
        "undelivered",
        "waiting",
    )

    def __init__(
        self,
        tenant: str,
        name: str,
        config: AddressConfig,
        memory: Budget,
        maker: ConnectionRecord | None = None,
        lane: Lane | None = None,
    ) -> None:
        #: The whole memory, until something has waited here: then a part of it.
        self._memory = memory
        self._pool: Pool | None = None
        #: Its senders are given no credit, for want of memory or because the router drains.
        self.suspended = False
        self.tenant = tenant
        self.name = name
        self.config = config
        #: The connection that made this dynamic node and alone may consume it; None for other addresses (§3.5.3).
        self.maker = maker
        #: Of a dynamic node: others may receive from it, too, if its maker tells them its name.
        self.is_open = False
        #: What leaves from here goes by this lane; None: to consumers of this router, or by `shares`.
        self.lane = lane
        #: Where the producers of this address are attached, in a mesh.
        self.ingress: Address | None = None
        #: It is such a node.
        self.is_ingress = False
        #: What comes here or leaves from here does so by links to a node elsewhere.
        self.far: FarSide | None = None
        #: The mesh knows of its consumers.
        self.is_advertised = False
        #: An ingress' ways out, and what each of them lends it.
        self.shares: SmallSet[Share] = ()
        #: Of a lane's: no path leads on any more, and one is waited for.
        self.held = False
        #: Of a lane's: nothing comes to it since then, seconds.
        self.idle_since: float | None = None
        #: What this node lends to ingresses.
        self.borrowers: SmallSet[Share] = ()
        #: Those of its shares whose ways want back what is not used.
        self.lenders: SmallSet[Share] = ()
        #: A node of the router's own: it is there while nobody uses it.
        self.kept = False
        #: What a dynamic node outlives (§3.5.10 to §3.5.13).
        self.lifetime: LifetimePolicy = DELETE_ON_CLOSE
        #: Where deliveries leave, as far as nothing is to be decided; None: nobody has asked.
        self.fast_route: FastRoute | None = None
        self.incoming: SmallSet[IncomingLink] = ()
        self.outgoing: SmallSet[OutgoingLink] = ()
        #: Those of them that have credit.
        self.creditors: SmallSet[OutgoingLink] = ()
        self.copies: SmallSet[OutgoingLink] = ()
        #: To be read; see `wait`.
        self.waiting = NOBODY
        #: Of a multicast that waits: receivers that could not take it. None is looked at again before it is the last
        #: of them: else thousands would be, whenever one of them gives credit.
        self.awaited = NOBODY_AWAITED
        #: Consumers whose drain is not answered yet.
        self.draining: SmallSet[OutgoingLink] = ()
        #: What links that are gone have counted: to be read; see `count`.
        self.past = NOTHING
        #: When one left that was not relayed without a decision, seconds.
        self.left_at = -inf
        #: Deliveries have come that are not for all of its receivers.
        self.excludes = False
        #: Deliveries that went to nobody.
        self.undelivered = 0
        #: Deliveries whose octets are kept: they have left from here, and may come back to be sent again.
        self.returning = 0

    @property
    def pool(self) -> Pool:
        """Divides the credit of its consumers among its producers. Made when one of either comes."""
        pool = self._pool
        if pool is None:
            config = self.config
            pool = Pool(config.distribution, max_credit=config.max_credit, drain_time=config.drain_time)
            pool.set_suspended(self.suspended)
            self._pool = pool
        return pool

    @property
    def has_pool(self) -> bool:
        """There is credit to be divided, or was."""
        return self._pool is not None

    def next_timer(self) -> float | None:
        """When its pool, or what waits, is to be looked at; None: nothing depends on time."""
        at = None if self._pool is None else self._pool.next_timer()
        until = self.waiting.next_deadline() if self.waiting.size else None
        return until if at is None or (until is not None and until < at) else at

    @property
    def account(self) -> Budget:
        """Octets of its deliveries that wait here. Made when one has to."""
        if self._memory.whole is None:
            self._memory = Budget(self._memory.limit, self._memory)
        return self._memory

    @property
    def buffered(self) -> int:
        """Octets of its deliveries that wait here."""
        return 0 if self._memory.whole is None else self._memory.used

    @property
    def demand(self) -> int:
        """How many deliveries can leave from here now."""
        return 0 if self._pool is None else self._pool.demand

    @property
    def granted(self) -> int:
        """Deliveries that may still come here."""
        return 0 if self._pool is None else self._pool.granted

    def wait(self, relay: Relay, deadline: float | None = None) -> None:
        """A relay waits here from now on; see `Waiting.add`."""
        if self.waiting is NOBODY:
            self.waiting = Waiting()
        self.waiting.add(relay, deadline)

    def count(self, taken: IncomingLink | OutgoingLink) -> None:
        """A link is gone: what it has counted stays."""
        if self.past is NOTHING:
            self.past = Tally()
        self.past.add(taken)

    @property
    def is_multicast(self) -> bool:
        """Every consumer gets each delivery."""
        return self.config.distribution is Distribution.MULTICAST

    @property
    def is_internal(self) -> bool:
        """It is no address as clients know one: it leads to other routers, or its producers' messages to consumers."""
        return self.lane is not None or self.is_ingress

    @property
    def has_consumers(self) -> bool:
        """There is somebody, here or at other routers, whom deliveries could go to; or there will be, elsewhere."""
        return bool(self.outgoing or self.shares) or self.held or (self.far is not None and self.is_ingress)

    @property
    def is_idle(self) -> bool:
        """Nothing is attached and nothing waits."""
        return not (
            self.incoming or self.outgoing or self.copies or self.waiting.size or self.ingress or self.borrowers
        )


def address_of(relay: Relay) -> Address | None:
    """Return the node that a relay goes to; None: it is not known yet."""
    address = relay.address
    return address if isinstance(address, Address) else None


class AddressTable:
    """The addresses that somebody uses now, by (tenant, name), and the configuration of those that somebody may."""

    def __init__(self, patterns: PatternTable[AddressConfig], memory: Budget) -> None:
        self.patterns = patterns
        self._memory = memory
        self._default = AddressConfig(pattern="#")
        self._addresses: dict[tuple[str, str], Address] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def values(self) -> list[Address]:
        """All of them, now."""
        return list(self._addresses.values())

    def config(self, name: str) -> AddressConfig:
        """What the most specific pattern says of an address, whichever container has it. Patterns say nothing of the
        router's own.
        """
        return (None if is_reserved(name) else self.patterns.lookup(split(name)[0])) or self._default

    def find(self, tenant: str, name: str) -> Address | None:
        """The address, if somebody uses it."""
        return self._addresses.get((tenant, name))

    def use(self, tenant: str, name: str, maker: ConnectionRecord | None = None) -> Address:
        """The address, made if nobody has used it."""
        address = self._addresses.get((tenant, name))
        if address is None:
            config = self.config(name) if maker is None else self._default
            address = self._addresses[tenant, name] = Address(tenant, name, config, self._memory, maker)
        return address

    def keep(self, name: str) -> None:
        """Have a node of the router's own from now on."""
        self.use("", name).kept = True

    def drop_if_idle(self, address: Address) -> bool:
        """Forget an address that nobody uses any more; whether it was."""
        idle = address.is_idle and not address.kept
        if idle:
            self.remove(address)
        return idle

    def remove(self, address: Address) -> None:
        """Forget an address."""
        if self._addresses.get((address.tenant, address.name)) is address:
            del self._addresses[address.tenant, address.name]
