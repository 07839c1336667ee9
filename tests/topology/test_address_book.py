"""The address book: advertised addresses of reachable routers."""

from __future__ import annotations

from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.topology.address_book import AddressBook, Advert
from amqpmesh.topology.records import Name

ROUTERS = ["A", "B", "C"]
KEYS = [Name("", "orders"), Name("", "prices"), Name("acme", "orders")]
CONSUMER = Advert("balanced", 1, 0)
PRODUCER = Advert("balanced", 0, 1)

Entries: TypeAlias = dict[Name, Advert]

routers = st.sampled_from(ROUTERS)
entries = st.dictionaries(st.sampled_from(KEYS), st.sampled_from([CONSUMER, PRODUCER]))
changes = st.one_of(
    st.tuples(st.just("replace"), routers, entries),
    st.tuples(st.just("apply_delta"), routers, entries, st.sets(st.sampled_from(KEYS))),
    st.tuples(st.just("forget"), routers),
    st.tuples(st.just("set_reachable"), st.sets(routers)),
)


def visible(told: dict[str, Entries], reachable: set[str]) -> dict[Name, dict[str, Advert]]:
    found: dict[Name, dict[str, Advert]] = {}
    for router in reachable:
        for key, advert in told.get(router, {}).items():
            found.setdefault(key, {})[router] = advert
    return found


@given(st.lists(changes, max_size=30))
def test_lookups_follow_what_is_told_and_reached_and_every_change_of_them_is_reported(steps: list[tuple]) -> None:
    book = AddressBook()
    told: dict[str, Entries] = {}
    reachable: set[str] = set()
    for name, *arguments in steps:
        before = visible(told, reachable)
        match name, arguments:
            case "replace", [router, new]:
                told[router] = new
            case "apply_delta", [router, new, removed]:
                kept = {key: advert for key, advert in told.get(router, {}).items() if key not in removed}
                told[router] = kept | new
            case "forget", [router]:
                told.pop(router, None)
            case "set_reachable", [now]:
                reachable = now
        getattr(book, name)(*arguments)
        changed = book.update(100)
        after = visible(told, reachable)
        assert {key: dict(book.lookup(*key)) for key in KEYS} == {key: after.get(key, {}) for key in KEYS}
        assert changed == {key for key in KEYS if before.get(key) != after.get(key)}
        assert book.addresses() == sorted(after)
        assert len(book) == len(after)
        assert all(dict(book.advertised_by(router)) == told.get(router, {}) for router in ROUTERS)


class UpdatedBook(AddressBook):
    """An address book that is updated after each change."""

    def after(self, name: str, *arguments: object) -> frozenset[Name]:
        """Make a change. Returns: the addresses whose lookup changed."""
        getattr(self, name)(*arguments)
        return self.update(100)


@given(st.lists(changes, max_size=30), st.integers(1, 3))
def test_a_book_that_is_updated_in_parts_comes_to_the_same_and_reports_every_change(
    steps: list[tuple], most: int
) -> None:
    book, whole = AddressBook(), UpdatedBook()
    seen = {key: dict(book.lookup(*key)) for key in KEYS}
    for name, *arguments in steps:
        getattr(book, name)(*arguments)
        whole.after(name, *arguments)
        changed = book.update(most)
        after = {key: dict(book.lookup(*key)) for key in KEYS}
        assert changed == {key for key in KEYS if seen[key] != after[key]}
        assert len(changed) <= most
        seen = after
    while book.has_pending:
        book.update(most)
    assert {key: dict(book.lookup(*key)) for key in KEYS} == {key: dict(whole.lookup(*key)) for key in KEYS}
    assert book.addresses() == whole.addresses()


def test_a_router_with_a_million_addresses_keeps_nobody_waiting() -> None:
    book = AddressBook()
    book.set_reachable({"A", "B"})
    book.replace("A", {Name("", str(number)): CONSUMER for number in range(10_000)})
    assert len(book.update(1000)) == 1000
    book.apply_delta("B", {KEYS[0]: CONSUMER})
    assert KEYS[0] in book.update(1000)
    assert book.has_pending


def test_what_a_router_out_of_reach_advertised_counts_again_when_it_is_back() -> None:
    book = UpdatedBook()
    book.after("set_reachable", {"A", "B"})
    key = Name("", "orders")
    assert book.after("replace", "B", {key: CONSUMER}) == {key}
    assert book.lookup("", "orders") == {"B": CONSUMER}
    assert book.after("set_reachable", {"A"}) == {key}
    assert book.lookup("", "orders") == {}
    assert book.after("apply_delta", "B", {key: PRODUCER}) == frozenset()
    assert book.after("set_reachable", {"A", "B"}) == {key}
    assert book.lookup("", "orders") == {"B": PRODUCER}


def test_what_is_both_set_and_withdrawn_at_once_stays() -> None:
    book = UpdatedBook()
    book.after("set_reachable", {"A"})
    key = Name("", "orders")
    assert book.after("apply_delta", "A", {key: CONSUMER}, {key}) == {key}
    assert book.after("apply_delta", "A", {key: CONSUMER}, {key}) == frozenset()
    assert book.lookup("", "orders") == {"A": CONSUMER}


def test_the_same_name_is_another_address_for_another_tenant() -> None:
    book = UpdatedBook()
    book.after("set_reachable", {"A"})
    book.after("replace", "A", {Name("acme", "orders"): CONSUMER})
    assert book.lookup("", "orders") == {}
    assert book.lookup("acme", "orders") == {"A": CONSUMER}
