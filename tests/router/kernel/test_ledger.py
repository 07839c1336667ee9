"""Ledgers: look-up of live deliveries by delivery-id, in memory for little more than these."""

from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amqpmesh.router.kernel import Delivery, KernelLink, KernelSession, Ledger, serial_add, serial_distance

M: Final = 2**32

#: Steps: the distance of a new delivery's id from the one before; the delivery that ends, counted from the oldest
#: (0, 1, ...) or from the newest (-1, ...); None: none ends.
STEPS: Final = st.lists(
    st.tuples(
        st.sampled_from([1, 1, 1, 1, 1, 2, 7, 8, 9, 16, 17, 100, 5_000, 2**31 - 1, 2**31, M - 1, M - 20]),
        st.sampled_from([None, None, 0, 0, 1, -1, -2]),
    ),
    max_size=120,
)


def deliveries(count: int) -> list[Delivery]:
    link = KernelLink(KernelSession(1_000), False, None, {})
    return [Delivery(link, b"%d" % each, 0, False, False) for each in range(count)]


@given(
    base=st.sampled_from([0, M - 1, 2**31]) | st.integers(0, M - 1), steps=STEPS, compacts=st.sampled_from([0, 1, 7])
)
@example(base=0, steps=[(1, None)] * 40 + [(1, 0)] * 60, compacts=0)
@example(base=0, steps=[(1, None)] + [(1, -1)] * 40, compacts=0)
@example(base=M - 10, steps=[(1, None)] * 9 + [(M - 1, None)] + [(16, 0)] * 9, compacts=0)
@example(base=M - 30, steps=[(1, None)] * 40 + [(1, 0)] * 30, compacts=1)
def test_it_holds_what_was_put_there_and_not_removed(
    base: int, steps: list[tuple[int, int | None]], compacts: int
) -> None:
    """Args: compacts: the number of steps after which the ledger is compacted; 0: never."""
    ledger = Ledger()
    live: dict[int, Delivery] = {}
    at = base
    for new, (step, ends) in zip(deliveries(len(steps)), steps, strict=True):
        at = serial_add(at, step)
        if at not in live:  # a duplicate is refused before it is put there
            assert ledger.find(at) is None
            ledger.put(at, new)
            live[at] = new
        if ends is not None and -len(live) <= ends < len(live):
            gone = list(live)[ends]
            ledger.remove(gone)
            del live[gone]
            assert ledger.find(gone) is None
        if compacts and not len(live) % compacts:
            ledger.compact()
        assert len(ledger) == len(live)
        assert ledger.oldest() in live.values() if live else ledger.oldest() is None
        assert ledger.find(at) is live.get(at)
    assert ledger.deliveries == live
    assert all(ledger.find(each) is live[each] for each in live)
    for first in [*live, base, serial_add(at, 1)]:
        for span in (0, 1, 5, 200, 2**31 - 1):
            ids = sorted(live, key=lambda each, first=first: (each - first) % M)
            assert ledger.select(first, serial_add(first, span)) == [
                live[each] for each in ids if 0 <= serial_distance(first, each) <= span
            ]


@pytest.mark.parametrize("base", [0, M - 600, 2**31 - 3])
def test_compact_it_has_room_for_what_is_live_and_little_more(base: int) -> None:
    ledger = Ledger()
    each = deliveries(1_000)
    ids = [serial_add(base, at) for at in range(1_000)]
    for at, delivery in zip(ids, each, strict=True):
        ledger.put(at, delivery)
    ledger.compact()
    assert ledger.deliveries == dict(zip(ids, each, strict=True))
    for at in [*ids[:500], *ids[512:]]:
        ledger.remove(at)
    ledger.compact()
    assert len(ledger.slots) == 16
    assert ledger.deliveries == dict(zip(ids[500:512], each[500:512], strict=True))
    for at in ids[500:512]:
        ledger.remove(at)
    ledger.compact()
    assert len(ledger.slots) == 8
    ledger.put(serial_add(base, 1_000), each[0])
    assert ledger.find(serial_add(base, 1_000)) is each[0]


