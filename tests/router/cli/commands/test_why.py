"""`amqpmesh why`: the first thing that stops messages to an address."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.cli.obstacles import Question, routers_to_ask, steps
from amqpmesh.router.config.file import AddressConfig, PolicyConfig, RedirectConfig
from tests.support.processes.router_thread import Command, Serve, Served

FACTS: dict[str, Any] = {
    "tenant": "operator",
    "admitted": None,
    "address": "a",
    "pattern": "#",
    "distribution": "balanced",
    "redirect": None,
    "follows": False,
    "resumption": "on",
    "refused": None,
    "rights": None,
    "exporter": None,
    "exported": None,
}
KINDS = ("address", "advert", "route", "link", "lane", "limit", "rate", "neighbour", "connector", "disagreement")
LINK: dict[str, Any] = {
    "tenant": "",
    "address": "a",
    "direction": "outgoing",
    "copy": False,
    "credit": 0,
    "reason": None,
}
ADVERT: dict[str, Any] = {"tenant": "", "name": "a", "router": "B", "reachable": True}
ROUTE: dict[str, Any] = {"router": "B", "distance": 3, "hops": 2, "next_hops": ["C"]}


def entities(**given: Any) -> Mapping[str, Any]:
    return {**{kind: [] for kind in (*KINDS, "container-link")}, **given}


def address(consumers: int, producers: int = 0, tenant: str = "", name: str = "a") -> dict[str, Any]:
    return {"tenant": tenant, "name": name, "consumers": consumers, "producers": producers, "waiting": 0}


def found(
    facts: Mapping[str, Any] = {},  # not changed
    *,
    sends: bool = True,
    user: str | None = None,
    there: Mapping[str, Any] = {},  # not changed
    asked: str = "a",
    **here: Any,
) -> list[tuple[str, str, bool]]:
    """Return the steps of a question: name, sentence, and whether it stops."""
    question = Question(asked, sends, user, {**FACTS, **facts}, entities(**here), there)
    return [(each.name, each.says, each.stops) for each in steps(question)][-2:]


def test_all_that_is_in_order_stops_nothing() -> None:
    assert found(address=[address(1)], link=[{**LINK, "credit": 5}]) == [
        ("receivers", "1 at this router", False),
        ("credit", "receivers take 5 deliveries now", False),
    ]


def test_what_is_behind_an_obstacle_is_not_reached() -> None:
    assert found({"admitted": False}, user="eve") == [("rights", "no tenant has eve", True)]


@pytest.mark.parametrize(("sends", "terminus"), [(True, "target"), (False, "source")])
def test_an_address_that_takes_only_resumable_links_says_so(sends: bool, terminus: str) -> None:
    question = Question("a", sends, None, {**FACTS, "resumption": "required"}, entities())
    says = f"only links that can be resumed: rcv-settle-mode second, and a timeout of the {terminus}"
    assert [each.says for each in steps(question) if each.name == "resumption"] == [says]


def test_a_right_that_no_line_gives_stops() -> None:
    facts = {"rights": [["container", "group[0].may"], ["send to a", None]], "tenant": "shop"}
    assert found(facts, user="eve") == [
        ("rights", "container: group[0].may", False),
        ("rights", "eve of tenant shop may not: no line of the policy gives `send to a`", True),
    ]


def test_an_address_that_is_refused_or_elsewhere_stops() -> None:
    assert found({"refused": "the address is unavailable"})[-1] == (
        "address",
        "a link is refused: the address is unavailable",
        True,
    )
    assert found({"redirect": "host b"})[-1] == ("address", "clients are redirected to host b", True)


def test_an_alias_and_an_exported_address_are_followed() -> None:
    facts = {"address": "b", "exporter": "shop", "exported": "orders"}
    assert found(facts, address=[address(2, tenant="shop", name="orders")])[0] == (
        "receivers",
        "2 at this router",
        False,
    )
    question = Question("a", True, None, {**FACTS, **facts}, entities())
    assert [each.says for each in steps(question)][1] == (
        "a stands for b; balanced by the pattern #, which is orders of tenant shop"
    )


def test_a_limit_that_is_used_up_stops() -> None:
    limit = {"tenant": "", "user": None, "limit": "senders", "used": 3, "allowed": 3}
    assert found(limit=[limit])[-1] == ("limits", "tenant operator has 3 of 3 senders", True)
    assert found(limit=[{**limit, "tenant": "other"}])[-1][0] == "receivers"
    assert found(limit=[{**limit, "used": 2}])[-1][0] == "receivers"
    assert found(sends=False, limit=[limit])[-1][0] == "senders"


def test_a_rate_that_makes_senders_wait_is_named() -> None:
    rate = {"tenant": "", "user": None, "address": None, "limit": "messages", "allowed": 50.0, "waiting": 2}
    assert found(rate=[rate])[0] == ("limits", "2 links wait for the rate messages: 50 in a second", False)


def test_without_a_receiver_nothing_goes() -> None:
    assert found()[-1] == ("receivers", "no receiver anywhere", True)


def test_a_receiver_out_of_reach_stops_and_says_what_is_down() -> None:
    neighbours = [{"router": "C", "up": False}]
    assert found(advert=[ADVERT], route=[{**ROUTE, "distance": None}], neighbour=neighbours) == [
        ("path", "no path leads to B", False),
        ("path", "no receiver can be reached: B", True),
    ]
    question = Question("a", True, None, FACTS, entities(advert=[ADVERT], neighbour=neighbours))
    assert list(steps(question))[-1].do == "neighbour C is down"


def test_receivers_at_another_router_are_asked_there() -> None:
    here = entities(advert=[ADVERT], route=[ROUTE])
    assert routers_to_ask(Question("a", True, None, FACTS, here)) == ["B"]
    blocked = entities(link=[{**LINK, "reason": "the receiver gives no credit"}])
    assert found(advert=[ADVERT], route=[ROUTE], there={"B": blocked}) == [
        ("path", "to B: cost 3, 2 hops, by C", False),
        ("credit", "no receiver takes anything now: a receiver at B: the receiver gives no credit", True),
    ]
    assert found(advert=[ADVERT], route=[ROUTE], there={"B": entities(link=[{**LINK, "credit": 1}])})[-1] == (
        "credit",
        "receivers take 1 deliveries now",
        False,
    )


def test_an_address_of_one_router_needs_a_receiver_there() -> None:
    facts = {"address": "a@B"}
    assert found(facts, asked="a@B", route=[ROUTE], there={"B": entities()})[-1] == (
        "receivers",
        "no receiver at B",
        True,
    )
    there = {"B": entities(address=[address(1, name="a@B")])}
    assert found(facts, asked="a@B", route=[ROUTE], there=there)[-2] == ("path", "to B: cost 3, 2 hops, by C", False)


def test_different_distributions_are_named() -> None:
    other = {"tenant": "", "address": "a", "here": "A", "ours": "balanced", "router": "B", "theirs": "multicast"}
    assert found(address=[address(1)], disagreement=[other])[-1][1].startswith("A distributes it balanced, B multicast")


def test_a_link_to_a_container_that_is_not_attached_stops() -> None:
    link = {"tenant": "", "address": "a", "node": "q", "state": "waiting", "reason": "refused"}
    assert found({"redirect": "host b", "follows": True}, **{"container-link": [link]})[-1] == (
        "container",
        "the link to q at host b is waiting: refused",
        True,
    )


def test_a_running_router_is_asked(serve: Serve, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(
        addresses=(
            AddressConfig(pattern="old", alias="new"),
            AddressConfig(pattern="never/#", distribution=Distribution.UNAVAILABLE),
            AddressConfig(pattern="there", redirect=RedirectConfig(hostname="b.example", port=9999)),
        )
    )
    monkeypatch.setenv("AMQPMESH_URL", served.url)
    monkeypatch.setattr("amqpmesh.router.runtime.management_node.SNAPSHOT_TIME", 0.0)  # what has just changed is seen
    said = command("why", "old")
    assert (said.status, said.out.splitlines()) == (
        5,
        [
            "rights: not judged: there is no policy, or no peer was named",
            "address: old stands for new; balanced by the pattern #",
            "receivers: no receiver anywhere",
            "stopped by receivers. What helps: attach a receiver, or look for one that has lost its connection",
        ],
    )
    served.receive("new", credit=7)
    said = command("why", "old")
    assert (said.status, said.out.splitlines()[-2:]) == (
        0,
        ["credit: receivers take 7 deliveries now", "nothing stops a message"],
    )
    assert "the address is unavailable" in command("why", "never/x").out
    assert "redirected to host b.example, port 9999" in command("why", "there").out
    assert "no container Z is known here" in command("why", "a@Z").out
    assert "the address" in command("why", "a@").out
    told = json.loads(command("why", "new", "--json").out)
    assert (told["address"], told["tenant"]) == ("new", "operator")
    assert [step["stops"] for step in told["steps"]] == [False] * 4


@pytest.fixture
def judged(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """Start a router with two tenants. The commands are of the operator."""
    policy = tmp_path / "policy.toml"
    policy.write_text(
        """
        [[tenant]]
        name = "operator"
        default = true
        [[tenant]]
        name = "shop"
        match = [{ user = "shop-*" }, { hostname = "shop" }]
        [[group]]
        tenant = "operator"
        name = "operators"
        may = ["dynamic"]
        manage = ["read"]
        [[group]]
        tenant = "shop"
        name = "sellers"
        users = ["shop-ann"]
        send = ["orders"]
        [[group]]
        tenant = "shop"
        name = "all"
        receive = ["news"]
        may = ["dynamic"]
        manage = ["read"]
        """
    )
    served = serve(policy=PolicyConfig(file=policy))
    monkeypatch.setenv("AMQPMESH_URL", served.url)
    return served


def test_the_rights_of_a_user_are_asked(judged: Served, command: Command) -> None:
    said = command("why", "orders", "--user", "shop-ann").out.splitlines()
    assert said[0] == 'rights: send to orders: group[1].send[0] of group "sellers": orders'
    said = command("why", "orders", "--user", "shop-bob").out.splitlines()
    assert said == [
        "rights: shop-bob of tenant shop may not: no line of the policy gives `send to orders`",
        'stopped by rights. What helps: add the address to a group: send = ["orders"]',
    ]
    assert "receive from news: group[2].receive[0]" in command("why", "news", "--receive", "--user", "shop-bob").out


def test_without_a_user_the_commands_own_rights_are_asked(judged: Served, command: Command) -> None:
    assert "the peer of tenant operator may not" in command("why", "orders").out


def test_a_tenant_learns_nothing_of_lines_or_of_others(judged: Served, command: Command) -> None:
    said = command("why", "news", "--receive", "--hostname", "shop").out
    assert said.startswith("rights: receive from news: permitted\n")
    for more in (("--user", "shop-ann"), ("--tenant", "operator")):
        refused = command("why", "orders", "--hostname", "shop", *more)
        assert (refused.status, refused.out) == (3, "")
        assert "403: Forbidden: not permitted" in refused.err


def test_a_peer_without_a_tenant_is_stopped_first(serve: Serve, command: Command, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(
        '[[tenant]]\nname = "operator"\nmatch = [{ hostname = "ops" }]\n'
        '[[group]]\ntenant = "operator"\nname = "all"\nmay = ["dynamic"]\nmanage = ["read"]\n'
    )
    served = serve(policy=PolicyConfig(file=policy))
    said = command("why", "a", "--url", served.url, "--hostname", "ops", "--user", "eve")
    assert (said.status, said.out.splitlines()[0]) == (5, "rights: no tenant has eve")
