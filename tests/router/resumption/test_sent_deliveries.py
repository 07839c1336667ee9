"""The steps for sent deliveries whose receiver is back with its map: all that both sides may know of one (§3.4.6)."""

from __future__ import annotations

from itertools import product

import pytest

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Received, Rejected, Released
from amqpmesh.router.kernel import FAILED_STATE, RELEASED_STATE
from amqpmesh.router.resumption.sent_deliveries import NULL, WHOLE, ReceiversMap, SentDelivery, Step, Then, decide

ACCEPTED = encode_composite(Accepted())
REJECTED = encode_composite(Rejected())
PART = encode_composite(Received(section_number=1, section_offset=2))

#: The rows of the figure, most of them for a sender without the octets: what it knows, what the map of the receiver
#: says, and the state of the transfer, with `aborted`; None: there is no transfer.
FIGURE = {
    1: (SentDelivery(is_whole=True), ReceiversMap(False), None),
    2: (SentDelivery(is_whole=True, is_kept=True), ReceiversMap(True, PART), (NULL, False)),
    3: (SentDelivery(is_whole=True), ReceiversMap(True, ACCEPTED), (ACCEPTED, False)),
    4: (SentDelivery(is_whole=True, is_kept=True), ReceiversMap(True, None), (NULL, False)),
    5: (SentDelivery(is_whole=True, second=True), ReceiversMap(False, is_reliable=True), None),
    6: (SentDelivery(is_whole=True), ReceiversMap(True, WHOLE), (WHOLE, False)),
    7: (SentDelivery(is_whole=True), ReceiversMap(True, PART), (WHOLE, True)),
    8: (SentDelivery(is_whole=True), ReceiversMap(True, REJECTED), (REJECTED, False)),
    9: (SentDelivery(is_whole=True), ReceiversMap(True, None), (WHOLE, True)),
    10: (SentDelivery(is_whole=True, outcome=ACCEPTED), ReceiversMap(False), None),
    11: (SentDelivery(is_whole=True, stated=REJECTED), ReceiversMap(True, PART), (REJECTED, False)),
    12: (SentDelivery(is_whole=True, stated=REJECTED), ReceiversMap(True, REJECTED), (REJECTED, False)),
    13: (SentDelivery(is_whole=True, stated=REJECTED), ReceiversMap(True, ACCEPTED), (REJECTED, False)),
    14: (SentDelivery(is_whole=True, stated=REJECTED), ReceiversMap(True, None), (REJECTED, False)),
}


@pytest.mark.parametrize("row", FIGURE)
def test_the_transfer_is_that_of_the_figure(row: int) -> None:
    ours, theirs, transfer = FIGURE[row]
    step = decide(ours, theirs)
    found = (step.state, step.then is Then.ABORT) if step.then in (Then.RESUME, Then.SEND, Then.ABORT) else None
    assert found == transfer


def all_cases() -> list[tuple[SentDelivery, ReceiversMap]]:
    ours = [
        SentDelivery(*each)
        for each in product(
            (False, True), (None, ACCEPTED), (None, REJECTED), (False, True), (FAILED_STATE, REJECTED), (False, True)
        )
    ]
    states = (None, PART, WHOLE, ACCEPTED, REJECTED, RELEASED_STATE)
    theirs = [
        ReceiversMap(is_named, state, complete, reliable)
        for is_named, state, complete, reliable in product((False, True), states, (False, True), (False, True))
        if is_named or state is None
    ]
    return list(product(ours, theirs))


def test_an_outcome_is_the_receivers_or_nobody_has_processed_the_message_or_it_is_in_doubt() -> None:
    for ours, theirs in all_cases():
        said = decide(ours, theirs).said
        if said is None or said == theirs.state:
            continue
        if said == RELEASED_STATE and ours.default != RELEASED_STATE:
            is_certain = not (ours.is_whole or ours.is_kept) or (
                ours.second and theirs.is_complete and not theirs.is_named
            )
            assert theirs.is_reliable
            assert is_certain, (ours, theirs)
        else:
            assert said == ours.default
        assert ours.outcome is None or not (ours.is_whole or ours.is_kept), "it has one"


def test_a_delivery_ends_or_stays_or_is_resumed_with_a_state_that_is_true() -> None:
    for ours, theirs in all_cases():
        step = decide(ours, theirs)
        if step.then is Then.STAY:
            assert not theirs.is_complete
            assert not theirs.is_named
            assert step.said is None
        elif step.then is Then.END:
            assert step.state is None
            assert not (ours.is_whole or ours.is_kept) or not theirs.is_named
        else:
            assert ours.is_whole or ours.is_kept, "what is resumed had left whole, or can be sent whole"
            assert theirs.is_named
            assert step.state == (
                ours.outcome
                or ours.stated
                or (step.said if step.then is Then.RESUME else None)
                or (NULL if step.then is Then.SEND else WHOLE)
            )
            assert step.then is not Then.SEND or (ours.is_kept and theirs.state in (None, PART))
        if step.then is Then.ABORT:
            assert step.said == ours.default, "its octets are gone"
            assert not ours.is_kept


def test_the_default_outcome_of_a_source_is_used_where_nothing_is_certain() -> None:
    released = encode_composite(Released())
    ours = SentDelivery(is_whole=True, default=released)
    assert decide(ours, ReceiversMap(False)) == Step(Then.END, released)
