"""The wait before the next answer to a login."""

from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.policies.guesses import FORGOTTEN, Guesses


def guesses(free: int = 3, longest: float = 30.0, most: int = 10_000) -> Guesses:
    return Guesses(free=free, longest=longest, most=most)


def test_after_three_wrong_passwords_each_answer_waits_twice_as_long_up_to_the_longest() -> None:
    table = guesses()
    waits = []
    for _ in range(10):
        waits.append(table.wait("h", "ada", 0.0))
        table.failed("h", "ada", 0.0)
    assert waits == [0, 0, 0, 1, 2, 4, 8, 16, 30, 30]


def test_other_users_and_other_hosts_do_not_wait() -> None:
    table = guesses(free=1)
    table.failed("h", "ada", 0.0)
    assert table.wait("h", "ada", 0.0) == 1
    assert table.wait("h", "bob", 0.0) == table.wait("i", "ada", 0.0) == 0


def test_a_right_password_ends_the_wait() -> None:
    table = guesses(free=1)
    table.failed("h", "ada", 0.0)
    table.succeeded("h", "ada")
    assert table.wait("h", "ada", 0.0) == 0
    assert len(table) == 0


def test_time_ends_the_wait_and_the_count_begins_again() -> None:
    table = guesses(free=1)
    for _ in range(5):
        table.failed("h", "ada", 0.0)
    assert table.wait("h", "ada", FORGOTTEN) == 16
    assert table.wait("h", "ada", FORGOTTEN + 1) == 0
    table.failed("h", "ada", FORGOTTEN + 1)
    assert table.wait("h", "ada", FORGOTTEN + 1) == 1


@given(st.lists(st.tuples(st.sampled_from("hi"), st.sampled_from("abcdef")), max_size=60), st.integers(1, 5))
def test_no_more_pairs_are_remembered_and_the_last_ones_are(failures: list[tuple[str, str]], most: int) -> None:
    table = guesses(free=1, most=most)
    for host, user in failures:
        table.failed(host, user, 0.0)
    last = list(dict.fromkeys(reversed(failures)))
    assert len(table) == min(most, len(last))
    assert {pair for pair in last if table.wait(*pair, 0.0)} == set(last[:most])


def test_a_wait_of_ages_of_guessing_is_a_number_too() -> None:
    table = guesses(free=1, longest=3600.0)
    for _ in range(2_000):
        table.failed("h", "ada", 0.0)
    assert table.wait("h", "ada", 0.0) == 3600
