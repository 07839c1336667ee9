"""Message-ids over several routers: each belongs to one of those with receivers, wherever its sender is."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Released
from amqpmesh.router.amqp.standard.messaging import AmqpValue, Properties
from amqpmesh.router.config.address import Duplicates
from amqpmesh.router.config.file import AddressConfig, MeshConfig
from amqpmesh.router.management.snapshot import snapshot
from tests.support.worlds.frayed_wires import RESUME
from tests.support.worlds.meshes import INSECURE, World
from tests.support.worlds.network import Client, Sent

DROPS = AddressConfig(pattern="q/#", duplicates=Duplicates.MESSAGE_ID, max_credit=20)
LINE = [("A", "B"), ("B", "C")]


def message(message_id: str, to: str = "q/a") -> bytes:
    """Encode a message."""
    return encode_composite(Properties(message_id=message_id, to=to)) + encode_composite(AmqpValue(value=message_id))


def id_of(payload: bytes) -> str:
    """Return the message-id of a message, which is its body, too."""
    return bytes(payload).rpartition(b"\xa1")[2][1:].decode()


class Story:
    """Receivers and senders of `q/a`, and how often each message-id was processed."""

    def __init__(self, mesh: World, receivers: str, address: str | None = "q/a") -> None:
        self.mesh = mesh
        self.receivers = {router: self.receive(router) for router in receivers}
        self.address = address
        self.senders: dict[str, tuple[Client, object]] = {}
        self.processed: dict[str, list[str]] = {}
        mesh.advance(1.0)

    def receive(self, router: str, credit: int = 200) -> Client:
        client = self.mesh[router].client()
        client.receiver("q/a", credit=credit)
        return client

    def send(self, router: str, message_id: str) -> Sent:
        """Send a message at a router."""
        if router not in self.senders:
            client = self.mesh[router].client()
            self.senders[router] = client, client.sender(self.address)
            self.mesh.advance(0.5)
        client, link = self.senders[router]
        sent = client.send(link, message(message_id))  # type: ignore[arg-type]  # a Sender
        self.mesh.run()
        return sent

    def accept(self) -> None:
        """Accept all that has come."""
        for router, client in self.receivers.items():
            for arrival in client.take():
                self.processed.setdefault(id_of(arrival.payload), []).append(router)
                arrival.accept()
        self.mesh.run()


def counts(mesh: World, name: str) -> int:
    """Return a count of all routers together."""
    return sum(getattr(snapshot(node.core).router, name) for node in mesh.nodes.values())


@pytest.mark.parametrize("address", ["q/a", None], ids=["attached", "anonymous"])
@pytest.mark.parametrize("distribution", [Distribution.BALANCED, Distribution.CLOSEST])
@pytest.mark.parametrize("receivers", ["A", "C", "BC", "ABC"])
def test_a_message_is_processed_once_wherever_it_is_sent_again(
    receivers: str, distribution: Distribution, address: str | None
) -> None:
    mesh = World("ABC", LINE, replace(DROPS, distribution=distribution))
    story = Story(mesh, receivers, address)
    for number in range(12):
        sents = [story.send("A", f"m{number}")]
        if number % 2:
            story.accept()
        sents += [story.send(router, f"m{number}") for router in "ABC"]
        story.accept()
        mesh.advance(0.1)
        story.accept()
        assert [sent.said for sent in sents] == [[(Accepted(), True)]] * 4
    assert all(len(each) == 1 for each in story.processed.values())
    assert len(story.processed) == 12
    assert {each for (each,) in story.processed.values()} == set(receivers), "each router has some"
    assert counts(mesh, "duplicates") == 36


def test_when_a_router_gets_receivers_some_message_ids_belong_to_it_and_this_is_counted() -> None:
    mesh = World("ABC", LINE, DROPS)
    story = Story(mesh, "B")
    story.send("A", "first")
    story.accept()
    assert counts(mesh, "moved") == 0
    story.receivers["C"] = story.receive("C")
    mesh.advance(1.0)
    assert counts(mesh, "moved") == 1
    for number in range(10):
        story.send("A", f"m{number}")
        story.accept()
    assert {each for (each,) in story.processed.values()} == {"B", "C"}
    story.receivers.pop("C").close()
    mesh.advance(1.0)
    assert counts(mesh, "moved") == 2


def test_a_message_waits_for_the_receivers_of_its_own_router() -> None:
    mesh = World("ABC", LINE, DROPS)
    story = Story(mesh, "")
    busy = story.receivers["B"] = story.receive("B", credit=1)
    story.receivers["C"] = story.receive("C", credit=100)
    mesh.advance(1.0)
    sents = [story.send("A", f"m{number}") for number in range(12)]
    story.accept()
    mesh.advance(0.5)
    waiting = [sent for sent in sents if not sent.said]
    assert waiting
    assert len(story.processed) > 2, "others go on"
    next(iter(busy.session.links.values())).flow(100)  # type: ignore[attr-defined]
    mesh.advance(0.5)
    story.accept()
    assert all(sent.said == [(Accepted(), True)] for sent in sents)


def test_a_message_that_its_router_gives_back_for_good_goes_to_the_next() -> None:
    mesh = World("ABC", LINE, replace(DROPS, redeliver=True))
    story = Story(mesh, "BC")
    sent = story.send("A", "m")
    (first,) = [router for router, client in story.receivers.items() if client.arrivals]
    (arrival,) = story.receivers[first].take()
    arrival.dispose(Modified(delivery_failed=True, undeliverable_here=True), settled=True)
    mesh.advance(0.5)
    story.accept()
    assert sent.said == [(Accepted(), True)]
    assert story.processed == {"m": ["C" if first == "B" else "B"]}
    assert counts(mesh, "moved") == 1


def test_the_name_of_an_address_at_a_router_is_the_same_address() -> None:
    mesh = World("ABC", LINE, DROPS)
    story = Story(mesh, "B")
    there, sents = mesh["A"].client(), [story.send("C", "m"), story.send("B", "m")]
    link, anonymous = there.sender("q/a@B"), there.sender(None)
    mesh.advance(0.5)
    sents += [there.send(link, message("m")), there.send(anonymous, message("m", to="q/a@B"))]
    mesh.run()
    story.accept()
    assert [sent.said for sent in sents] == [[(Accepted(), True)]] * 4
    assert story.processed == {"m": ["B"]}


def test_a_first_message_that_is_offered_at_another_router_is_forgotten_here() -> None:
    mesh = World("AB", [("A", "B")], own={"A": replace(DROPS, redeliver=True), "B": DROPS})
    story = Story(mesh, "AB")
    number, here = 0, story.receivers["A"]
    while not here.arrivals:
        number += 1
        sent = story.send("A", f"m{number}")
    joined = story.send("B", f"m{number}")
    (arrival,) = here.take()
    arrival.dispose(Modified(delivery_failed=True, undeliverable_here=True), settled=True)
    mesh.advance(0.5)
    story.accept()
    assert sent.said == [(Accepted(), True)]
    assert joined.said == [(Released(), True)], "it can be sent again: nobody has it"
    assert story.processed[f"m{number}"] == ["B"]


@pytest.mark.parametrize(
    ("here", "there"), [(DROPS, AddressConfig(pattern="q/#")), (AddressConfig(pattern="q/#"), DROPS)]
)
def test_routers_that_differ_say_so(here: AddressConfig, there: AddressConfig) -> None:
    mesh = World("AB", [("A", "B")], own={"A": here, "B": there})
    story = Story(mesh, "B")
    story.send("A", "m")
    story.accept()
    words = {DROPS: "balanced by message-id"}
    (told,) = snapshot(mesh["A"].core).disagreements
    assert (told.ours, told.theirs) == (words.get(here, "balanced"), words.get(there, "balanced"))
    assert story.processed == {"m": ["B"]}


@pytest.mark.parametrize(("lanes", "away"), [(INSECURE, 1.0), (RESUME, 0.3)], ids=["lost", "resumed"])
@pytest.mark.parametrize("seed", range(3))
def test_with_connections_that_are_cut_a_message_is_processed_twice_only_if_its_receiver_was_lost(
    seed: int, lanes: MeshConfig, away: float
) -> None:
    """Each message is sent until it is accepted; connections of senders and between routers are cut at random.

    Args: away: seconds until two routers are connected again.
    """
    random = Random(seed)
    mesh = World("ABC", [*LINE, ("A", "C")], DROPS, mesh=lanes)
    story = Story(mesh, "BC")
    pending: dict[str, list[Sent]] = {}
    for number in range(60):
        pending[f"m{number}"] = []
        for message_id, sents in list(pending.items()):
            if any(isinstance(sent.outcome, Accepted) for sent in sents):
                del pending[message_id]
            elif random.random() < 0.3:
                sents.append(story.send(random.choice("ABC"), message_id))
        event = random.random()
        if event < 0.15 and story.senders:
            story.senders.pop(random.choice(sorted(story.senders)))[0].lose()
        elif event < 0.25:
            one, two = random.choice([("A", "B"), ("A", "C")])
            mesh.cut(*mesh.between(one, two))
            mesh.advance(away)
            mesh.join(one, two)
            mesh.advance(1.0)
        if random.random() < 0.5:
            story.accept()
    for _ in range(10):
        for message_id, sents in pending.items():
            if not any(isinstance(sent.outcome, Accepted) for sent in sents):
                sents.append(story.send(random.choice("ABC"), message_id))
        story.accept()
        mesh.advance(0.5)
        story.accept()
    assert all(any(isinstance(sent.outcome, Accepted) for sent in sents) for sents in pending.values())
    assert len(story.processed) == 60
    assert [each for each, routers in story.processed.items() if len(routers) > 1] == []
    resumed = sum(node.core.context.termini.resumptions for node in mesh.nodes.values())
    assert (resumed > 0) is (lanes is RESUME)


def test_while_the_router_of_a_message_id_cannot_be_reached_another_one_takes_the_message_again() -> None:
    mesh = World("ABC", [("A", "B"), ("A", "C")], DROPS)
    story = Story(mesh, "BC")
    first = {f"m{number}": story.send("A", f"m{number}") for number in range(12)}
    mesh.cut(*mesh.between("A", "B"))
    story.accept()
    mesh.advance(15.0)
    lost = [message_id for message_id, sent in first.items() if not isinstance(sent.outcome, Accepted)]
    assert [message_id for message_id, routers in story.processed.items() if routers == ["B"]] == lost
    assert [first[message_id].outcome for message_id in lost] == [Modified(delivery_failed=True)] * len(lost)
    again = [story.send("A", message_id) for message_id in lost]
    story.accept()
    mesh.advance(1.0)
    assert [sent.outcome for sent in again] == [Accepted()] * len(lost)
    assert [story.processed[message_id] for message_id in lost] == [["B", "C"]] * len(lost)
    assert lost
    assert len(lost) < len(first)
