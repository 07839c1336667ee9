"""Compact sets for zero or few elements."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.small_set import Few, excluding, first, including, preceding

#: Comes (behind the others), leaves, comes before all others; more things than are looked through one by one.
STEPS = st.lists(st.tuples(st.sampled_from([including, excluding, preceding]), st.integers(0, 8)))


@given(STEPS)
def test_few_things_keep_their_order_however_many_they_are(steps: list[tuple[object, int]]) -> None:
    few: Few[int] = ()
    expected: list[int] = []
    for step, thing in steps:
        if step is including:
            few = including(few, thing)
            expected += [thing] if thing not in expected else []
        else:
            expected = [each for each in expected if each != thing]
            if step is excluding:
                few = excluding(few, thing)
            else:
                few = preceding(few, thing)
                expected.insert(0, thing)
        assert list(few) == expected
        assert len(few) == len(expected)
        assert bool(few) is bool(expected)
        assert all((each in few) is (each in expected) for each in range(9))
        if expected:
            assert first(few) == expected[0]


def test_what_is_empty_again_takes_no_memory() -> None:
    few: Few[int] = ()
    for thing in range(100):
        few = including(few, thing)
    for thing in range(100):
        few = excluding(few, thing)
    assert few == ()
