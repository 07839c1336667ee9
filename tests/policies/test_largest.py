"""Counts of owners: the largest is the one that a search finds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.policies.largest import Counts

OWNERS = "abcd"
STEPS = st.lists(st.tuples(st.sampled_from(OWNERS), st.booleans()), max_size=60)


@given(STEPS)
def test_the_largest_owner_is_the_one_that_a_search_finds(steps: list[tuple[str, bool]]) -> None:
    counts: Counts[str] = Counts()
    naive = dict.fromkeys(OWNERS, 0)
    for owner, is_added in steps:
        if is_added:
            counts.add(owner)
            naive[owner] += 1
        elif naive[owner]:
            counts.remove(owner)
            naive[owner] -= 1
        assert {each: counts.of(each) for each in OWNERS} == naive
        assert len(counts) == sum(1 for count in naive.values() if count)
        if any(naive.values()):
            assert naive[counts.largest()] == max(naive.values())
        else:
            with pytest.raises(StopIteration):
                counts.largest()


def test_of_owners_with_the_same_count_the_first_to_have_it_is_the_largest() -> None:
    counts: Counts[str] = Counts()
    for owner in "aabb":
        counts.add(owner)
    assert counts.largest() == "a"
    counts.remove("a")
    assert counts.largest() == "b"
    counts.add("a")
    assert counts.largest() == "b"


def test_an_owner_without_entries_cannot_lose_one() -> None:
    with pytest.raises(KeyError):
        Counts[str]().remove("a")
