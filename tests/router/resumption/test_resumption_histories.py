"""Random histories of links that are lost and resumed, by a model of what each end has done."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.config.address import AddressConfig
from amqpmesh.router.config.resumption import ResumptionConfig
from tests.support.worlds.resumption_histories import STEPS, History

MODES = st.sampled_from(ReceiverSettleMode)
LIMITS = st.sampled_from([*[ResumptionConfig()] * 6, ResumptionConfig(unsettled=2), ResumptionConfig(links=1)])
HISTORIES = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 31)), min_size=40, max_size=100)


def tell(
    senders: ReceiverSettleMode,
    receivers: ReceiverSettleMode,
    limits: ResumptionConfig,
    lasting: bool,
    steps: list[tuple[str, int]],
) -> None:
    history = History(senders, receivers, limits, lasting=lasting)
    for name, number in steps:
        history.step(name, number)
    history.finish()


@given(MODES, MODES, LIMITS, st.booleans(), HISTORIES)
@settings(max_examples=60)
def test_no_message_is_processed_twice_and_none_is_lost_unheard(
    senders: ReceiverSettleMode,
    receivers: ReceiverSettleMode,
    limits: ResumptionConfig,
    lasting: bool,
    steps: list[tuple[str, int]],
) -> None:
    tell(senders, receivers, limits, lasting, steps)


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


@pytest.mark.slow
@given(MODES, MODES, LIMITS, st.booleans(), HISTORIES)
@settings(max_examples=400)
def test_of_many_histories_none_has_a_message_processed_twice_or_lost_unheard(
    senders: ReceiverSettleMode,
    receivers: ReceiverSettleMode,
    limits: ResumptionConfig,
    lasting: bool,
    steps: list[tuple[str, int]],
) -> None:
    tell(senders, receivers, limits, lasting, steps)
