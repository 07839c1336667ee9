"""Nodes: the links, the credit pool and the queue of an address; and the table of a router's nodes."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from math import inf
from typing import TYPE_CHECKING, ClassVar, Final

from amqpmesh.policies.access import is_reserved
from amqpmesh.policies.distribution import MULTICAST
from amqpmesh.router.address_syntax import split
from amqpmesh.router.amqp.standard.messaging import DeleteOnClose, LifetimePolicy
from amqpmesh.router.config.address import AddressConfig, own_config
from amqpmesh.router.kernel import Budget, Pool
from amqpmesh.router.model.counters import NO_DECISIONS, Decisions, Tally
from amqpmesh.router.model.usage import Kind, move_account
from amqpmesh.router.small_set import SmallSet

if TYPE_CHECKING:
    from collections.abc import Callable
    from weakref import ref

    from amqpmesh.policies.patterns import PatternTable
    from amqpmesh.router.kernel import FastRoute, Relay
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.credit_share import CreditShare
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.router.model.links import IncomingLink, OutgoingLink
    from amqpmesh.router.model.usage import Member

#: The lifetime of a dynamic node for which no other is asked.
DELETE_ON_CLOSE: Final = DeleteOnClose()


class Waiting:
    """The queue of a node: relays that wait for a receiver's credit, by priority (256 levels), then by arrival.

    Some relays wait only until a deadline. The entry of a relay that leaves from the middle of the queue stays for a
    while: it is removed when it becomes the first one, when the queue is empty, or when more than half of the entries
    are such ones. Each entry
    has a ticket. A relay waits in one queue at a time, and its own ticket (`queued`) tells its entry from former ones.
    """

    __slots__ = ("_deadlines", "_heap", "size")

    _tickets = count(1)

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Relay]] = []
        self._deadlines: list[tuple[float, int, Relay]] = []
        #: The number of waiting relays.
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def add(self, relay: Relay, deadline: float | None = None) -> None:
        """Add a relay behind the others of its priority. Args: deadline: the end of its wait, seconds."""
        relay.queued = ticket = next(self._tickets)
        self.size += 1
        heappush(self._heap, (-relay.priority, ticket, relay))
        if deadline is not None:
            heappush(self._deadlines, (deadline, ticket, relay))

    def set_aside(self) -> tuple[int, int, Relay]:
        """Take out the first entry. Its relay still counts as waiting: the caller must `put_back` the entry."""
        return heappop(self._heap)

    def put_back(self, entries: list[tuple[int, int, Relay]]) -> None:
        """Put entries that were set aside back in their places."""
        for entry in entries:
            heappush(self._heap, entry)

    def relays(self) -> list[Relay]:
        """Return all waiting relays, in no order."""
        return [relay for _, ticket, relay in self._heap if relay.queued == ticket]

    def first(self) -> Relay | None:
        """Return the relay that leaves next; None: the queue is empty."""
        heap = self._heap
        while heap and heap[0][2].queued != heap[0][1]:
            heappop(heap)
        return heap[0][2] if heap else None

    def next_deadline(self) -> float | None:
        """Return the next deadline; None: no wait is limited."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][2].queued != deadlines[0][1]:
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def due(self, now: float) -> Relay | None:
        """Return a relay whose deadline has passed; None: there is none. The relay stays in the queue."""
        deadline = self.next_deadline()
        return self._deadlines[0][2] if deadline is not None and deadline <= now else None

    def put_off(self, deadline: float) -> None:
        """Give the relay with the next deadline a later one."""
        _, ticket, relay = self._deadlines[0]
        heapreplace(self._deadlines, (deadline, ticket, relay))

    def remove(self, relay: Relay) -> None:
        """Remove a relay, wherever it stands in the queue; do nothing if it does not wait."""
        if relay.queued:
            relay.queued = 0
            self.size -= 1
            if not self.size:  # an entry that stays would hold its relay, and with it its links
                self._heap.clear()
                self._deadlines.clear()
            if len(self._heap) > 2 * self.size + 16:
                self._heap = [entry for entry in self._heap if entry[2].queued == entry[1]]
                heapify(self._heap)
            if len(self._deadlines) > 2 * self.size + 16:
                self._deadlines = [entry for entry in self._deadlines if entry[2].queued == entry[1]]
                heapify(self._deadlines)


#: Shared empty values: the queue, the awaited receivers, and the counts of ended links of most nodes.
NOBODY: Final = Waiting()
NOBODY_AWAITED: Final[list[OutgoingLink]] = []
NOTHING: Final = Tally()