def test_another_takes_the_place_of_one_of_the_same_id() -> None:
    ledger = Ledger()
    first, second, third, fourth = deliveries(4)
    ledger.put(0, first)
    ledger.put(5_000, second)
    for each, new in ((5_000, third), (0, fourth)):  # in a slot, and beside the slots
        ledger.put(each, new)
        assert (len(ledger), ledger.find(each)) == (2, new)


def test_the_oldest_is_the_first_that_is_live() -> None:
    ledger = Ledger()
    each = deliveries(20)
    assert ledger.oldest() is None
    for at, delivery in enumerate(each):
        ledger.put(at, delivery)
    for at, delivery in enumerate(each):
        assert ledger.oldest() is delivery
        ledger.remove(at)
    assert ledger.oldest() is None
    ledger.put(0, each[0])
    ledger.put(5_000, each[1])
    assert ledger.oldest() is each[0]


def test_a_delivery_that_is_not_live_cannot_be_removed() -> None:
    ledger = Ledger()
    (only,) = deliveries(1)
    ledger.put(7, only)
    for unknown in (8, 6, 500):
        with pytest.raises(KeyError):
            ledger.remove(unknown)
    ledger.remove(7)
    with pytest.raises(KeyError):
        ledger.remove(7)
    assert len(ledger) == 0


def test_one_that_is_never_settled_costs_the_others_nothing() -> None:
    ledger = Ledger()
    first, *others = deliveries(5_001)
    ledger.put(0, first)
    for each, new in enumerate(others, 1):
        ledger.put(each, new)
        if each > 20:
            ledger.remove(each - 20)
    assert len(ledger.slots) <= 64
    assert ledger.find(0) is first
    assert list(ledger.beside) == [0]


def test_slots_are_given_back_once_all_is_settled() -> None:
    ledger = Ledger()
    everything = deliveries(10_000)
    for each, new in enumerate(everything):
        ledger.put(each, new)
    assert 10_000 <= len(ledger.slots) <= 32_768
    assert not ledger.beside
    for each in range(10_000):
        ledger.remove(each)
    ledger.put(10_000, everything[0])
    assert len(ledger.slots) <= 1_024


def test_ids_far_apart_take_no_room_in_between() -> None:
    ledger = Ledger()
    everything = deliveries(1_000)
    for each, new in enumerate(everything):
        ledger.put(each * 1_000_003 % M, new)
    assert len(ledger.slots) <= 64
    assert len(ledger) == 1_000
    assert ledger.find(999 * 1_000_003) is everything[999]


def test_it_has_few_more_slots_than_live_deliveries_whatever_is_settled_and_wherever_ids_jump() -> None:
    ledger = Ledger()
    everything = deliveries(40_000)
    for each, new in enumerate(everything):
        ledger.put(each, new)
    for each in range(1, 39_999):
        ledger.remove(each)
        assert len(ledger.slots) <= max(1_024, 16 * len(ledger))
    assert ledger.select(0, 2**31 - 1) == [everything[0], everything[39_999]]
    assert ledger.scanned <= 1_100
    for each in range(40_000, 50_000):
        ledger.put(each, everything[each - 40_000])
    for jump in range(10):
        ledger.put(70_000 + jump * 2_000, everything[20_000 + jump])
    assert len(ledger.slots) <= 16 * len(ledger)
    assert len(ledger) == 10_012
    assert len(ledger.select(0, 2**31 - 1)) == 10_012


def test_a_selection_tells_how_many_places_it_has_looked_at() -> None:
    ledger = Ledger()
    for each, new in enumerate(deliveries(1_000)):
        ledger.put(each, new)
    for each in range(500, 999):
        ledger.remove(each)
    assert (len(ledger.select(7, 7)), ledger.scanned) == (1, 1)
    assert (len(ledger.select(10, 19)), ledger.scanned) == (10, 10)
    assert (len(ledger.select(500, 998)), ledger.scanned) == (0, 499)
    assert (len(ledger.select(2_000, 3_000)), ledger.scanned) == (0, 0)
