"""Forms of an address, in all places: `name`, `name@container`, `@container`, and invalid ones.

Every form is tried as the target of a sender, as the source of a receiver, as the `to` of an anonymous sender's
message, and as the address that an answer goes to; at router A of a mesh, where B is another router.
"""

from __future__ import annotations

import pytest

from amqpmesh.policies.access import Peer
from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.link import Link
from amqpmesh.router.amqp.standard.definitions import Error
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.attach.resolve import LONGEST, REMEMBERED
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.management.service import ADDRESS as MANAGEMENT
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.statistics.common import Direction, Reason
from tests.support.worlds.meshes import World, deliver, with_receivers
from tests.support.worlds.network import Client, Network, message

LINE = [("A", "B"), ("B", "C")]

NOT_FOUND = "amqp:not-found"
INVALID = "amqp:invalid-field"
NOT_IMPLEMENTED = "amqp:not-implemented"
UNAUTHORIZED = "amqp:unauthorized-access"

#: By form: what a sender to it, a receiver from it, and a message with that `to` at A come to.
#: `here`, `mesh`, `there`: served by receivers of q at A, anywhere, or at B. `waits`: attached, and without credit
#: until somebody comes. `window`: what is sent is looked up at its end. Else the condition of the refusal; for messages
#: `released`, or the condition of `rejected`.
TABLE = [
    ("q", "mesh", "mesh", "mesh"),
    ("q@A", "here", "mesh", "here"),
    ("q@B", "there", "there", "there"),
    ("q@X", NOT_FOUND, NOT_FOUND, NOT_FOUND),
    ("x@q@B", "waits", "waits", "released"),
    ("x@q@A", "waits", "waits", "released"),
    ("q%40B", "waits", "waits", "released"),
    ("q@", INVALID, INVALID, INVALID),
    ("@", INVALID, INVALID, INVALID),
    ("", INVALID, INVALID, "amqp:precondition-failed"),
    ("@A", "window", NOT_IMPLEMENTED, INVALID),
    ("@B", "window", NOT_IMPLEMENTED, INVALID),
    ("@X", NOT_FOUND, NOT_IMPLEMENTED, INVALID),
    ("$none", NOT_FOUND, NOT_FOUND, NOT_FOUND),
    ("$none@A", NOT_FOUND, NOT_FOUND, NOT_FOUND),
    ("$none@B", "window", UNAUTHORIZED, "released"),
    (f"{MANAGEMENT}@B", "window", UNAUTHORIZED, "released"),
    ("$dynamic/c/l/00@B", "window", UNAUTHORIZED, "released"),
]


def condition(client: Client, link: Link) -> str | None:
    """Return the condition with which a link was refused; None: it was not refused."""
    error = client.detached.get(link)
    return None if error is None else str(error.condition)


def mesh_with_receivers() -> tuple[World, dict[str, Client]]:
    """Return the mesh A, B, C, and a client at each router that receives from q."""
    return with_receivers("ABC", LINE)


EXPECTED = {"here": {"A"}, "there": {"B"}, "mesh": {"A", "B", "C"}}