class RemoteSide:
    """The interface of `RemoteNode`, which serves a node of another container, as its two nodes here use it."""

    __slots__ = ()

    def ingress(self) -> IngressNode:
        """Return the node that the producers are attached to."""
        raise NotImplementedError

    def look(self) -> bool:
        """Attach and detach links as needed. Returns: whether the node was not needed any more, and was forgotten."""
        raise NotImplementedError


class Node:
    """A node of this router: deliveries arrive at it and leave from it (§2.1). Its kinds are the subclasses.

    In a mesh an address has several nodes. Consumers at this router attach to a `LocalNode`. Producers attach to an
    `IngressNode`, which leads to the local node and to other routers. Each lane that leaves this router has a
    `LaneNode`.
    """

    __slots__ = (
        "__weakref__",
        "_memory",
        "awaited",
        "borrowers",
        "config",
        "copies",
        "creditors",
        "decisions",
        "draining",
        "excludes",
        "fast_route",
        "incoming",
        "left_at",
        "made_pool",
        "name",
        "outgoing",
        "past",
        "returning",
        "suspended",
        "tenant",
        "undelivered",
        "waiting",
    )

    is_internal: ClassVar = False
    """True for a kind that clients do not know as an address."""

    # What most kinds do not have. A kind that has it keeps it in a slot of its own.

    lane: Lane | None = None
    """The lane that deliveries leave by; None: they go to consumers of this router, or by `shares`."""
    shares: SmallSet[CreditShare] = ()
    """The nodes that this one leads to, each with the credit that it lends."""
    lenders: SmallSet[CreditShare] = ()
    """The shares whose unused credit their nodes have asked for."""
    remote: RemoteSide | None = None
    """The remote node that this node serves, by links to its container; None: it serves none."""
    held = False
    """True while a lane has no path and waits for one."""
    ingress: IngressNode | None = None
    """The node that producers attach to, in a mesh or for a remote node; None: they attach to this one."""

    def __init__(self, tenant: str, name: str, config: AddressConfig, memory: Budget) -> None:
        #: The memory of the router, or of the node's tenant; once a message has waited here, the node's own account in
        #: it. An account has no limit of its own, 0.
        self._memory = memory
        #: The pool, if it was made: a producer or a consumer has attached.
        self.made_pool: Pool | None = None
        #: True if its senders get no credit: the node is above its share of memory, or the router drains.
        self.suspended = False
        self.tenant = tenant
        self.name = name
        self.config = config
        #: The credit that this node lends to ingresses.
        self.borrowers: SmallSet[CreditShare] = ()
        #: The route of deliveries that need no decision; None: it was not asked for yet.
        self.fast_route: FastRoute | None = None
        self.incoming: SmallSet[IncomingLink] = ()
        self.outgoing: SmallSet[OutgoingLink] = ()
        #: The outgoing links that have credit.
        self.creditors: SmallSet[OutgoingLink] = ()
        self.copies: SmallSet[OutgoingLink] = ()
        #: The queue. It may be shared: `wait` adds to it.
        self.waiting = NOBODY
        #: For a multicast that waits: the receivers that could not take it. Only the last one is checked, and removed
        #: when it can take a delivery: otherwise all, perhaps thousands, would be checked whenever one gives credit.
        self.awaited = NOBODY_AWAITED
        #: Consumers whose drain is not answered yet.
        self.draining: SmallSet[OutgoingLink] = ()
        #: The counts of ended links. They may be shared: `count` adds to them.
        self.past = NOTHING
        #: The time when a delivery last left otherwise than on the fast path, seconds.
        self.left_at = -inf
        #: True once a delivery has come that some of its receivers must not get.
        self.excludes = False
        #: The deliveries that the router decided about. They may be shared: `decided` makes them.
        self.decisions = NO_DECISIONS
        #: Deliveries that found no receiver.
        self.undelivered = 0
        #: Deliveries that have left from here and whose octets are kept because they may be sent again, and receivers
        #: that are away and may come back.
        self.returning = 0

    @property
    def pool(self) -> Pool:
        """The pool that divides the credit of its consumers among its producers; made when first used."""
        pool = self.made_pool
        if pool is None:
            config = self.config
            pool = Pool(
                config.distribution, max_credit=config.max_credit, drain_time=config.drain_time, ahead=config.ahead
            )
            pool.set_suspended(self.suspended)
            self.made_pool = pool
        return pool

    def next_timer(self) -> float | None:
        """Return the time of the next timer of its pool or its queue; None: there is none."""
        at = None if self.made_pool is None else self.made_pool.next_timer()
        until = self.waiting.next_deadline() if self.waiting.size else None
        return until if at is None or (until is not None and until < at) else at

    @property
    def account(self) -> Budget:
        """The account of the octets that wait here; made when first used."""
        if self._memory.limit:
            self._memory = Budget(0, self._memory)
        return self._memory

    @property
    def buffered(self) -> int:
        """Octets that wait here."""
        return 0 if self._memory.limit else self._memory.used

    def belong_to(self, memory: Budget) -> None:
        """Count the octets that wait here in another memory."""
        if self._memory.limit:
            self._memory = memory
        else:
            move_account(self._memory, memory)

    @property
    def demand(self) -> int:
        """Deliveries that can leave from here now."""
        return 0 if self.made_pool is None else self.made_pool.demand

    @property
    def granted(self) -> int:
        """Deliveries that senders may still send here."""
        return 0 if self.made_pool is None else self.made_pool.granted

    def wait(self, relay: Relay, deadline: float | None = None) -> None:
        """Add a relay to the queue; see `Waiting.add`."""
        if self.waiting is NOBODY:
            self.waiting = Waiting()
        self.waiting.add(relay, deadline)

    def decided(self) -> Decisions:
        """Return the counts of decisions, to be added to."""
        if self.decisions is NO_DECISIONS:
            self.decisions = Decisions()
        return self.decisions

    def count(self, link: IncomingLink | OutgoingLink, now: float) -> None:
        """Keep the counts of a link that has ended. Args: now: seconds."""
        if self.past is NOTHING:
            self.past = Tally()
        self.past.add(link, now)

    @property
    def is_multicast(self) -> bool:
        """True if every consumer gets each delivery."""
        return self.config.distribution is MULTICAST

    @property
    def has_consumers(self) -> bool:
        """True if deliveries have a consumer, here or at another router, or are likely to have one again."""
        return bool(self.outgoing)

    @property
    def is_idle(self) -> bool:
        """True if nothing is attached and nothing waits, here or at its ingress."""
        return not (
            self.incoming
            or self.outgoing
            or self.copies
            or self.waiting.size
            or self.borrowers
            or self.returning
            or self.ingress is not None
        )


