"""Random histories of links that are lost and resumed, by a model of what each end has done."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.config.address import AddressConfig
from amqpmesh.router.config.resumption import ResumptionConfig
from tests.support.worlds.resumption_histories import STEPS, History

if TYPE_CHECKING:
    from collections.abc import Sequence

MODES = st.sampled_from(ReceiverSettleMode)
SMALL = ResumptionConfig(unsettled=2), ResumptionConfig(links=1), ResumptionConfig(links_per_user=2)
LIMITS = st.sampled_from([*[ResumptionConfig()] * 6, *SMALL])
HISTORIES = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 31)), min_size=40, max_size=100)


def tell(
    senders: ReceiverSettleMode,
    receivers: ReceiverSettleMode,
    limits: ResumptionConfig,
    lasting: bool,
    resends: bool,
    steps: list[tuple[str, int]],
) -> None:
    history = History(senders, receivers, limits, lasting=lasting, resends=resends)
    for name, number in steps:
        history.step(name, number)
    history.finish()


@given(MODES, MODES, LIMITS, st.booleans(), st.booleans(), HISTORIES)
@settings(max_examples=60)
def test_no_message_is_processed_twice_and_none_is_lost_unheard(
    senders: ReceiverSettleMode,
    receivers: ReceiverSettleMode,
    limits: ResumptionConfig,
    lasting: bool,
    resends: bool,
    steps: list[tuple[str, int]],
) -> None:
    tell(senders, receivers, limits, lasting, resends, steps)


#: In these nobody forgets anything.
UNFORGOTTEN = [each for each in STEPS if each not in ("wait", "crash a program", "crash the router")]
LASTING = st.lists(st.tuples(st.sampled_from(UNFORGOTTEN), st.integers(0, 31)), min_size=40, max_size=80)


@given(st.integers(1, 4), LASTING)
@settings(max_examples=30)
def test_what_is_redelivered_is_processed_once_and_however_little_credit_there_is(
    credit: int, steps: list[tuple[str, int]]
) -> None:
    mode = ReceiverSettleMode.SECOND
    address = AddressConfig(pattern="q", redeliver=True)
    history = History(mode, mode, ResumptionConfig(), lasting=True, address=address, credit=credit)
    for name, number in steps:
        history.step(name, number)
    history.finish()


def steps_of(chance: random.Random, names: Sequence[str]) -> list[tuple[str, int]]:
    return [(chance.choice(names), chance.randrange(32)) for _ in range(80)]


@pytest.mark.parametrize(
    ("limits", "room", "cost"),
    [
        (ResumptionConfig(keep=1_000), None, "messages"),
        (ResumptionConfig(keep_max=15), None, "messages"),
        (ResumptionConfig(unsettled=2), None, "links"),
        (ResumptionConfig(), 9_000, "links"),
    ],
    ids=["octets", "octets of a message", "deliveries", "memory"],
)
def test_what_is_kept_never_exceeds_a_limit_that_is_reached(
    limits: ResumptionConfig, room: int | None, cost: str
) -> None:
    """The accounts are compared with what is there at each step. Args: cost: what is given up for the limit."""
    costs = Counter[str]()
    for seed in range(12):
        chance = random.Random(seed)
        modes = chance.choice(list(ReceiverSettleMode)), chance.choice(list(ReceiverSettleMode))
        history = History(*modes, limits, lasting=True, reliable=False, room=room)
        for name, number in steps_of(chance, STEPS):
            history.step(name, number)
        history.finish()
        costs += history.costs
    assert costs[cost] > 0


@pytest.mark.parametrize("redeliver", [False, True])
@pytest.mark.parametrize("mode", ReceiverSettleMode)
def test_what_is_processed_again_is_what_a_receiver_of_mode_first_had_not_said(
    mode: ReceiverSettleMode, redeliver: bool
) -> None:
    """The sender hears `modified` and sends it again, or the router does. In mode second nothing comes twice."""
    address = AddressConfig(pattern="q", redeliver=redeliver)
    duplicates = 0
    for seed in range(30):
        history = History(
            ReceiverSettleMode.SECOND, mode, ResumptionConfig(), lasting=True, address=address, resends=True
        )
        for name, number in steps_of(random.Random(seed), UNFORGOTTEN):
            history.step(name, number)
        history.finish()
        assert not any(each.heard == ["doubt"] for sender in history.senders for each in sender.messages)
        # Where a later try was rejected the first is the only one that was processed.
        assert history.duplicates() == history.lost_outcomes().total() - history.processed_unheard()
        duplicates += history.duplicates()
    assert (duplicates > 0) is (mode is ReceiverSettleMode.FIRST)


@pytest.mark.slow
@given(MODES, MODES, LIMITS, st.booleans(), st.booleans(), HISTORIES)
@settings(max_examples=400)
def test_of_many_histories_none_has_a_message_processed_twice_or_lost_unheard(
    senders: ReceiverSettleMode,
    receivers: ReceiverSettleMode,
    limits: ResumptionConfig,
    lasting: bool,
    resends: bool,
    steps: list[tuple[str, int]],
) -> None:
    tell(senders, receivers, limits, lasting, resends, steps)
