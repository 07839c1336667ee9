"""The delivery-limit that a sender knows, and the deliveries that it may send (§2.6.7)."""

from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp.standard.performatives import Flow
from tests.support.peers.scripted import flow, transferred
from tests.support.peers.scripted_link import producing


def test_an_answer_to_an_older_echo_does_not_show_that_the_newer_limit_is_known() -> None:
    scripted = producing(credit=3)
    receiver = scripted.receiver()
    for credit in (0, 5, 1):
        receiver.flow(credit, echo=credit < 5)
        assert scripted.peer.expect(Flow).link_credit == credit
    # The sender had sent three when the first flow came. It answered, and then received the flow with five.
    for number in range(3):
        scripted.peer.write(transferred(number))
    scripted.peer.write(flow(handle=0, delivery_count=3, link_credit=0))
    for number in range(3, 5):
        scripted.peer.write(transferred(number))
    assert len(scripted.transfers()) == 5


def test_what_a_sender_shows_to_know_is_no_more_than_what_it_may_still_send() -> None:
    scripted = producing(credit=10)
    receiver = scripted.receiver()
    receiver.flow(2, echo=True)
    scripted.peer.expect(Flow)
    assert receiver.known_limit == 10
    scripted.peer.write(flow(handle=0, delivery_count=0, link_credit=2))
    scripted.transfers()
    assert receiver.known_limit == 2


def test_an_answer_from_before_the_limit_rose_again_does_not_end_what_rose() -> None:
    scripted = producing(credit=5)
    for credit in (1, 4, 1):
        scripted.receiver().flow(credit, echo=True)
        scripted.peer.expect(Flow)
    answer = flow(handle=0, delivery_count=0, link_credit=1)
    scripted.peer.write(answer, *(transferred(number) for number in range(4)))
    assert len(scripted.transfers()) == 4  # sent under the second limit, before the third was known


def test_a_limit_that_was_passed_before_it_was_known_is_not_taken_for_a_later_one() -> None:
    scripted = producing(credit=5)
    receiver = scripted.receiver()
    receiver.flow(1, echo=True)
    scripted.peer.write(*(transferred(number) for number in range(3)))
    assert len(scripted.transfers()) == 3
    for credit in (4, 0):
        receiver.flow(credit, echo=True)
    # The sender answers the first flow: 3 are sent, and no credit is left. Then it receives the second.
    scripted.peer.write(flow(handle=0, delivery_count=3, link_credit=0), *(transferred(each) for each in range(3, 7)))
    assert len(scripted.transfers()) == 4


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4), st.booleans()), max_size=80))
def test_a_sender_that_keeps_to_what_it_has_heard_is_never_at_fault(steps: list[tuple[int, int, bool]]) -> None:
    """Each step: the credit of a flow, the number of flows that arrive, and whether the sender answers them."""
    scripted = producing(credit=3)
    receiver = scripted.receiver()
    on_the_way: list[int] = []
    count, limit, came = 0, 3, 0
    for credit, heard, answers in steps:
        receiver.flow(credit, echo=True)
        scripted.peer.expect(Flow)
        on_the_way.append(receiver.delivery_count + credit)
        for _ in range(min(heard, len(on_the_way))):
            limit = on_the_way.pop(0)
            if count < limit:
                scripted.peer.write(transferred(count))
                count += 1
            if answers:
                scripted.peer.write(flow(handle=0, delivery_count=count, link_credit=max(0, limit - count)))
        came += len(scripted.transfers())
        assert came == count