class LocalNode(Node):
    """The node that an address names at this router: its consumers here attach to it."""

    __slots__ = ("ingress", "is_advertised", "remote")

    def __init__(self, tenant: str, name: str, config: AddressConfig, memory: Budget) -> None:
        Node.__init__(self, tenant, name, config, memory)  # `super()` costs as much as half of it
        self.ingress = None
        #: True if this router advertises to the mesh that the address has consumers here.
        self.is_advertised = False
        self.remote = None


class OwnNode(LocalNode):
    """A node of the router itself, such as `$management`: it exists even if unused. All tenants share it."""

    __slots__ = ("senders",)

    def __init__(self, tenant: str, name: str, config: AddressConfig, memory: Budget) -> None:
        super().__init__(tenant, name, config, memory)
        self.senders: dict[bytes, tuple[str, ref[ConnectionRecord] | None]] = {}  # see `note_sender`

    @property
    def is_idle(self) -> bool:
        """False: the router does not forget its own nodes."""
        return False


class DynamicNode(LocalNode):
    """A node that a connection made for itself (§3.5.3). Args: maker: the connection."""

    __slots__ = ("is_open", "lifetime", "maker", "member")

    def __init__(self, tenant: str, name: str, config: AddressConfig, memory: Budget, maker: ConnectionRecord) -> None:
        super().__init__(tenant, name, config, memory)
        self.maker = maker
        #: Its maker's part in what its tenant has, in which the node counts; None: it is not counted.
        self.member: Member | None = None
        #: True if all who know its name may receive from it; False: only its maker may.
        self.is_open = False
        #: The end of its life (§3.5.10 to §3.5.13).
        self.lifetime: LifetimePolicy = DELETE_ON_CLOSE


class InternalNode(Node):
    """A node that no client attaches to by name: it leads to other nodes by `shares`, or to other routers by a lane."""

    __slots__ = ("held", "idle_since", "is_named", "lane", "lenders", "shares")

    is_internal = True

    def __init__(self, tenant: str, name: str, config: AddressConfig, memory: Budget, lane: Lane | None) -> None:
        super().__init__(tenant, name, config, memory)
        self.lane = lane
        self.shares = ()
        self.lenders = ()
        self.held = False
        #: The time since which no sender uses it, seconds.
        self.idle_since: float | None = None
        #: True if an anonymous sender has named its address: without a producer, it stays for a while.
        self.is_named = False

    @property
    def has_consumers(self) -> bool:
        """True if the node leads to consumers, or waits for a path to them."""
        return bool(self.outgoing or self.shares) or self.held


