"""Steps after an outcome, row by row."""

from itertools import product

import pytest

from amqpmesh.router.kernel import SETTLE_RECEIVER, SETTLE_SENDER, TELL_RECEIVER, TELL_SENDER, outcome_step
from tests.support.worlds.kernels import agreed, both

ROWS = tuple(product((False, True), repeat=3))


@pytest.mark.parametrize(("second", "settled", "known"), ROWS)
def test_a_sender_hears_an_outcome_once_and_is_settled_with_it_in_mode_first(
    second: bool, settled: bool, known: bool
) -> None:
    step = outcome_step(second, settled, known)
    assert bool(step & TELL_SENDER) == (not known)
    assert bool(step & SETTLE_SENDER) == (not known and not second)


@pytest.mark.parametrize(("second", "settled", "known"), ROWS)
def test_a_receiver_is_settled_when_it_has_settled_or_waits_for_no_sender(
    second: bool, settled: bool, known: bool
) -> None:
    step = outcome_step(second, settled, known)
    assert bool(step & SETTLE_RECEIVER) == (settled or (not second and not known))
    assert bool(step & TELL_RECEIVER) == (bool(step & SETTLE_RECEIVER) and not settled)


def test_both_kernels_have_the_same_table() -> None:
    agreed(both(), lambda kernel: [kernel.outcome_step(*row) for row in ROWS])
