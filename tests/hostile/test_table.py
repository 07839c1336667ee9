"""The rows of the table against a router, before, between and after the messages of other clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Flow,
    Open,
    Performative,
    Transfer,
)
from tests.hostile.table import ROWS, Answer, Row, Stage
from tests.support.peers.bystanders import Bystanders, Intruder
from tests.support.peers.scripted import AMQP, attached, begun, flow, frame

if TYPE_CHECKING:
    from collections.abc import Sequence


def intruder(bystanders: Bystanders, row: Row) -> Intruder:
    """Return the peer of a row, after its legal frames."""
    hostile = Intruder(bystanders.network)
    peer = hostile.peer
    stages = list(Stage)
    reached = stages.index(row.stage)
    if reached >= stages.index(Stage.HEADER):
        peer.write(AMQP)
        assert peer.expect_header() == AMQP
    if reached >= stages.index(Stage.OPENED):
        peer.write(Open(container_id="hostile", **row.open))  # type: ignore[arg-type]  # fields of an open
        peer.expect(Open)
    if reached >= stages.index(Stage.BEGUN):
        peer.write(begun(**row.begin))
        peer.expect(Begin)
    if row.stage is Stage.SENDING:
        peer.write(attached(Role.SENDER, **row.attach))  # type: ignore[arg-type]  # fields of an attach
        peer.expect_all(Attach, Flow)
    if row.stage is Stage.RECEIVING:
        peer.write(attached(Role.RECEIVER, "feed"), flow(handle=0, delivery_count=0, link_credit=9))
        for _ in range(3):
            bystanders.feed()
        peer.expect_all(Attach, Transfer, Transfer, Transfer)
    return hostile


def chunks(data: bytes) -> list[bytes]:
    """Cut octets: the start, with headers and counts, in small pieces, then the rest."""
    return [*(data[at : at + 7] for at in range(0, min(len(data), 70), 7)), data[70:]]


def is_alive(hostile: Intruder, *, channel: int) -> bool:
    """Return whether the session on a channel answers."""
    hostile.peer.write(flow(next_incoming_id=None, echo=True), channel=channel)
    return any(isinstance(each.performative, Flow) for each in hostile.peer.hear())


def check_answer(hostile: Intruder, row: Row, heard: Sequence[Performative]) -> None:
    """Check the answer, and the endpoints that the hostile peer still has."""
    errors = [each for each in heard if isinstance(each, Detach | End | Close) and each.error is not None]
    if row.answer is Answer.NOTHING:
        assert errors == []
        assert not any(isinstance(each, Close) for each in heard)
        assert not hostile.is_finished
        if row.stage not in (Stage.CONNECTED, Stage.HEADER):
            assert is_alive(hostile, channel=0)
        return
    (answer,) = errors
    assert answer.error is not None
    kind = {Answer.LINK: Detach, Answer.SESSION: End, Answer.CONNECTION: Close}[row.answer]
    assert type(answer) is kind, answer
    assert answer.error.condition == row.condition
    assert answer.error.description, "people want to know"
    if isinstance(answer, Detach):
        assert is_alive(hostile, channel=0)
    elif isinstance(answer, End):
        hostile.peer.write(begun(), channel=1)
        hostile.peer.expect(Begin)
        assert is_alive(hostile, channel=1)
        assert not is_alive(hostile, channel=0)
    else:
        assert heard[-1] is answer, "a close is the last frame"


PARAMETERS = [pytest.param(row, id=row.name) for row in ROWS]


@pytest.mark.parametrize("row", PARAMETERS)
@pytest.mark.parametrize("together", [True, False], ids=["in one piece", "bit by bit"])
def test_a_hostile_peer_gets_its_answer_and_disturbs_nobody(row: Row, together: bool) -> None:
    bystanders = Bystanders()
    bystanders.exchange()
    hostile = intruder(bystanders, row)
    bystanders.exchange()
    if together:
        hostile.peer.write(*row.parts)
    else:
        for number, part in enumerate(row.parts):
            for chunk in chunks(part if isinstance(part, bytes) else frame(part)):
                hostile.peer.write(chunk)
            if number < 10:
                bystanders.exchange()
    bystanders.exchange()
    if row.answer is Answer.STREAM:
        data = hostile.take()
        assert data.startswith(b"AMQP"), "ours, before the end (§2.2)"
        assert hostile.is_finished
    else:
        if row.stage is Stage.CONNECTED and row.answer is not Answer.NOTHING:
            hostile.peer.expect_header()
        check_answer(hostile, row, [each.performative for each in hostile.peer.hear()])
    bystanders.exchange()
    hostile.leave()
    bystanders.exchange()
    bystanders.leave()


def test_the_table_is_as_long_as_it_should_be() -> None:
    assert len(ROWS) >= 60
    assert len({row.name for row in ROWS}) == len(ROWS)
