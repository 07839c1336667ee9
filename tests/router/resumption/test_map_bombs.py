"""Unsettled maps that are made to cost much: of very many entries, or in endless rounds."""

from __future__ import annotations

import pytest

from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState
from amqpmesh.router.amqp.standard.performatives import Attach, Detach
from amqpmesh.router.attach import reattaching
from tests.support.peers.roaming_receiver import ALL, RoamingReceiver, as_map

#: Entries that fit into a frame.
MANY = 200


@pytest.mark.parametrize("state", [None, Accepted()], ids=["null", "accepted"])
def test_a_map_of_more_entries_than_are_read_counts_as_incomplete(
    monkeypatch: pytest.MonkeyPatch, state: DeliveryState | None
) -> None:
    monkeypatch.setattr(reattaching, "MOST_READ", MANY - 1)
    r = RoamingReceiver()
    (of,) = r.send()
    tag = r.tag()
    r.lose()
    r.begin()
    r.peer.write(r.attaching({b"%04x" % number: state for number in range(MANY)}))
    answer = r.peer.expect(Attach)
    assert as_map(answer) == {tag: ALL}, "nothing is said of it, and nothing of theirs is here"
    r.network.advance(0.3)
    assert not r.peer.expect(Detach).closed
    assert of.said == []
    assert r.suspended == 1
    r.peer.write(Detach(handle=0))
    assert as_map(r.attach({tag: ALL})) == {tag: ALL}
    r.finish()


def test_outcomes_behind_all_that_is_read_of_a_map_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reattaching, "MOST_READ", 2)
    r = RoamingReceiver()
    sent = r.send(5)
    tags = [r.tag(number) for number in range(5)]
    r.lose()
    r.begin()
    r.peer.write(r.attaching(dict.fromkeys(tags[:3]) | dict.fromkeys(tags[3:], Accepted())))
    r.network.run()
    assert [each.said for each in sent[:3]] == [[], [], []]
    assert [each.outcome for each in sent[3:]] == [Accepted(), Accepted()]


def test_rounds_without_end_leave_nothing_and_settle_nothing() -> None:
    r = RoamingReceiver()
    (of,) = r.send()
    tag = r.tag()
    r.lose()
    r.begin()
    for number in range(200):
        r.peer.write(r.attaching({b"strange%d" % number: Accepted()}, incomplete_unsettled=True))
        r.network.advance(0.3)
        detach = r.peer.hear()[-1].performative
        assert isinstance(detach, Detach)
        r.peer.write(Detach(handle=0))
        assert r.suspended == 1
    assert of.said == []
    answer = r.attach({tag: ALL})
    assert isinstance(answer, Attach)
    assert as_map(answer) == {tag: ALL}
    r.finish()
