"""Numbers of channels and handles: the lowest free one is taken first (§2.5.1, §2.7.3)."""

from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp.channels import LowestFree


@given(st.integers(0, 9), st.lists(st.integers(0, 9) | st.none(), max_size=60))
def test_the_lowest_free_number_is_taken_and_none_above_the_maximum(maximum: int, freed: list[int | None]) -> None:
    numbers = LowestFree(maximum)
    used: set[int] = set()
    for number in freed:
        if number is None:
            taken = numbers.take()
            free = set(range(maximum + 1)) - used
            assert taken == min(free, default=None)
            used |= {taken} - {None}
        elif number in used:
            used.remove(number)
            numbers.free(number)
        assert numbers.in_use == len(used)


def test_a_maximum_that_is_lowered_holds_for_what_was_freed_too() -> None:
    numbers = LowestFree(9)
    assert [numbers.take() for _ in range(5)] == [0, 1, 2, 3, 4]
    numbers.free(4)
    numbers.free(1)
    numbers.maximum = 2
    assert numbers.take() == 1
    assert numbers.take() is None
    assert numbers.in_use == 4
