"""Compact sets for zero or few elements."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.small_set import SmallSet, first, with_item, with_item_first, without_item

#: Comes (behind the others), leaves, comes before all others; more things than are looked through one by one.
STEPS = st.lists(st.tuples(st.sampled_from([with_item, without_item, with_item_first]), st.integers(0, 8)))


@given(STEPS)
def test_few_things_keep_their_order_however_many_they_are(steps: list[tuple[object, int]]) -> None:
    few: SmallSet[int] = ()
    expected: list[int] = []
    for step, thing in steps:
        if step is with_item:
            few = with_item(few, thing)
            expected += [thing] if thing not in expected else []
        else:
            expected = [each for each in expected if each != thing]
            if step is without_item:
                few = without_item(few, thing)
            else:
                few = with_item_first(few, thing)
                expected.insert(0, thing)
        assert list(few) == expected
        assert len(few) == len(expected)
        assert bool(few) is bool(expected)
        assert all((each in few) is (each in expected) for each in range(9))
        if expected:
            assert first(few) == expected[0]


def test_what_is_empty_again_takes_no_memory() -> None:
    few: SmallSet[int] = ()
    for thing in range(100):
        few = with_item(few, thing)
    for thing in range(100):
        few = without_item(few, thing)
    assert few == ()
