"""Exports and imports of tenants: the other names of addresses, who may use which, and lines that give nothing."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.policies import exports
from amqpmesh.policies.exports import Export, Exports, Import, Use
from amqpmesh.policies.findings import findings
from amqpmesh.policies.overlaps import covers, overlap
from amqpmesh.policies.patterns import PatternTable, steps
from amqpmesh.policies.policy import Policy
from amqpmesh.policies.renames import MOST_TOKENS, fault, renamed, wildcards
from amqpmesh.router.config.policy_file import parse_policy
from tests.support.worlds.tenant_judge import Judge

SEND, RECEIVE = Use


def policy(text: str) -> Policy:
    return parse_policy(tomllib.loads(text), Path("policy.toml"))


@pytest.mark.parametrize(
    ("address", "under", "to", "expected"),
    [
        ("billing/invoices/7", "billing/invoices/#", "invoices/#", "invoices/7"),
        ("billing/invoices/7.a//", "billing/invoices/#", "invoices/#", "invoices/7.a//"),
        ("billing/invoices", "billing/invoices/#", "invoices/#", "invoices"),
        ("billing/invoices.7", "billing/invoices/#", "invoices/#", None),
        ("a/b", "*/b", "x.*.y", "x.a.y"),
        ("a/b/c/d", "*/#/d", "#/*", None),
        ("a/b/c/d", "a/#/d", "#/z", "b/c/z"),
        ("a/d", "a/#/d", "#/z", "z"),
        ("d", "#/d", "x/#.y", "x.y"),
        ("all", "all/#", "#", None),  # it would have no name
        ("all/", "all/#", "#", None),
        ("all/$management", "all/#", "#", "$management"),  # which an export does not give
        ("q", "q", "other", "other"),
        ("x", "q", "other", None),
        ("", "#", "x/#", "x/"),
    ],
)
def test_what_a_wildcard_stands_for_stands_in_its_place_in_the_other_name(
    address: str, under: str, to: str, expected: str | None
) -> None:
    if wildcards(under) == wildcards(to):
        assert renamed(address, under, to) == expected
    else:
        assert expected is None


WORDS: Final = st.sampled_from(["a", "b", "", "*", "#"])
TOKENS: Final = st.sampled_from(["a", "b", "c", ""])


@st.composite
def patterns(draw: st.DrawFn, words: st.SearchStrategy[str] = WORDS) -> str:
    row = draw(st.lists(words, min_size=1, max_size=5))
    joints = [draw(st.sampled_from("/.")) for _ in row]
    return "".join(each + joint for each, joint in zip(row, joints, strict=True))[:-1]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[str, str]:
    """Two patterns with the same wildcards."""
    one = draw(patterns().filter(lambda each: fault(each) is None))
    signs = list(wildcards(one))
    row = [draw(st.sampled_from(["x", "y/z", ""])), *signs]
    other = "/".join(each for each in row if each)
    return one, other or "x"


@given(patterns(), patterns(TOKENS))
def test_an_address_has_another_name_exactly_if_it_falls_under_the_pattern(pattern: str, address: str) -> None:
    if fault(pattern) is None and address:
        matches = PatternTable([(pattern, None)]).find(address) is not None
        assert (renamed(address, pattern, pattern) is not None) is matches
        assert renamed(address, pattern, pattern) in (None, address)


@given(pairs(), patterns(TOKENS))
def test_names_and_addresses_are_one_to_one(both: tuple[str, str], address: str) -> None:
    under, to = both
    name = renamed(address, under, to)
    if name is not None and address:
        assert renamed(name, to, under) == address
        assert PatternTable([(to, None)]).find(name) is not None


def test_an_address_of_too_many_tokens_has_no_other_name() -> None:
    most = "x/" * (MOST_TOKENS - 1) + "x"
    assert renamed(most, "#", "#") == most
    assert renamed(most, "#", "y/#") is None
    assert renamed(f"{most}/x", "#", "#") is None


@pytest.mark.parametrize("pattern", ["", "$dynamic/#", "amqp$x", "a@b", "a/${user}", "#/a/#", "x" * 256, "a\0b"])
def test_such_a_pattern_is_refused(pattern: str) -> None:
    assert fault(pattern) is not None


def addresses(longest: int = 3) -> list[str]:
    found = ["a", "b", ""]
    row = list(found)
    for _ in range(longest - 1):
        row = [f"{each}{joint}{token}" for each in row for joint in "/." for token in ("a", "b", "")]
        found += row
    return found


ALL: Final = [each for each in addresses() if each]  # an address has a name


@given(patterns(), patterns())
def test_two_patterns_overlap_or_cover_as_their_addresses_say(one: str, other: str) -> None:
    first, second = (PatternTable([(each, None)]) for each in (one, other))
    under = [(first.find(each) is not None, second.find(each) is not None) for each in ALL]
    if any(left and right for left, right in under):
        assert overlap(one, other)
    if any(right and not left for left, right in under):
        assert not covers(one, other)
    if not overlap(one, other):
        assert not any(left and right for left, right in under)
    assert overlap(one, other) is overlap(other, one)
    assert covers(one, one) or "#" in one


@pytest.mark.parametrize(
    ("one", "other", "meet", "wide"),
    [
        ("a/#", "a", True, True),
        ("a/#", "a/*/b", True, True),
        ("*/b", "a/*", True, False),
        ("#/x", "y/#", True, False),
        ("a/x", "a/y", False, False),
        ("a.*", "a/*", False, False),
        ("#/a", "#/b", False, False),
        ("x/#", "x/#.y", True, False),
        ("#", "a/#/b/#", True, True),
        ("*", "#", True, False),
    ],
)
def test_two_patterns_are_compared(one: str, other: str, meet: bool, wide: bool) -> None:
    assert overlap(one, other) is meet
    assert covers(one, other) is wide


def test_long_patterns_are_compared_in_a_moment() -> None:
    one, other = "/".join(["*"] * 127 + ["#"]), "/".join(["#", *["*"] * 127])
    assert len(steps(one)) == 128
    assert overlap(one, other)
    assert not covers("/".join(["#", "a"] * 60), "/".join(["#", "b"] * 60))


# ------------------------------------------------------------------------------------------------------------ the judge

TENANTS: Final = ("", "a", "b", "c")
EXPORTS: Final = st.builds(
    Export,
    key=st.uuids().map(str),
    exporter=st.sampled_from(TENANTS),
    importer=st.sampled_from(TENANTS),
    pattern=st.sampled_from(["o/#", "p/*", "#", "q"]),
    name=st.just(""),
    may=st.sets(st.sampled_from(Use), min_size=1).map(frozenset),
    replies=st.booleans(),
)
#: Other names of the four patterns.
NAMES: Final = {"o/#": ("o/#", "x/o/#", "#"), "p/*": ("p/*", "x/*"), "#": ("#", "x/#"), "q": ("q", "x/q")}
IMPORTS: Final = st.builds(
    Import,
    key=st.uuids().map(str),
    exporter=st.sampled_from(TENANTS),
    importer=st.sampled_from(TENANTS),
    pattern=st.sampled_from(["x/#", "o/#", "p/*", "q", "#", "x/o/1"]),
)
USED: Final = ("o", "o/1", "p/1", "q", "x", "x/o/1", "x/o", "x/1", "x/q", "x/$dynamic/n", "x/p/1", "z", "x/x/o/1")


@st.composite
def worlds(draw: st.DrawFn) -> Exports:
    exports: dict[tuple[object, ...], Export] = {}
    for each in draw(st.lists(EXPORTS, max_size=5)):
        line = replace(each, name=draw(st.sampled_from(NAMES[each.pattern])))
        if line.exporter != line.importer:
            for use in line.may:
                exports.setdefault((line.exporter, line.importer, line.name, use), replace(line, may=frozenset({use})))
    imports: dict[tuple[str, str], Import] = {}
    for taken in draw(st.lists(IMPORTS, max_size=5)):
        if taken.exporter != taken.importer:
            imports.setdefault((taken.importer, taken.pattern), taken)
    return Exports(list(exports.values()), list(imports.values()))


@given(worlds(), st.sampled_from(TENANTS), st.sampled_from(USED), st.sampled_from(Use))
def test_a_simple_judge_finds_the_same_owner_of_each_name(world: Exports, tenant: str, name: str, use: Use) -> None:
    expected = Judge(world.exports, world.imports).owner(tenant, name, use)
    imported = world.imported(tenant, name)
    if imported is None:
        assert expected == (tenant, name)
        return
    found = world.crossing(imported, name, use)
    assert (None if found is None else (found.tenant, found.name)) == expected
    if found is not None:
        assert found.exported.offers(found.name)
        assert world.is_offered(found.tenant, found.name, use)


@pytest.mark.parametrize("name", ["all/$management", "all/$dynamic/n", "all/amqp$x", "all", "all/"])
def test_an_export_of_all_addresses_gives_neither_the_routers_own_nor_an_empty_one(name: str) -> None:
    export = Export(key="e", exporter="a", importer="b", pattern="#", name="all/#", may=frozenset(Use), replies=True)
    world = Exports([export], [Import(key="i", exporter="a", importer="b", pattern="all/#")])
    taken = world.imported("b", name)
    assert taken is not None
    assert world.crossing(taken, name, SEND) is None
    assert world.crossing(taken, "all/q", SEND) is not None


def test_exports_with_replies_are_compared_with_few_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    def counted(one: str, other: str) -> bool:
        nonlocal compared
        compared += 1
        return overlap(one, other)

    monkeypatch.setattr(exports, "overlap", counted)
    number, both = 300, {"exporter": "a", "importer": "b"}
    lines = [
        Export(key="", pattern="#", name=f"x{each}/#", may=frozenset(Use), replies=True, **both)
        for each in range(number)
    ]
    imports = [Import(key="", pattern=f"{'x' if each % 2 else 'y'}{each}/a/*", **both) for each in range(number)]
    assert Exports(lines, imports[::2]).replies("a", "b") is None
    assert compared == 0
    assert Exports(lines, imports).replies("a", "b") is lines[1]
    assert Exports(lines, [*imports[::2], Import(key="", pattern="*/a", **both)]).replies("a", "b") is lines[0]
    assert compared <= 4


def test_an_import_that_takes_nothing_of_an_export_gives_no_answers() -> None:
    export = Export(key="e", exporter="a", importer="b", pattern="q", name="x", may=frozenset({SEND}), replies=True)
    for pattern, agreed in (("y", False), ("x", True)):
        world = Exports([export], [Import(key="i", exporter="a", importer="b", pattern=pattern)])
        assert (world.replies("a", "b") is export) is agreed


@given(worlds(), st.sampled_from(TENANTS), st.sampled_from(TENANTS))
def test_replies_go_from_an_exporter_to_its_importer_alone(world: Exports, sender: str, maker: str) -> None:
    names = (*USED, "x/a", "o/a", "p/a", "a")
    agreed = sender != maker and Judge(world.exports, world.imports).may_answer(sender, maker, names)
    assert (world.replies(sender, maker) is not None) is agreed


# --------------------------------------------------------------------------------------------------------- the findings

BOTH: Final = """
[[tenant]]
name = "rates"
match = [{ listener = "rates" }]
exports = [{ pattern = "eur/#", to = "shop", as = "rates/#", may = ["receive"], replies = true }]
[[tenant]]
name = "shop"
default = true
imports = [{ from = "rates", pattern = "rates/#" }]
[[group]]
tenant = "shop"
name = "all"
receive = ["rates/${user}"]
send = ["own"]
"""
UNSERVED: Final = 'permits nothing: imports[0] of tenant "shop" has these addresses, and no export serves it'
NO_CHAIN: Final = (
    'exports[0] of tenant "shop" gives nothing: imports[0] of tenant "shop" has these addresses, '
    "and what is imported is not exported"
)
MEETS: Final = 'imports[1] of tenant "shop" meets imports[0] of tenant "shop"'
CROSSED: Final = """imports = [{ from = "rates", pattern = "rates/*" }, { from = "b", pattern = "#/1" }]
[[tenant]]
name = "b"
match = [{ user = "b" }]
exports = [{ pattern = "#/1", to = "shop", may = ["receive"] }]
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", []),
        (
            'imports = [{ from = "rates", pattern = "rates/#" }]',
            "",
            ['exports[0] of tenant "rates" gives nothing: tenant "shop" imports nothing of rates/#'],
        ),
        (
            'as = "rates/#", ',
            "",
            [
                'exports[0] of tenant "rates" gives nothing: tenant "shop" imports nothing of eur/#',
                'imports[0] of tenant "shop" gives nothing: tenant "rates" exports nothing of rates/#',
                f"group[0].receive[0] {UNSERVED}",
            ],
        ),
        (
            'send = ["own"]',
            'send = ["own", "rates/a"]',
            [f"group[0].send[1] {UNSERVED}"],
        ),
        (
            'receive = ["rates/${user}"]',
            'receive = ["other/${tenant}"]',
            ['imports[0] of tenant "shop" gives nothing: no group may receive from addresses under rates/#'],
        ),
        (
            'imports = [{ from = "rates"',
            'exports = [{ pattern = "rates/a/*", to = "rates", may = ["send"] }]\nimports = [{ from = "rates"',
            [
                'exports[0] of tenant "shop" gives nothing: tenant "rates" imports nothing of rates/a/*',
                NO_CHAIN,
            ],
        ),
        (
            'imports = [{ from = "rates", pattern = "rates/#" }]',
            CROSSED,
            [f"{MEETS}: addresses under both are of the more specific pattern"],
        ),
    ],
)
def test_lines_that_give_nothing_or_contradict_each_other_are_found(old: str, new: str, expected: list[str]) -> None:
    assert list(findings(policy(BOTH.replace(old, new) if old else BOTH))) == expected


def test_many_lines_are_compared_in_steps_that_are_few() -> None:
    exports = [
        Export(
            key=f"e{n}", exporter="a", importer="b", pattern=f"p{n}/#", name=f"p{n}/#", may=frozenset(Use), replies=True
        )
        for n in range(300)
    ]
    imports = [Import(key=f"i{n}", exporter="a", importer="b", pattern=f"p{n}/#") for n in range(300)]
    world = Exports(exports, imports)
    assert world.replies("a", "b") is exports[0]
    taken = world.imported("b", "p299/x")
    assert taken is imports[299]
    assert world.crossing(taken, "p299/x", SEND) is not None
