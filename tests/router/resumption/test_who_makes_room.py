"""Twice the memory is used: the user that holds most makes room, by what is kept for it while it is away first."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.delivery_states import Released
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.amqp.standard.performatives import Attach, Detach
from amqpmesh.router.config.resumption import ResumptionConfig
from amqpmesh.router.incremental import STEPS_A_TURN
from amqpmesh.router.kernel import Budget
from tests.router.resumption.test_returning_senders import CLOSE, SECOND, tag
from tests.support.peers.bystanders import Intruder
from tests.support.peers.scripted import attached, flow, frame, transferred
from tests.support.worlds.hogs import Hog
from tests.support.worlds.network import Network, message

if TYPE_CHECKING:
    from amqpmesh.router.incremental import Steps

MIB = 2**20
LIMITS = ResumptionConfig(timeout=3600, links_per_user=5_000, keep=16 * MIB)

#: Octets of messages that are kept: few and large.
LARGE = 60_000


class User:
    """A user, by a host of its own: it comes with a link of either role, and goes away."""

    def __init__(self, network: Network, host: str) -> None:
        self.network, self.host = network, host
        #: Takes what it sends, and settles nothing; and sends to it.
        self.taker, self.feeder = network.client(host="127.0.0.250"), network.client(host="127.0.0.250")
        self.taker.receiver(f"to {host}", credit=5_000)
        self.feeds = self.feeder.sender(f"of {host}", session=self.feeder.engine.begin())
        self.connect()

    def connect(self) -> None:
        """Open a connection, with a session."""
        self.end = Intruder(self.network, host=self.host, shares=True)
        self.end.peer.open(max_frame_size=2**20)
        self.end.peer.begin()

    def attach(self, role: Role, unsettled: dict[bytes, None] | None = None, name: str = "link", at: int = 0) -> Attach:
        """Attach a link that is to be kept. Args: at: its handle. Returns: the answer."""
        way, terminus = ("to", Target) if role is Role.SENDER else ("of", Source)
        kept = terminus(address=f"{way} {self.host}", expiry_policy=CLOSE, timeout=3600)
        fields = {terminus.__name__.lower(): kept, "rcv_settle_mode": SECOND, "unsettled": unsettled, "handle": at}
        self.end.peer.write(attached(role, name=f"{name} {way}", **fields))
        answer = self.end.peer.hear()[0].performative
        assert isinstance(answer, Attach)
        return answer

    def send(self, count: int) -> None:
        """Send messages by a link of its own, of which none is settled."""
        self.attach(Role.SENDER)
        for number in range(count):
            self.end.peer.write(frame(transferred(number), message(number)))
            self.end.peer.hear()

    def receive(self, count: int, octets: int) -> list[bytes]:
        """Get messages by a link of its own, of which none is settled. Returns: their tags."""
        self.attach(Role.RECEIVER, at=1)
        self.end.peer.write(flow(handle=1, link_credit=count, delivery_count=0))
        for _ in range(count):
            self.feeder.send(self.feeds, message("x" * octets))
        heard = [each.performative for each in self.end.peer.hear()]
        return [each.delivery_tag for each in heard if getattr(each, "delivery_tag", None)]  # type: ignore[union-attr]

    def goes(self) -> User:
        """Lose the connection."""
        self.end.leave()
        return self

    @property
    def links(self) -> int:
        """Its links that are kept."""
        return sum(each.key[2] == f"host {self.host}" for each in self.network.core.context.termini.kept())

    @property
    def octets(self) -> int:
        """The octets of all that is kept for it."""
        return self.network.core.context.termini.octets_of(("", f"host {self.host}"))


class Modest(User):
    """One that has little, and comes back to all of it."""

    def __init__(self, network: Network, host: str) -> None:
        super().__init__(network, host)
        self.send(2)
        self.tags = self.receive(1, octets=1_000)
        self.goes()
        self.had = self.octets
        assert (self.links, self.had > 5_000) == (2, True)

    def check(self) -> None:
        """Assert that all is kept."""
        assert (self.links, self.octets) == (2, self.had)

    def comes(self) -> None:
        """Come back to all of it."""
        self.check()
        self.connect()
        ours = {tag(0): None, tag(1): None}
        assert set(self.attach(Role.SENDER, ours).unsettled or ()) == set(ours)
        answer = self.attach(Role.RECEIVER, {self.tags[0]: None}, at=1)
        assert dict(answer.unsettled or {}) == {self.tags[0]: None}, "it is sent again"


def world() -> tuple[Network, list[Modest]]:
    """Return a router of little memory, and users that are away."""
    network = Network(memory=MIB, resumption=LIMITS)
    return network, [Modest(network, f"127.0.0.{number}") for number in range(2, 8)]


def fill(network: Network, host: str = "127.0.0.1", left: int = -1_000) -> Hog:
    """Have a client hold the rest of twice the memory. Args: left: octets that are free then."""
    return Hog(network, 2 * MIB - network.core.context.budget.used - left, host)


def lose_links(user: User, numbers: range) -> None:
    """Attach links, each with a name of its own, and go away."""
    for at, number in enumerate(numbers):
        user.attach(Role.SENDER, name=f"link {number}", at=at)
    user.goes()


FLOODS: dict[str, Callable[[User], object]] = {
    "many links": lambda user: lose_links(user, range(250)),
    "many deliveries of few octets": lambda user: (user.send(300), user.goes()),
    "few messages of many octets": lambda user: (user.receive(12, LARGE), user.goes()),
    "messages that are kept for a receiver that is there": lambda user: user.receive(12, LARGE),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_what_is_kept_for_who_holds_most_goes_before_its_connections_and_others_keep_all(
    flood: str, caplog: pytest.LogCaptureFixture
) -> None:
    network, others = world()
    context = network.core.context
    greedy = User(network, "127.0.0.1")
    FLOODS[flood](greedy)
    had, links, messages = greedy.octets, greedy.links, context.termini.sources.octets  # type: ignore[attr-defined]
    assert had > 100_000
    caplog.set_level(logging.INFO, "amqpmesh")
    hog = fill(network)
    assert hog.is_closed is (had < MIB // 2), "only if the rest is not enough"
    assert context.budget.used <= 1.5 * MIB
    assert greedy.octets < had
    assert context.termini.evicted == links - greedy.links
    assert messages.given_up + context.termini.evicted > 0
    (line,) = [each for each in caplog.messages if each.startswith("links given up to free memory")]
    assert 'largest="host 127.0.0.1"' in line
    assert sum("there is no room" in each for each in caplog.messages) == context.termini.evicted
    for each in others:
        each.comes()
    hog.leave()


def test_the_links_that_have_been_away_longest_go_first_no_more_than_needed_and_null_tells() -> None:
    network, others = world()
    context = network.core.context
    greedy = User(network, "127.0.0.1")
    for first in (0, 200):
        lose_links(greedy, range(first, first + 200))
        greedy.connect()
    of_one = greedy.octets // 400
    hog = fill(network)
    assert not hog.is_closed
    left = [each.key[4] for each in context.termini.kept() if each.key[2] == "host 127.0.0.1"]
    assert left == [f"link {number} to" for number in range(400 - len(left), 400)]
    assert 1.5 * MIB - 2 * of_one < context.budget.used <= 1.5 * MIB
    assert greedy.attach(Role.SENDER, {tag(0): None}, name="link 0").unsettled is None
    assert greedy.attach(Role.SENDER, {tag(0): None}, name="link 399", at=1).unsettled is not None
    for each in others:
        each.comes()
    hog.leave()


def test_while_the_memory_is_used_up_who_has_more_than_a_share_of_it_is_granted_nothing_new() -> None:
    network, others = world()
    greedy = User(network, "127.0.0.1")
    greedy.receive(3, LARGE)
    hog = fill(network, left=MIB // 2)
    assert network.core.context.memory.used_up
    assert greedy.octets > network.core.context.memory.share > others[0].octets
    for user, seconds in ((greedy, 0), (others[0], 3600)):
        user.connect()
        target = user.attach(Role.SENDER, name="another").target
        assert target is not None
        assert target.timeout == seconds
    assert greedy.attach(Role.RECEIVER, {}, at=1).source.timeout == 3600, "what is kept may come back"  # type: ignore[union-attr]
    hog.leave()
    network.run()
    assert greedy.attach(Role.SENDER, name="later", at=2).target.timeout == 3600  # type: ignore[union-attr]


def test_while_the_memory_is_used_up_other_connections_of_a_user_take_no_time_from_its_new_links() -> None:
    network, _ = world()
    user = User(network, "127.0.0.1")
    hog = fill(network, user.host, left=MIB // 2)
    assert network.core.context.memory.used_up
    target = user.attach(Role.SENDER).target
    assert target is not None
    assert target.timeout == 3600
    hog.leave()


def test_of_who_holds_most_by_its_connections_links_go_first_and_then_the_largest_connection() -> None:
    network, others = world()
    greedy = Modest(network, "127.0.0.1")
    small = Hog(network, MIB * 8 // 10)
    large = fill(network)
    assert (small.is_closed, large.is_closed) == (False, True)
    assert greedy.links == greedy.octets == 0
    for each in others:
        each.comes()
    for hog in (small, large):
        hog.leave()


def test_where_addresses_hold_most_their_messages_go_and_nobodys_links() -> None:
    network, others = world()
    consumer = network.client(host="127.0.0.1")
    consumer.receiver("full", credit=0).flow(1)
    network.run()
    producers = [network.client(host="127.0.0.1", window=2048) for _ in range(2)]
    links = [each.sender("full") for each in producers]
    producers[0].send(links[0])
    sents = [
        each.send(link, message("x" * (MIB * 11 // 10)), more=True) for each, link in zip(producers, links, strict=True)
    ]
    assert [each.outcome for each in sents] == [Released()] * 2
    assert network.core.context.termini.evicted == 0
    for user in others:
        user.comes()


def test_whoever_has_no_more_than_a_share_loses_nothing_even_if_nothing_else_can_be_given_up() -> None:
    network, others = world()
    context = network.core.context
    what_stays = Budget(MIB, context.budget)  # as what is kept for the redelivery of messages that have left
    what_stays.add(2 * MIB)
    network.advance(1.0)
    greedy = User(network, "127.0.0.1")
    lose_links(greedy, range(30))
    assert greedy.links == 30, "a share is a sixteenth"
    greedy.connect()
    lose_links(greedy, range(30, 90))
    share = MIB // 16
    assert share * 0.9 < greedy.octets <= share
    for each in others:
        each.check()
    what_stays.add(-what_stays.used)
    for each in others:
        each.comes()


def test_many_links_are_looked_at_and_given_up_in_many_turns() -> None:
    network, others = world()
    core, context = network.core, network.core.context
    greedy = User(network, "127.0.0.1")
    for first in range(0, 800, 200):
        lose_links(greedy, range(first, first + 200))
        greedy.connect()
    what_stays = Budget(MIB, context.budget)
    evicted = 0
    what_stays.add(2 * MIB - context.budget.used + 1_000)
    core.handle_timer(network.now)
    turns = 0
    while context.chores:
        assert context.termini.evicted - evicted <= STEPS_A_TURN
        evicted = context.termini.evicted
        steps = iter([False] * 5)
        core.work(network.now, lambda steps=steps: next(steps, True))  # type: ignore[misc]  # a turn of five steps
        turns += 1
    assert evicted > 200
    assert turns >= evicted // 5
    assert context.budget.used <= 1.5 * MIB
    for each in others:
        each.check()
    what_stays.add(-what_stays.used)


def test_for_many_links_that_are_detached_at_once_those_that_go_are_looked_for_once() -> None:
    count, most = 420, 210
    limits = ResumptionConfig(timeout=3600, links_per_user=5_000, unsettled=most)
    network = Network(resumption=limits)
    core, context = network.core, network.core.context
    taker, end = network.client(), Intruder(network, shares=True)
    end.peer.open()
    end.peer.begin()
    for number in range(count):
        taker.receiver(f"q{number}", credit=10)
        kept = Target(address=f"q{number}", expiry_policy=CLOSE, timeout=3600)
        end.peer.write(attached(Role.SENDER, name=f"link {number}", handle=number, rcv_settle_mode=SECOND, target=kept))
        end.peer.hear()
        end.peer.write(frame(transferred(number, handle=number), message(number)))
    octets = b"".join(frame(Detach(handle=number)) for number in range(count))
    while not core.receive(end.record, octets, network.now):
        octets = b""
    steps = 0
    while context.chores:
        step(network)
        steps += 1
    assert steps < 1.5 * count
    left = [each.key[4] for each in context.termini.kept()]
    assert left == [f"link {number}" for number in range(count - most, count)]
    assert context.termini.evicted == count - most


def step(network: Network) -> None:
    """Have the router do one step of what it has put off."""
    looks = iter((False, True))
    network.core.work(network.now, lambda: next(looks))


def put_off(network: Network, change: Callable[[], object]) -> None:
    """Change something in a turn that has no time for what follows."""
    context = network.core.context

    def work() -> Steps[None]:
        for _ in range(STEPS_A_TURN - 1):
            yield

    def act() -> None:
        context.chores.do(work())
        change()

    network.core.change(act, network.now)


def test_whoever_has_read_what_was_held_for_it_keeps_its_links() -> None:
    network, others = world()
    context = network.core.context
    greedy, fast = User(network, "127.0.0.1"), User(network, "127.0.0.9")
    for first in (0, 200):
        lose_links(greedy, range(first, first + 200))
        greedy.connect()
    lose_links(fast, range(20))
    hog = Hog(network, MIB // 2, fast.host)
    what_stays = Budget(MIB, context.budget)
    missing = 2 * MIB + 1_000 - context.budget.used
    put_off(network, lambda: what_stays.add(missing))
    while not context.termini.evicted:
        step(network)
    assert greedy.octets > hog.octets > MIB // 3
    what_stays.add(hog.octets)
    hog.leave()
    while context.chores:
        step(network)
    assert context.budget.used <= 1.5 * MIB
    assert (fast.links, greedy.links < 200) == (20, True)
    for each in others:
        each.check()
    what_stays.add(-what_stays.used)


def test_memory_that_was_freed_in_vain_is_freed_again_once_less_was_used_meanwhile() -> None:
    network, others = world()
    context = network.core.context
    what_stays = Budget(MIB, context.budget)
    what_stays.add(4 * MIB)
    network.advance(1.0)
    what_stays.add(2 * MIB - context.budget.used + 1_000)
    network.advance(1.0)
    assert context.memory.is_exceeded
    hog = Hog(network, MIB // 2)
    network.advance(1.0)
    assert hog.is_closed
    what_stays.add(-what_stays.used)
    for each in others:
        each.comes()
    hog.leave()


@pytest.mark.parametrize("seed", range(6))
def test_whoever_loses_anything_had_at_least_what_anybody_has_then(seed: int) -> None:
    chance = random.Random(seed)
    network, others = world()
    context = network.core.context
    users = [User(network, f"127.0.1.{number}") for number in range(1, 6)]
    hogs = list[tuple[User, Hog]]()
    for user in users:
        FLOODS[chance.choice(list(FLOODS))](user)
        if chance.random() < 0.5:
            hogs.append((user, Hog(network, chance.randrange(20_000, 150_000), user.host)))
    assert context.budget.used < 2 * MIB

    def held() -> dict[User, int]:
        return {user: user.octets + sum(hog.octets for of, hog in hogs if of is user) for user in users}

    biggest = chance.choice(users)
    left = 2 * MIB - context.budget.used
    before = held()
    before[biggest] += left
    hogs.append((biggest, fill(network, biggest.host)))
    after = held()
    assert context.budget.used <= 1.5 * MIB
    losers = [user for user in users if after[user] < before[user]]
    assert losers
    for user in losers:
        assert before[user] >= max(after.values())
    for user, hog in hogs:
        if hog.is_closed:
            assert user.octets == 0, "what is kept for it goes before its connections"
        hog.leave()
    for each in others:
        each.comes()
