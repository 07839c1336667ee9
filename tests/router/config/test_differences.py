"""Differences between configurations, and which of them wait for a restart."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config.differences import differences, in_force, pairs
from amqpmesh.router.config.file import ListenerConfig, RouterConfig, parse
from amqpmesh.router.config.mesh import WorkerConfig
from amqpmesh.router.config.tables import Effect, Table, declared, effect_of

FILE = Path("/etc/amqpmesh/a.toml")


def parsed(text: str) -> RouterConfig:
    return parse(tomllib.loads(text), FILE)


def told(before: str, after: str) -> list[tuple[str, str | None, str | None]]:
    return [(each.key, each.before, each.after) for each in differences(parsed(before), parsed(after))]


OLD = "[router]\nid='A'\n[[listener]]\nurl='amqp://127.0.0.1:1'\n[[address]]\npattern='a'\n"


def test_differences_are_named_by_the_keys_of_the_file() -> None:
    new = OLD.replace("'A'", "'B'").replace("pattern='a'", "pattern='a'\nwindow=2")
    assert told(OLD, OLD) == []
    assert told(OLD, new) == [("router.id", '"A"', '"B"'), ("address[a].window", "500", "2")]


def test_a_whole_table_is_one_difference_with_the_keys_that_it_says() -> None:
    more = f"{OLD}[[address]]\npattern='b'\nmax_credit=7\n[audit]\nfile='audit.log'"
    added = ("address[b]", None, '{ pattern = "b", max_credit = 7 }')
    assert told(OLD, more) == [("audit", None, '{ file = "/etc/amqpmesh/audit.log" }'), added]
    assert told(more, OLD) == [("audit", '{ file = "/etc/amqpmesh/audit.log" }', None), (added[0], added[2], None)]


def test_a_key_of_an_inner_table_is_named_with_its_table() -> None:
    secure = "[[listener]]\nurl='amqps://127.0.0.1:1'\ntls={certificate='a.pem',key='a.key'}"
    found = differences(parsed(secure), parsed(secure.replace("a.pem", "b.pem")))
    assert [(each.key, each.effect) for each in found] == [("listener[amqps].tls.certificate", Effect.NEW_CONNECTIONS)]


def test_a_listener_keeps_its_url_whatever_place_it_has_in_the_list() -> None:
    two = OLD + "[[listener]]\nurl='amqp://127.0.0.1:2'\n"
    # The name of the first one goes to the second, which is the same listener as before.
    alone = two.replace("[[listener]]\nurl='amqp://127.0.0.1:1'\n", "")
    assert told(two, alone) == [
        ("listener[amqp].name", '"amqp-2"', '"amqp"'),
        ("listener[amqp]", '{ url = "amqp://127.0.0.1:1", name = "amqp" }', None),
    ]


def test_the_order_of_rows_is_no_difference() -> None:
    names = ("a", "b", "c")
    texts = [f"[[address]]\npattern='{name}'\n" for name in names]
    assert told("".join(texts), "".join(reversed(texts))) == []


def test_no_function_is_shown() -> None:
    async def check(*_: object) -> bool:
        return True

    plain = RouterConfig(listeners=(ListenerConfig(url="amqp://127.0.0.1:1", name="x"),))
    asked = ListenerConfig(url="amqp://127.0.0.1:1", name="x", sasl=("PLAIN",), insecure=True, users=check)  # type: ignore[arg-type]
    found = {each.key: each.after for each in differences(plain, RouterConfig(id=plain.id, listeners=(asked,)))}
    assert found["listener[x].users"] == "a function"


def test_what_needs_a_restart_keeps_its_running_value() -> None:
    running = parsed("[router]\nid='A'\nmemory=2000000\n[mesh]\ninsecure=true\n[[address]]\npattern='a'")
    wanted = parsed("[router]\nid='B'\nmemory=3000000\n[mesh]\ninsecure=true\nhello=2.5\n[[address]]\npattern='b'")
    target = in_force(running, wanted)
    assert (target.id, target.memory, target.mesh) == ("A", 3_000_000, running.mesh)
    assert target.addresses == wanted.addresses
    waiting = [each for each in differences(running, wanted) if each.needs_restart]
    assert [(each.key, bool(each.reason)) for each in waiting] == [("router.id", True), ("mesh.hello", True)]
    # These are all that is left to do afterwards.
    assert list(differences(target, wanted)) == waiting


def _tables(cls: type[Table]) -> set[type[Table]]:
    """Return the tables of a file that a table has, and itself."""
    if cls is WorkerConfig:  # no file has it
        return set()
    hints = get_type_hints(cls).values()
    inner = [kind for hint in hints for one in (hint, *get_args(hint)) for kind in (one, *get_args(one))]
    return {cls}.union(*(_tables(each) for each in inner if isinstance(each, type) and issubclass(each, Table)))


def test_each_table_says_why_a_key_needs_a_restart() -> None:
    tables = _tables(RouterConfig)
    assert len(tables) > 10
    for cls in tables:
        keys = [item for item in declared(cls) if not item.metadata["apart"]]
        assert cls.RESTART or not any(effect_of(cls, item.name) is Effect.RESTART for item in keys), cls


PATTERNS = st.sampled_from(["a", "b", "c/#", "d/*"])
ADDRESSES = st.dictionaries(
    PATTERNS, st.fixed_dictionaries({}, optional={"max_credit": st.integers(1, 9), "attempts": st.integers(1, 3)})
)
LIMITS = st.fixed_dictionaries({}, optional={"connections": st.integers(1, 9), "links": st.integers(1, 9)})
LISTENERS = st.dictionaries(st.integers(1, 4), LIMITS)
MESHES = st.sampled_from(["", "[mesh]\ninsecure = true\n", "[mesh]\ninsecure = true\nhello = 0.5\n"])


@st.composite
def configs(draw: st.DrawFn) -> RouterConfig:
    text = f"[router]\nid = '{draw(st.sampled_from('AB'))}'\ndrain = {draw(st.sampled_from([1.0, 2.0]))}\n"
    text += draw(MESHES)
    for name, rows, key in (("address", draw(ADDRESSES), "pattern"), ("listener", draw(LISTENERS), "url")):
        for at, values in rows.items():
            where = at if key == "pattern" else f"amqp://127.0.0.1:{at}"
            text += f"[[{name}]]\n{key} = '{where}'\n" + "".join(f"{k} = {v}\n" for k, v in values.items())
    return parsed(text)


def in_order(config: RouterConfig) -> RouterConfig:
    return replace(
        config,
        addresses=tuple(sorted(config.addresses, key=lambda each: each.pattern)),
        listeners=tuple(sorted(config.listeners, key=lambda each: each.url)),
    )


@given(configs(), configs())
def test_what_is_in_force_differs_from_what_is_wanted_by_what_waits(one: RouterConfig, two: RouterConfig) -> None:
    found = differences(one, two)
    assert (found == ()) == (in_order(one) == in_order(two))
    target = in_force(one, two)
    assert list(differences(target, two)) == [each for each in found if each.needs_restart]
    assert not any(each.needs_restart for each in differences(one, target))
    assert in_force(target, two) == target


@given(st.lists(st.integers(), unique=True), st.lists(st.integers(), unique=True))
def test_rows_are_paired_once_each(before: list[int], after: list[int]) -> None:
    found = pairs([Row(each) for each in before], [Row(each) for each in after], lambda row: row.number)
    assert sorted(old.number for old, _ in found if old is not None) == sorted(before)
    assert [new.number for _, new in found if new is not None and new.number in before] == [
        each for each in after if each in before
    ]
    assert all(old is None or new is None or old.number == new.number for old, new in found)


class Row(Table):
    """A row that has a number."""

    def __init__(self, number: int) -> None:
        self.number = number


def test_contradictions_between_what_changes_and_what_waits_are_errors() -> None:
    running = parsed("[[listener]]\nurl='amqp://127.0.0.1:1'")
    wanted = parsed("[mesh]\ninsecure=true\n[[listener]]\nurl='amqp://127.0.0.1:2'\nrole='mesh'")
    with pytest.raises(ConfigError, match=r"needs a table \[mesh\]"):
        in_force(running, wanted)
