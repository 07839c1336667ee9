"""The exchange of policies between neighbours: the newest one spreads over the mesh, hop by hop.

HELLOs carry the version of the policy that a router can give. A neighbour with an older one fetches it, piece by piece:
it asks for the next piece once the last one is there, so a large policy holds no other message up. The router judges a
whole policy before it takes it, and only then offers it further.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from amqpmesh.policies.policy_version import PolicyVersion
from amqpmesh.topology.adjacency import Adjacency
from amqpmesh.topology.changes import PolicyFetched, PolicyNotFetched
from amqpmesh.topology.messages import PIECE, PolicyPiece, PolicyRequest
from amqpmesh.topology.outbox import Outbox
from amqpmesh.topology.throttling import NEVER, TokenBucket

PIECE_TIME: Final = 2.0
"""Seconds to wait for a piece. A request that is lost with its connection is not repeated there."""

TRIES: Final = 3
"""Requests for one piece, before another neighbour is asked."""

REFUSED: Final = 64
"""Refused policies that are remembered, so that they are not fetched again and again."""

REST: Final = 10.0
"""Seconds for which nothing is fetched from a router that has given a wrong or refused policy; twice as long each time,
up to 64 times: else one that offers ever higher versions would keep this router busy."""

RESTING: Final = 256
"""Such routers that are remembered."""

SERVED: Final = TokenBucket(128.0, 512.0)
"""Pieces that a neighbour gets in a second, and at once: 2 MiB a second. It asks again for those that it does not."""


@dataclass(slots=True)
class _Fetch:
    """A policy that is being fetched."""

    adjacency: Adjacency
    version: PolicyVersion
    data: bytearray = field(default_factory=bytearray)
    total: int | None = None
    tries: int = 0


class PolicyExchange:
    """The policies of a router and of its neighbours."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._timers = outbox.timers
        #: The policy that neighbours can get; None: this router takes no part, or has none with a version.
        self.offer: PolicyVersion | None = None
        self._data = b""
        self._takes_part = False
        self._offers: dict[Adjacency, PolicyVersion] = {}
        #: Policies that the router has refused, and neighbours that did not give what they offered.
        self._refused: OrderedDict[PolicyVersion, None] = OrderedDict()
        self._faulty: dict[Adjacency, PolicyVersion] = {}
        self._served: dict[Adjacency, float] = {}
        self._fetch: _Fetch | None = None
        #: The last neighbour that has replaced its offer while it was fetched: others are asked first, or one that
        #: replaces it with each HELLO would keep this router from all of them.
        self._withdrawn: Adjacency | None = None
        #: The fetched policy that the router judges now, and the router that gave it.
        self._judged: PolicyVersion | None = None
        self._judged_of = ""
        #: By router: how often it has given a wrong policy, and the time until which nothing is fetched from it.
        self._rests: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def give(self, version: PolicyVersion | None, data: bytes, now: float) -> None:
        """Offer a policy from now on; None: offer none, and take any."""
        self._takes_part = True
        self.offer, self._data = version, data
        self._judged = None
        if self._fetch is not None and not self._is_wanted(self._fetch.adjacency, self._fetch.version):
            self._stop()
        self._next(now)

    def refuse(self, version: PolicyVersion, now: float) -> None:
        """Fetch a policy no more: the router has refused it."""
        self._refused[version] = None
        if len(self._refused) > REFUSED:
            self._refused.popitem(last=False)
        if self._judged == version:
            self._judged = None
            self._let_rest(self._judged_of, now)
        self._next(now)

    def heard(self, adjacency: Adjacency, version: PolicyVersion | None, now: float) -> None:
        """Note the policy that a neighbour offers in a HELLO."""
        if self._fetch is not None and self._fetch.adjacency is adjacency and self._fetch.version != version:
            self._stop()  # it has another one now, and gives the former one no more
            self._withdrawn = adjacency
        if version is None:
            self._offers.pop(adjacency, None)
        elif self._takes_part:
            self._offers[adjacency] = version
            self._next(now)

    def gone(self, adjacency: Adjacency, now: float) -> None:
        """Forget a neighbour, and go on with another one."""
        self._offers.pop(adjacency, None)
        self._faulty.pop(adjacency, None)
        self._served.pop(adjacency, None)
        if self._withdrawn is adjacency:
            self._withdrawn = None
        if self._fetch is not None and self._fetch.adjacency is adjacency:
            self._stop()
            self._next(now)

    def receive(self, adjacency: Adjacency, message: PolicyRequest | PolicyPiece, now: float) -> None:
        """Handle a message of a neighbour."""
        if isinstance(message, PolicyRequest):
            self.receive_request(adjacency, message, now)
        else:
            self.receive_piece(adjacency, message, now)

    # -------------------------------------------------------------------------------------------------------- fetching

    def _is_wanted(self, adjacency: Adjacency, version: PolicyVersion) -> bool:
        return (
            (self.offer is None or version > self.offer)
            and version not in self._refused
            and self._faulty.get(adjacency) != version
        )

    def _next(self, now: float) -> None:
        """Begin to fetch the newest policy that a neighbour offers, if it is newer than all that this router has."""
        if not self._takes_part or self._fetch is not None or self._judged is not None:
            return
        wanted = [
            (version, -adjacency.number, adjacency)
            for adjacency, version in self._offers.items()
            if self._is_wanted(adjacency, version) and self._rests.get(adjacency.router, (0, now))[1] <= now
        ]
        if wanted:
            version, _, adjacency = max(wanted, key=lambda each: (each[2] is not self._withdrawn, *each[:2]))
            self._fetch = _Fetch(adjacency, version)
            self._ask(now)

    def _ask(self, now: float) -> None:
        fetch = self._fetch
        assert fetch is not None
        fetch.tries += 1
        self._outbox.send(
            fetch.adjacency, PolicyRequest(fetch.version.digest, len(fetch.data), self._outbox.settings.area)
        )
        self._timers.set(("policy",), now + PIECE_TIME)

    def _stop(self) -> None:
        self._fetch = None
        self._timers.cancel(("policy",))

    def _give_up(self, reason: str, now: float) -> None:
        """Fetch from this neighbour no more, until it offers another policy."""
        fetch = self._fetch
        assert fetch is not None
        self._faulty[fetch.adjacency] = fetch.version
        self._let_rest(fetch.adjacency.router, now)
        self._outbox.report(PolicyNotFetched(fetch.adjacency.router, fetch.version, reason))
        self._stop()
        self._next(now)

    def _let_rest(self, router: str, now: float) -> None:
        """Fetch nothing from a router for a while. The first HELLO after that counts again."""
        count, _ = self._rests.pop(router, (0, now))
        self._rests[router] = count + 1, now + REST * 2 ** min(count, 6)
        if len(self._rests) > RESTING:
            self._rests.popitem(last=False)

    def piece_is_late(self, now: float) -> None:
        """Ask again for a piece that has not come in time."""
        if self._fetch is not None:
            if self._fetch.tries < TRIES:
                self._ask(now)
            else:
                self._give_up("it does not come", now)

    def receive_piece(self, adjacency: Adjacency, piece: PolicyPiece, now: float) -> None:
        """Take a piece that was asked for; others are ignored."""
        fetch = self._fetch
        if (
            fetch is None
            or fetch.adjacency is not adjacency
            or piece.digest != fetch.version.digest
            or piece.offset != len(fetch.data)
        ):
            return
        if fetch.total is None:
            fetch.total = piece.total
        # A short piece, one octet a time, would hold other policies up for weeks.
        if piece.total != fetch.total or len(piece.data) != min(PIECE, fetch.total - len(fetch.data)):
            self._give_up("its pieces do not fit together", now)
            return
        fetch.data += piece.data
        fetch.tries = 0
        if len(fetch.data) < fetch.total:
            self._ask(now)
        elif sha256(fetch.data).digest() != fetch.version.digest:
            self._give_up("it is not what its digest says", now)
        else:
            self._judged, self._judged_of = fetch.version, adjacency.router
            self._outbox.report(PolicyFetched(adjacency.router, fetch.version, bytes(fetch.data)))
            self._stop()

    # ---------------------------------------------------------------------------------------------------------- giving

    def receive_request(self, adjacency: Adjacency, request: PolicyRequest, now: float) -> None:
        """Send a neighbour a piece of the offered policy; do nothing if it asks for another one, or for too many."""
        if self.offer is None or request.digest != self.offer.digest or request.offset >= len(self._data):
            return
        spent = self._served.get(adjacency, NEVER)
        if SERVED.when(spent, 1) > now:
            return
        self._served[adjacency] = SERVED.used(spent, 1, now)
        data = self._data[request.offset : request.offset + PIECE]
        self._outbox.send(
            adjacency,
            PolicyPiece(request.digest, request.offset, len(self._data), data, self._outbox.settings.area),
        )
