"""Messages of a random history: their fates, and the rules that these must obey."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from amqpmesh.router.amqp.link import Receiver, Sender
from amqpmesh.router.amqp.standard.definitions import AmqpCondition
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Modified, Rejected, Released
from tests.support.worlds.network import OUTCOMES, Arrival, Client, Sent

FAILED = Modified(delivery_failed=True)
EXPIRED = Modified(delivery_failed=True, undeliverable_here=True)


@dataclass(eq=False)
class Receipt:
    """A message as one receiver has it."""

    arrival: Arrival
    #: What the receiver decided.
    state: DeliveryState | None = None

    @property
    def link(self) -> Receiver:
        """The link that it arrived on."""
        return self.arrival.link

    @property
    def is_whole(self) -> bool:
        """True if the whole message has arrived."""
        return self.arrival.delivery.complete and not self.arrival.delivery.aborted


@dataclass(eq=False)
class Letter:
    """One message."""

    number: int
    to: str
    sender: Sender
    client: Client
    sent: Sent
    #: From its first frame on; else it may have been settled with a later one.
    settled: bool
    priority: int = 4
    #: It may expire.
    ttl: int | None = None
    #: The dynamic node to which the answer goes; None: no answer is wanted.
    reply_to: str | None = None
    #: The link that it was sent by has no address.
    anonymous: bool = False
    #: Sent to the end, not aborted.
    whole: bool = True
    aborted: bool = False
    #: The sender settled it before it heard.
    forgotten: bool = False
    receipts: list[Receipt] = field(default_factory=list)

    def receipt(self, arrival: Arrival) -> Receipt:
        """Return the receipt of an arrival."""
        return next(each for each in self.receipts if each.arrival is arrival)

    @property
    def decided(self) -> list[DeliveryState]:
        """The decisions of receivers."""
        return [each.state for each in self.receipts if each.state is not None]


@dataclass(frozen=True)
class Rules:
    """The events that a history may have.

    Args: faults: connections and routers are lost. departures: receivers leave, or lower their credit. multicast: the
        addresses that every receiver gets. attempts: how often a message of an address is tried, if more than once.
    """

    faults: bool
    departures: bool
    multicast: frozenset[str]
    attempts: dict[str, int]


def check(letter: Letter, rules: Rules, *, is_attached: bool) -> None:
    """Assert that the sender's outcome is one that a receiver gave, or one that a router may give in its place.

    Args: is_attached: the sender is still attached.
    """
    said = letter.sent.said
    account = (letter.number, letter.to, said, [(each.link.name, each.state) for each in letter.receipts])
    multicast = letter.to in rules.multicast
    whole = [each for each in letter.receipts if each.is_whole]
    links = [each.link for each in letter.receipts]
    attempts = rules.attempts.get(letter.to, 1)
    assert attempts > 1 or len(set(links)) == len(links), ("twice to one receiver", account)
    assert multicast or len(links) <= attempts, ("more often than it may", account)
    assert multicast or letter.decided.count(Accepted()) <= 1 or rules.faults, ("accepted twice", account)
    assert not letter.aborted or not whole, ("aborted", account)
    assert [settled for _, settled in said].count(True) <= 1, ("settled twice", account)
    outcomes = [state for state, _ in said if state is not None]
    assert all(state == outcomes[0] for state in outcomes), ("changed its mind", account)
    if letter.settled:
        assert not said, ("answered", account)
        return
    heard = letter.sent.outcome
    # A link that ends with the node at its other end takes with it what is in doubt.
    if is_attached and not (letter.forgotten or letter.aborted):
        assert heard is not None, ("never heard", account)
    if heard is not None:
        _check_outcome(letter, heard, rules, account)


def _check_outcome(letter: Letter, heard: DeliveryState, rules: Rules, account: object) -> None:
    decided = letter.decided
    undecided = len(decided) < len(letter.receipts)
    if heard == Accepted() or heard in (OUTCOMES["rejected"], OUTCOMES["modified"]):
        assert heard in decided, ("invented", account)
    elif heard == Released():
        assert not letter.receipts or heard in decided, ("released, though it was sent", account)
    elif heard == EXPIRED:
        assert letter.ttl is not None, ("expired without a ttl", account)
        several = letter.to in rules.attempts or letter.to in rules.multicast
        assert several or not letter.receipts, ("expired, though it was sent", account)
    elif heard == FAILED:
        # Somebody had it, or a router that is gone may have given it to somebody, or a try before the last has failed.
        tried = letter.to in rules.attempts and bool(decided)
        assert rules.faults or rules.departures or tried, ("failed without a reason", account)
    elif isinstance(heard, Rejected) and heard.error is not None and heard.error.condition == AmqpCondition.NOT_FOUND:
        is_gone = letter.to.startswith("$dynamic/") and (rules.faults or rules.departures)
        assert is_gone, ("rejected for a node that is there", account)
        assert not letter.receipts, ("rejected as for a node that is gone, though it was sent", account)
    else:
        raise AssertionError(("strange", account))
    one = letter.to not in rules.multicast and letter.to not in rules.attempts
    if not rules.faults and one and not undecided and decided:
        assert heard == decided[0], ("changed on its way", account)


def check_order(nodes: Iterable[list[Arrival]], letters: dict[Arrival, Letter], tried_again: Container[str]) -> None:
    """Assert that from one sender's link to one receiver's link, messages of a priority began to arrive in their order.

    Args: nodes: what arrived at the clients of each router, in order. tried_again: addresses whose messages may be sent
        a second time.
    """
    for arrived in nodes:
        latest: dict[tuple[Sender, Receiver, int], int] = {}
        for arrival in arrived:
            letter = letters.get(arrival)
            if letter is None:
                continue
            key = letter.sender, arrival.link, letter.priority
            before = latest.get(key, 0)
            again = letter.to in tried_again
            assert again or letter.number > before, ("overtaken", letter.number, before, letter.to, letter.priority)
            latest[key] = letter.number