class IngressNode(InternalNode):
    """The node that producers of an address attach to in a mesh, or for a remote node.

    The ingress of a multicast also has a lane, that of the tree which starts at this router.
    """

    __slots__ = ("remote",)

    def __init__(self, tenant: str, name: str, config: AddressConfig, memory: Budget, lane: Lane | None = None) -> None:
        super().__init__(tenant, name, config, memory, lane)
        self.remote = None

    @property
    def has_consumers(self) -> bool:
        """True if the node leads to consumers; a remote node is expected to have some."""
        return self.remote is not None or super().has_consumers


class LaneNode(InternalNode):
    """The node of a lane that leaves this router: deliveries for other routers wait here."""

    __slots__ = ()

    lane: Lane


def node_of(relay: Relay) -> Node | None:
    """Return the node that a relay goes to; None: it is not known yet."""
    node = relay.node
    return node if isinstance(node, Node) else None


class NodeTable:
    """The nodes in use, by (tenant, name), and the configuration of all addresses."""

    def __init__(self, patterns: PatternTable[AddressConfig], memory_of: Callable[[str], Budget]) -> None:
        """Args: memory_of: returns the memory of a tenant."""
        self.patterns = patterns
        self._memory_of = memory_of
        self._default = AddressConfig(pattern="#")
        self._nodes: dict[tuple[str, str], LocalNode] = {}
        #: Dynamic nodes by their names, which no other node has, of any tenant.
        self._dynamic: dict[str, DynamicNode] = {}

    def __len__(self) -> int:
        return len(self._nodes) + len(self._dynamic)

    def values(self) -> list[LocalNode]:
        """Return all nodes in use."""
        return [*self._nodes.values(), *self._dynamic.values()]

    def config(self, name: str) -> AddressConfig:
        """Return the configuration of an address: that of the most specific pattern that matches its name.

        In `name@container` the container does not count. The router's own addresses match no pattern.
        """
        return own_config(name) if is_reserved(name) else self.patterns.lookup(split(name)[0]) or self._default

    def find(self, tenant: str, name: str) -> LocalNode | None:
        """Return the node of an address; None: it is not in use."""
        node = self._nodes.get((tenant, name))
        if node is None and (dynamic := self._dynamic.get(name)) is not None and dynamic.tenant == tenant:
            return dynamic
        return node

    def find_dynamic(self, name: str) -> DynamicNode | None:
        """Return the dynamic node of a name, whichever tenant's peer has made it; None: there is none."""
        return self._dynamic.get(name)

    def tenant_of_reserved(self, tenant: str, name: str) -> str:
        """Return the tenant in the key of a reserved name: nodes of the router itself are shared by all tenants."""
        return "" if isinstance(self._nodes.get(("", name)), OwnNode) else tenant

    def use(self, tenant: str, name: str) -> LocalNode:
        """Return the node of an address; make it if there is none."""
        return self.find(tenant, name) or self.make(tenant, name)

    def make(self, tenant: str, name: str, config: AddressConfig | None = None) -> LocalNode:
        """Make the node of an address that has none.

        Args: config: what `config` returns for the name; None: the caller does not have it.
        """
        node = LocalNode(tenant, name, config or self.config(name), self._memory_of(tenant))
        self._nodes[tenant, name] = node
        return node

    def make_dynamic(self, tenant: str, name: str, maker: ConnectionRecord) -> DynamicNode:
        """Make a dynamic node (§3.5.3), whose name nothing else has."""
        node = self._dynamic[name] = DynamicNode(tenant, name, self._default, self._memory_of(tenant), maker)
        return node

    def make_own(self, name: str) -> None:
        """Make a node of the router itself."""
        self._nodes["", name] = OwnNode("", name, self.config(name), self._memory_of(""))

    def drop_if_idle(self, node: Node) -> bool:
        """Forget a node that is not used any more. Returns: whether it was forgotten."""
        idle = node.is_idle
        if idle:
            self.remove(node)
        return idle

    def remove(self, node: Node) -> None:
        """Forget a node."""
        made = self._dynamic.get(node.name)
        if made is not None and made is node:
            del self._dynamic[node.name]
            if made.member is not None:
                made.member.release_late(Kind.DYNAMIC)
        elif self._nodes.get((node.tenant, node.name)) is node:
            del self._nodes[node.tenant, node.name]