@pytest.mark.parametrize(("address", "expected"), [(row[0], row[1]) for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_sender_to_a_form_of_address(address: str, expected: str) -> None:
    mesh, receivers = mesh_with_receivers()
    producer = mesh["A"].client()
    link = producer.sender(address)
    mesh.advance(0.2)
    if expected in EXPECTED:
        sends = []
        for _ in range(9):
            mesh.advance_until(lambda: link.credit > 0, 1.0)
            sends.append(producer.send(link))
        assert deliver(mesh, receivers, sends) == EXPECTED[expected]
    elif expected in ("waits", "window"):
        assert link.is_attached
        assert link.credit == (64 if expected == "window" else 0)
    else:
        assert condition(producer, link) == expected
        assert producer.detached[link] is not None
        assert producer.detached[link].description, "it says why"  # type: ignore[union-attr]  # is not None
    mesh.leave()


@pytest.mark.parametrize(("address", "expected"), [(row[0], row[2]) for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_receiver_from_a_form_of_address(address: str, expected: str) -> None:
    mesh = World("ABC", LINE)
    consumer = mesh["A"].client()
    link = consumer.receiver(address, credit=10)
    mesh.advance(0.2)
    producers = {router: mesh[router].client() for router in "ABC"}
    links = {router: client.sender("q") for router, client in producers.items()}
    mesh.advance(0.2)
    if expected in EXPECTED:
        # A sender to q reaches the receivers of q at A and at B: both belong to the mesh's q.
        for router, client in producers.items():
            mesh.advance_until(lambda it=links[router]: it.credit > 0, 1.0)  # type: ignore[misc]  # of this turn
            sent = client.send(links[router])
            mesh.advance(0.1)
            (arrival,) = consumer.take(1)
            arrival.accept()
            mesh.run()
            assert sent.said == [(Accepted(), True)]
    elif expected == "waits":
        assert link.is_attached
        assert [each.credit for each in links.values()] == [0, 0, 0]
    else:
        assert condition(consumer, link) == expected
        error = consumer.detached[link]
        assert isinstance(error, Error)
        assert error.description, "it says why"
        assert mesh["A"].core.context.nodes.find("", address) is None or address.startswith("$")
    mesh.leave()


@pytest.mark.parametrize(("address", "expected"), [(row[0], row[3]) for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_message_of_an_anonymous_sender_with_a_form_of_address(address: str, expected: str) -> None:
    mesh, receivers = mesh_with_receivers()
    producer = mesh["A"].client()
    link = producer.sender(None)
    sends = [producer.send(link, message(to=address)) for _ in range(6)]
    if expected in EXPECTED:
        assert deliver(mesh, receivers, sends) == EXPECTED[expected]
    else:
        mesh.advance(2.0)
        for sent in sends:
            if expected == "released":
                assert sent.outcome == Released()
            else:
                assert isinstance(sent.outcome, Rejected)
                assert sent.outcome.error is not None
                assert sent.outcome.error.condition == expected
                assert sent.outcome.error.description
        assert link.is_attached, "one bad message ends no link"
    mesh.leave()


def test_a_sender_to_a_name_at_another_router_has_the_credit_of_its_receivers_and_no_more() -> None:
    mesh = World("ABC", LINE)
    consumer, bystander, producer = mesh["C"].client(), mesh["B"].client(), mesh["A"].client()
    bystander.receiver("q", credit=50)
    link = producer.sender("q@C")
    mesh.advance(0.2)
    assert link.credit == 0, "who receives elsewhere is not asked"
    receiver = consumer.receiver("q", credit=3)
    assert mesh.advance_until(lambda: link.credit > 0, 1.0) < 0.1
    sent = 0
    while link.credit:
        producer.send(link)
        sent += 1
    assert 3 <= sent <= 7, "its credit, and one for each pool on the way"
    consumer.take(3)
    bystander.take(0)
    receiver.flow(10)
    mesh.run()
    assert len(consumer.take()) == sent - 3
    mesh.leave()


@pytest.mark.parametrize("address", ["q@C", "@C", "$dynamic/c/l/00@C"])
def test_a_router_that_no_path_leads_to_for_a_while_is_as_one_without_receivers(address: str) -> None:
    mesh = World("ABC", LINE)
    consumer, producer = mesh["C"].client(), mesh["A"].client()
    consumer.receiver("q", credit=10)
    before = producer.sender(address)
    mesh.advance(0.2)
    assert before.credit > 0
    mesh.cut(*mesh.between("B", "C"))
    mesh.advance_until(lambda: before.credit == 0, 3.0)
    after = producer.sender(address)
    assert (before.is_attached, before.credit, after.is_attached, after.credit) == (True, 0, True, 0)
    mesh.join("B", "C")
    mesh.advance_until(lambda: bool(before.credit and after.credit), 5.0)
    assert before.credit
    assert after.credit
    mesh.leave()


def test_a_router_that_starts_later_is_unknown_until_then_and_its_name_is_served_as_soon_as_it_is_known() -> None:
    mesh = World("AB", LINE[:1])
    producer = mesh["A"].client()
    early = producer.sender("q@C")
    assert condition(producer, early) == NOT_FOUND
    mesh.start("C")
    mesh.join("B", "C")
    mesh["C"].client().receiver("q", credit=5)
    mesh.advance(1.0)
    link = producer.sender("q@C")
    assert mesh.advance_until(lambda: link.credit > 0, 1.0) < 0.2
    mesh.leave()


def test_a_router_that_is_started_again_serves_its_names_again() -> None:
    mesh = World("AB", LINE[:1])
    mesh["B"].client().receiver("q", credit=5)
    producer = mesh["A"].client()
    link = producer.sender("q@B")
    mesh.advance(0.2)
    assert link.credit > 0
    mesh.kill("B")
    mesh.advance_until(lambda: link.credit == 0, 5.0)
    mesh.start("B")
    mesh.join("A", "B")
    consumer = mesh["B"].client()
    consumer.receiver("q", credit=5)
    mesh.advance_until(lambda: link.credit > 0, 5.0)
    sent = producer.send(link)
    mesh.run()
    consumer.take(1)[0].accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]
    mesh.leave()


def test_a_multicast_to_one_router_reaches_all_receivers_there_and_none_elsewhere() -> None:
    mesh = World("ABC", LINE, AddressConfig(pattern="news/#", distribution=Distribution.MULTICAST))
    here, one, two, beyond = (mesh[router].client() for router in "ABBC")
    for client in (here, one, two, beyond):
        client.receiver("news/x", credit=5)
    producer = mesh["A"].client()
    link = producer.sender("news/x@B")
    mesh.advance_until(lambda: link.credit > 0, 1.0)
    large = message("x" * 300_000)
    for payload in (message(), large):
        mesh.advance_until(lambda: link.credit > 0, 1.0)
        sent = producer.send(link, payload)
        mesh.advance(0.2)
        for client in (one, two):
            (arrival,) = client.take(1)
            assert bytes(arrival.payload) == payload
            arrival.accept()
        mesh.run()
        assert sent.said == [(Accepted(), True)]
    here.take(0)
    beyond.take(0)
    mesh.leave()


def test_a_name_with_an_at_is_its_last_containers_and_no_other_address() -> None:
    mesh = World("AB", LINE[:1])
    consumer, other = mesh["B"].client(), mesh["A"].client()
    consumer.receiver("joe@example.com@B", credit=5)
    other.receiver("joe@B", credit=5)
    producer = mesh["A"].client()
    link, anonymous = producer.sender("joe@example.com@B"), producer.sender(None)
    mesh.advance_until(lambda: link.credit > 0, 1.0)
    sends = [producer.send(link), producer.send(anonymous, message(to="joe@example.com@B"))]
    mesh.run()
    for arrival in consumer.take(2):
        arrival.accept()
    mesh.run()
    assert [sent.outcome for sent in sends] == [Accepted(), Accepted()]
    other.take(0)
    mesh.leave()


# Whole containers.


@pytest.mark.parametrize("target", ["@A", "@B", "@C"])
def test_a_message_to_a_whole_container_goes_by_its_to_to_a_name_there(target: str) -> None:
    mesh, receivers = mesh_with_receivers()
    producer = mesh["A"].client()
    link = producer.sender(target)
    assert link.remote is not None
    assert isinstance(link.remote.target, Target)
    assert link.remote.target.address == target
    sends = [producer.send(link, message(to=to)) for to in ("q", f"q{target}", "q", "q")]
    assert deliver(mesh, receivers, sends) == {target[1:]}
    mesh.leave()


def test_a_message_to_a_whole_container_leaves_unchanged() -> None:
    mesh, receivers = mesh_with_receivers()
    producer = mesh["A"].client()
    producer.send(producer.sender("@C"), message(to="q"), settled=True)
    mesh.run()
    assert [bytes(arrival.payload) for arrival in receivers["C"].take(1)] == [message(to="q")]
    mesh.leave()


@pytest.mark.parametrize(
    ("to", "expected"),
    [("q@C", "amqp:not-allowed"), ("", "amqp:precondition-failed"), (None, "amqp:precondition-failed"),
     ("q@", "amqp:not-allowed"), ("nobody", None), ("$none", None)],
)  # fmt: skip
def test_a_message_that_names_no_node_of_the_container_is_refused_with_the_reason(to: str | None, expected: str | None):
    mesh, receivers = mesh_with_receivers()
    producer = mesh["A"].client()
    sent = producer.send(producer.sender("@B"), message(to=to))
    mesh.advance(2.0)
    if expected is None:
        assert sent.outcome == Released()
    else:
        assert isinstance(sent.outcome, Rejected)
        assert sent.outcome.error is not None
        assert sent.outcome.error.condition == expected
    for client in receivers.values():
        client.take(0)
    mesh.leave()


@pytest.mark.parametrize("target", ["@B", None])
@pytest.mark.parametrize("to", ["q@" + "x" * 400, "x" * 400 + "@", "@" + "x" * 400, "x" * 400 + "@B"])
def test_however_long_an_address_is_its_refusal_fits_into_the_smallest_frame(target: str | None, to: str) -> None:
    mesh = World("AB", LINE[:1])
    producer = mesh["A"].client(max_frame_size=512)
    link = producer.sender(target)
    sent = producer.send(link, message(to=to))
    mesh.advance(2.0)
    assert isinstance(sent.outcome, Rejected | Released)
    assert link.is_attached
    refused = producer.sender(to)
    assert refused.is_attached is (to == "x" * 400 + "@B")
    assert link.is_attached
    mesh.leave()


# Answers.


@pytest.mark.parametrize("asking", ["A", "C"])
@pytest.mark.parametrize("form", ["replies", "replies@{}", None], ids=["name", "name-at-router", "dynamic"])
@pytest.mark.parametrize("by", ["link", "to"])
def test_an_answer_finds_its_way_to_whatever_reply_to_names(asking: str, form: str | None, by: str) -> None:
    mesh = World("ABC", LINE)
    requester, responder = mesh[asking].client(), mesh["A"].client()
    if form is None:
        replies = requester.receiver(None, source=Source(dynamic=True))
        assert replies.remote is not None
        assert isinstance(replies.remote.source, Source)
        reply_to = replies.remote.source.address
    else:
        requester.receiver("replies", credit=10)
        reply_to = form.format(asking)
    assert reply_to is not None
    mesh.advance(0.2)
    link = responder.sender(reply_to if by == "link" else None)
    mesh.advance_until(lambda: link.credit > 0, 1.0)
    sent = responder.send(link, message(to=reply_to))
    mesh.run()
    (arrival,) = requester.take(1)
    arrival.accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]
    mesh.leave()


# Rights.


def of_tenant(client: Client, tenant: str) -> Client:
    """Make a client belong to a tenant."""
    client.record.peer = Peer(container_id=client.record.peer.container_id, listener="test", tenant=tenant)
    return client


@pytest.mark.parametrize("by", ["link", "to", "whole"])
@pytest.mark.parametrize(("tenant", "other"), [("x", "y"), ("x", ""), ("", "x")])
def test_an_at_leads_to_no_other_tenants_names(by: str, tenant: str, other: str) -> None:
    mesh = World("AB", LINE[:1])
    stranger, own = of_tenant(mesh["B"].client(), other), of_tenant(mesh["B"].client(), tenant)
    stranger.receiver("q", credit=10)
    producer = of_tenant(mesh["A"].client(), tenant)
    link = producer.sender({"link": "q@B", "to": None, "whole": "@B"}[by])
    mesh.advance(0.2)
    if link.credit:
        assert producer.send(link, message(to="q" if by == "whole" else "q@B")).outcome == Released()
    else:
        assert by == "link"
    stranger.take(0)
    own.receiver("q", credit=10)
    mesh.advance(0.2)
    sent = producer.send(link, message(to="q" if by == "whole" else "q@B"))
    mesh.run()
    own.take(1)[0].accept()
    mesh.run()
    assert sent.outcome == Accepted()
    stranger.take(0)
    mesh.leave()


def test_a_receiver_by_an_at_takes_from_its_own_tenants_names_only() -> None:
    mesh = World("AB", LINE[:1])
    consumer = of_tenant(mesh["A"].client(), "x")
    consumer.receiver("q@B", credit=10)
    mesh.advance(0.2)
    other, own = of_tenant(mesh["B"].client(), "y"), of_tenant(mesh["B"].client(), "x")
    assert other.sender("q").credit == 0
    assert own.sender("q").credit > 0
    mesh.leave()


@pytest.mark.parametrize("address", ["secret", "secret@A", "secret@B"])
def test_what_may_not_be_used_here_may_not_be_used_by_an_at(address: str) -> None:
    mesh = World("AB", LINE[:1], AddressConfig(pattern="secret", distribution=Distribution.UNAVAILABLE))
    client = mesh["A"].client()
    assert condition(client, client.sender(address)) == NOT_FOUND
    assert condition(client, client.receiver(address)) == NOT_FOUND
    outcome = client.send(client.sender(None), message(to=address)).outcome
    assert isinstance(outcome, Rejected)
    assert outcome.error is not None
    assert outcome.error.condition == NOT_FOUND
    mesh.leave()


def test_the_pattern_of_a_name_holds_for_it_at_every_container() -> None:
    mesh = World("B", [])
    mesh.start("A", AddressConfig(pattern="q", max_unsettled=2))
    mesh.join("A", "B")
    mesh.advance(1.0)
    consumer, producer = mesh["A"].client(), mesh["B"].client()
    consumer.receiver("q@B", credit=10)
    link = producer.sender("q")
    mesh.advance(0.2)
    while link.credit:
        producer.send(link)
    consumer.take(2)
    mesh.leave()


def test_a_client_cannot_pass_for_a_neighbour_by_naming_a_lane() -> None:
    mesh = World("AB", LINE[:1])
    mesh["B"].client().receiver("q", credit=10)
    client = mesh["A"].client()
    for target in ("$lane/transit/B//", "$lane/anycast/B//q", "$mesh"):
        assert condition(client, client.sender(target)) == NOT_FOUND
        sent = client.send(client.sender(f"{target}@B"))
        mesh.advance(2.0)
        assert sent.outcome == Released()
    mesh.leave()


# Reasons and remembered addresses.


def test_a_sender_is_told_what_it_waits_for() -> None:
    mesh = World("AB", LINE[:1])
    mesh["A"].client().receiver("q", credit=10)
    mesh["B"].client().receiver("r", credit=10)
    client = mesh["A"].client()
    links = {address: client.sender(address) for address in ("q@B", "r@A", "r@B")}
    mesh.advance(0.2)
    told = {
        each.address: each.reason for each in snapshot(mesh["A"].core).links if each.direction is Direction.INCOMING
    }
    assert told == {"q@B": Reason.NO_RECEIVER, "r": Reason.NO_RECEIVER, "r@B": None}
    assert [link.credit > 0 for link in links.values()] == [False, False, True]
    mesh.leave()


def test_the_number_of_remembered_addresses_is_bounded() -> None:
    network = Network()
    producer = network.client()
    link = producer.sender(None)
    for number in range(REMEMBERED + 50):
        producer.send(link, message(to=f"{number}"), settled=True)
        network.run()
    producer.send(link, message(to="x" * (LONGEST + 1)), settled=True)
    network.run()
    remembered = network.core.lookup.remembered
    assert 0 < len(remembered) <= REMEMBERED
    assert max(map(len, remembered)) <= LONGEST
    network.leave()


def test_what_an_address_in_use_means_is_not_forgotten_for_invented_ones() -> None:
    core = Network().core
    used = core.lookup.place("used")
    for number in range(5 * REMEMBERED):
        core.lookup.place(f"invented {number}")
        if number % 100 == 0:
            assert core.lookup.place("used") is used
    assert len(core.lookup.remembered) <= REMEMBERED


def test_what_addresses_mean_is_let_go_of_with_the_room_that_links_had() -> None:
    core = Network().core
    core.lookup.place("used")
    core.compact()
    assert not core.lookup.remembered
    assert core.lookup.place("used").name == "used"


def test_nothing_is_left_of_senders_to_other_routers_that_have_gone() -> None:
    mesh = World("ABC", LINE)
    mesh["C"].client().receiver("q", credit=10)
    producer = mesh["A"].client()
    for _ in range(5):
        link = producer.sender("q@C")
        mesh.advance(0.2)
        producer.send(link, settled=True)
        link.detach()
        mesh.run()
    mesh.advance(30.0)
    assert snapshot(mesh["A"].core).addresses == ()
    assert snapshot(mesh["A"].core).lanes == ()
    assert mesh["A"].mesh.routes.is_empty
    mesh.leave()
