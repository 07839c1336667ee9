"""The page at a listener for HTTP: its files, the login, windows of lists, the mesh, changes, drains and traces."""

from __future__ import annotations

import json
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from amqpmesh import ConnectorConfig, ListenerConfig, MeshConfig, PolicyConfig, Router, TokenIssuerConfig, connect
from amqpmesh.router.config.users import Users
from amqpmesh.router.http.requests import Answer, Request
from amqpmesh.router.http.visitors import Visitor
from amqpmesh.router.runtime import http_windows
from amqpmesh.router.runtime.http_answers import HELD, EntityPages
from amqpmesh.router.runtime.snapshots import Snapshots, Work
from tests.support.data import tokens
from tests.support.peers.http_client import PATIENCE, HttpClient, Told, basic
from tests.support.worlds.sibling_workers import LOOPBACK, router_config, workers

if TYPE_CHECKING:
    from collections.abc import Callable

HTTP = ListenerConfig(url="http://127.0.0.1:0", role="http", manage=True)
READING = ListenerConfig(url="http://127.0.0.1:0", role="http")
AMQP = ListenerConfig(url="amqp://127.0.0.1:0")
MESH = ListenerConfig(url="amqp://127.0.0.1:0", role="mesh", name="mesh")
CHANGE = {"x_amqpmesh_change": "1", "content_type": "application/json"}
PAGE = {"x_amqpmesh_page": "1"}


async def post(client: HttpClient, path: str, content: object, **headers: str) -> Told:
    return await client.ask("POST", path, json.dumps(content).encode(), **{**CHANGE, **headers})


async def wait_for(condition: Callable[[], object]) -> None:
    with trio.fail_after(PATIENCE):
        while not condition():
            await trio.sleep(0.01)


# ------------------------------------------------------------------------------------------------- files and the login


async def test_the_page_needs_no_login_and_what_it_shows_does(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    Users({}).add("ada", "right", 4096).save(file)
    listener = ListenerConfig(url="http://127.0.0.1:0", role="http", sasl=("PLAIN",), users=file, insecure=True)
    async with Router(id="A", drain=0.1, listeners=[listener]) as router:
        client = HttpClient.of(router)
        page = await client.get("/")
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert (await client.get("/", if_none_match=page.headers["etag"])).status == 304
        assert (await client.get("/page/page.js")).headers["content-type"].startswith("text/javascript")
        assert (await client.get("/", host="evil.example")).status == 421
        for path in (
            "/page/",
            "/page/..%2fpage.css",
            "/page/../checks.py",
            "/page/none.js",
            "/view/client",
            "/view/mesh",
        ):
            assert (await client.get(path)).status == 401
        # A browser asks for a password only where it is sent to, not for each figure of the page.
        assert (await client.get("/login")).headers["www-authenticate"].startswith("Basic ")
        asked = await client.get("/view/client", **PAGE)
        assert (asked.status, asked.headers["www-authenticate"]) == (401, 'Amqpmesh offered="basic"')
        entered = await client.get("/login", authorization=basic("ada", "right"))
        assert (entered.status, entered.headers["location"]) == (303, "/")
        known = (await client.get("/view/client", authorization=basic("ada", "right"), **PAGE)).json
        assert (known["router"], known["user"], known["mechanism"], known["changes"]) == ("A", "ada", "PLAIN", [])
        assert {"address", "connection", "link", "route"} <= set(known["reads"])


async def test_a_token_is_asked_for_where_tokens_are_taken(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_bytes(tokens.key_set(tokens.key("one")))
    issuer = TokenIssuerConfig(issuer=tokens.ISSUER, audience=(tokens.AUDIENCE,), jwks=tmp_path / "keys.json")
    listener = ListenerConfig(url="http://127.0.0.1:0", role="http", sasl=("OAUTHBEARER",))
    async with Router(id="A", drain=0.1, listeners=[listener], token_issuers=(issuer,)) as router:
        client = HttpClient.of(router)
        assert (await client.get("/view/client", **PAGE)).headers["www-authenticate"] == 'Amqpmesh offered="bearer"'
        bearer = f"Bearer {tokens.bearer(time.time())}"
        assert (await client.get("/view/client", authorization=bearer, **PAGE)).json["mechanism"] == "OAUTHBEARER"


# -------------------------------------------------------------------------------------------------------------- windows


async def test_a_window_has_the_rows_of_statistics() -> None:
    async with (
        Router(id="A", drain=0.1, listeners=[HTTP, AMQP]) as router,
        connect(router.listeners[1].url, id="<script>alert(1)</script>") as peer,
        AsyncExitStack() as stack,
    ):
        client = HttpClient.of(router)
        names = ["<img src=x onerror=alert(1)>", "\u202egnp.exe", *(f"a/{n:03}" for n in range(60))]
        for each in names:
            await stack.enter_async_context(peer.receiver(each, credit=1))
        sender = await stack.enter_async_context(peer.sender("a/007"))
        await sender.transfer("x", settled=True)
        await wait_for(lambda: any(each.deliveries_out for each in router.statistics().addresses))
        whole = {each.name: each for each in router.statistics().addresses}
        found = (await client.get("/api/address?sort=-deliveries_in&count=5")).json
        assert (found["total"], found["matching"], len(found["results"])) == (62, 62, 5)
        assert found["results"][0]["name"] == "a/007"
        for row in found["results"]:
            own = whole[row["name"]]
            for name in ("deliveries_in", "deliveries_out", "waiting", "consumers", "producers", "demand", "reason"):
                assert row[name] == getattr(own, name), name
        found = (await client.get("/api/address?sort=name&offset=60&attributes=name,identity")).json
        assert [each["name"] for each in found["results"]] == sorted(names, key=str.casefold)[60:]
        assert set(found["results"][0]) == {"name", "identity"}
        found = (await client.get("/api/address?filter=IMG")).json
        assert [each["name"] for each in found["results"]] == [names[0]]
        assert found["matching"] == 1
        (row,) = (await client.get("/api/connection?count=10")).json["results"]
        assert row["container_id"] == "<script>alert(1)</script>"
        links = (await client.get("/api/link?sort=number&count=200")).json
        assert links["matching"] == router.statistics().router.links == len(links["results"])
        assert (await client.get("/api/address?sort=nothing")).status == 400
        assert (await client.get("/api/neighbour?count=1")).json["results"] == []


async def test_rows_are_fresh_while_the_order_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_windows, "LEAST_AGE", 60.0)
    async with (
        Router(id="A", drain=0.1, listeners=[HTTP, AMQP]) as router,
        connect(router.listeners[1].url) as peer,
        peer.receiver("a") as receiver,
        peer.sender("a") as sender,
    ):
        client = HttpClient.of(router)
        row = (await client.get("/api/address?count=10")).json["results"][0]
        assert row["deliveries_in"] == 0
        sent = await sender.transfer("x")
        (await receiver.receive()).accept()
        await sent.outcome()
        async with peer.receiver("b"):
            told = (await client.get("/api/address?count=10")).json
            assert [(each["name"], each["deliveries_in"]) for each in told["results"]] == [("a", 1)]
        # A client that has changed something sees it.
        (number,) = [each.number for each in router.statistics().connections]
        assert (await client.ask("DELETE", f"/api/link/{number + 10_000}", **CHANGE)).status == 404
        link = next(each for each in router.statistics().links if each.direction == "outgoing")
        assert (await client.ask("DELETE", f"/api/link/{link.number}", **CHANGE)).status == 204
        told = (await client.get("/api/link?count=10")).json
        assert link.number not in [each["number"] for each in told["results"]]


async def test_an_order_is_made_again_once_most_of_its_rows_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LEAST_AGE", 0.0), ("ORDER_PART", 1e-9), ("GONE_PART", 1e9)):
        monkeypatch.setattr(http_windows, name, value)
    async with (
        Router(id="A", drain=0.1, listeners=[HTTP, AMQP]) as router,
        connect(router.listeners[1].url) as peer,
        peer.receiver("a"),
    ):
        client = HttpClient.of(router)

        async def told() -> tuple[int, list[str]]:
            found = (await client.get("/api/address?count=10&attributes=name")).json
            return found["matching"], [each["name"] for each in found["results"]]

        async with peer.receiver("b"):
            async with peer.receiver("c"):
                assert await told() == (3, ["a", "b", "c"])
            assert await told() == (3, ["a", "b"])
            assert await told() == (3, ["a", "b"])
        assert await told() == (3, ["a"])
        assert await told() == (1, ["a"])


async def test_windows_cost_a_bounded_part_of_a_core_however_often_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def timed(self: Work, steps: Any) -> Any:
        self.seconds += 0.1
        return steps

    monkeypatch.setattr(Work, "timed", timed)
    async with (
        Router(id="A", drain=0.1, listeners=[HTTP, AMQP]) as router,
        connect(router.listeners[1].url) as peer,
        peer.receiver("a") as receiver,
        peer.sender("a") as sender,
    ):
        client = HttpClient.of(router)
        for _ in range(5):
            await client.get("/api/address?count=10")
        sent = await sender.transfer("x")
        (await receiver.receive()).accept()
        await sent.outcome()
        told = (await client.get("/api/address?count=10")).json
        assert told["results"][0]["deliveries_in"] == 0  # nothing is read again: it has cost enough
        assert 0 < told["age"] < 20


async def test_clients_that_read_slowly_hold_few_snapshots() -> None:
    async with Router(id="A", drain=0.1, listeners=[HTTP]) as router:
        assert router._core is not None
        snapshots = Snapshots(router._take_snapshot)
        snapshots.begin(router._start_inside)
        pages = EntityPages(router._core, router._driver, snapshots)
        visitor = Visitor("", frozenset({"router"}), frozenset(), {})

        async def lists() -> tuple[Answer, float]:
            answer = await pages.answer(Request("GET", "/api/router", {}, {}), visitor, None)  # type: ignore[arg-type]
            return answer, max(each.snapshot.at for each in pages._listings)

        slow = []
        for _ in range(HELD):
            snapshots.drop()
            slow.append(await lists())
        latest = slow[-1][1]
        for _ in range(3):
            snapshots.drop()
            slow.append(await lists())
        assert len({each.snapshot.at for each in pages._listings}) == HELD
        assert slow[-1][1] == latest
        for answer, _ in slow:
            assert answer.parts is not None
            await answer.parts.aclose()
        del slow, answer
        snapshots.drop()
        _, at = await lists()
        assert at > latest
        snapshots.end()


# ------------------------------------------------------------------------------------------------- mesh, changes, drain


async def test_the_mesh_is_told_once_and_then_what_goes_over_the_links() -> None:
    async with Router(id="A", drain=0.1, listeners=[HTTP, MESH], mesh=MeshConfig(insecure=True)) as first:
        client = HttpClient.of(first)
        connector = ConnectorConfig(url=first.listeners[1].url, role="mesh", name="to-a", cost=3)
        async with Router(id="B", connectors=[connector], mesh=MeshConfig(insecure=True)) as second:
            await wait_for(lambda: any(each.distance == 3 for each in first.statistics().routes))
            told = (await client.get("/view/mesh")).json
            assert [(each["id"], each["distance"]) for each in told["routers"]] == [("A", 0), ("B", 3)]
            assert told["links"] == [["A", "B", 3, 3]]
            (neighbour,) = told["neighbours"]
            assert (neighbour["router"], neighbour["up"], neighbour["cost"]) == ("B", True, 3)
            again = (await client.get(f"/view/mesh?known={told['version']}")).json
            assert "routers" not in again
            assert again["neighbours"][0]["octets_in"] >= neighbour["octets_in"] > 0
            path = f"/api/neighbour/{neighbour['connection']}"
            assert (await client.ask("PATCH", path, b'{"cost": 7}', **CHANGE)).status == 200
            await wait_for(lambda: first.statistics().routes[0].distance == 7)
            assert (await client.get(f"/view/mesh?known={told['version']}")).json["links"] == [["A", "B", 7, 3]]
            assert second.statistics().mesh is not None
        await wait_for(lambda: first.statistics().routes[0].distance is None)
        found = (await client.get("/view/changes")).json["changes"]
        assert [(each["event"], each["fields"].get("to")) for each in found][::-1][:1] == [("link up", "B")]
        assert "link down" in [each["event"] for each in found]
        assert "cost changed" in [each["event"] for each in found]
        assert (await client.get(f"/view/changes?after={found[0]['number']}")).json["changes"] == []


async def test_a_router_without_a_mesh_is_a_mesh_of_one() -> None:
    async with Router(id="A", drain=0.1, listeners=[HTTP]) as router:
        told = (await HttpClient.of(router).get("/view/mesh")).json
        assert [each["id"] for each in told["routers"]] == ["A"]
        assert (told["links"], told["neighbours"]) == ([], [])


async def test_a_configuration_that_is_changed_is_told(tmp_path: Path) -> None:
    async with Router(id="A", drain=0.1, listeners=[HTTP]) as router:
        await router.apply(replace(router.config, drain=7.0))
        (found,) = (await HttpClient.of(router).get("/view/changes")).json["changes"]
        assert found["event"] == "configuration changed"
        assert (found["fields"]["key"], found["fields"]["to"]) == ("router.drain", "7.0")


async def test_who_may_not_read_the_configuration_learns_which_key_has_changed_alone(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(
        '[[group]]\nname = "watchers"\nusers = ["ada"]\nmanage = ["read:router"]\n'
        '[[group]]\nname = "readers"\nusers = ["bob"]\nmanage = ["read"]\n',
        encoding="utf-8",
    )
    file = tmp_path / "users.toml"
    Users({}).add("ada", "right", 4096).add("bob", "right", 4096).save(file)
    listener = ListenerConfig(url="http://127.0.0.1:0", role="http", sasl=("PLAIN",), users=file, insecure=True)
    policy = PolicyConfig(file=tmp_path / "policy.toml")
    async with Router(id="A", listeners=[listener], policy=policy) as router:
        await router.apply(replace(router.config, drain=7.0))
        client = HttpClient.of(router)
        seen = {}
        for user in ("ada", "bob"):
            told = (await client.get("/view/changes", authorization=basic(user, "right"))).json
            seen[user] = next(each["fields"] for each in told["changes"] if each["event"] == "configuration changed")
        assert (seen["bob"]["key"], seen["bob"]["to"]) == ("router.drain", "7.0")
        assert seen["ada"] == {"key": "router.drain", "effect": "at once"}


async def test_nothing_is_changed_without_the_right_and_the_header() -> None:
    async with Router(id="A", drain=0.1, listeners=[HTTP, READING]) as router:
        may, reads = HttpClient.of(router), HttpClient.of(router, 1)
        assert "router" in (await may.get("/view/client")).json["changes"]
        assert (await reads.get("/view/client")).json["changes"] == []
        assert (await post(reads, "/view/drain", {})).json == {"error": "not permitted"}
        assert (await post(may, "/view/drain", {}, origin="http://evil.example")).status == 403
        assert (await may.ask("POST", "/view/drain", b"{}")).status == 403
        assert (await may.ask("POST", "/view/drain", b"{}", x_amqpmesh_change="1")).status == 400
        assert (await post(may, "/view/drain", {"pace": "fast"})).status == 400
        assert (await post(may, "/view/drain", {"all": True})).status == 400
        assert (await post(may, "/view/drain", {})).status == 501  # a program has started it
        assert (await may.ask("DELETE", "/view/drain", **CHANGE)).status == 405
        assert (await post(may, "/view/nothing", {})).status == 404
        assert (await post(may, "/api/address", {})).status == 405
        assert (await may.get("/view/changes?after=x")).status == 400


# --------------------------------------------------------------------------------------------------------------- traces


async def test_a_message_is_traced_over_http() -> None:
    async with Router(id="A", drain=0.1, listeners=[HTTP, AMQP]) as router, connect(router.listeners[1].url) as peer:
        client = HttpClient.of(router)
        async with peer.receiver("orders") as receiver:
            begun = (await post(client, "/view/traces", {"address": "orders"})).json
            (await receiver.receive()).accept()
            events: list[dict[str, Any]] = []
            with trio.fail_after(PATIENCE):
                while True:
                    path = f"/view/traces/{begun['trace']}?after={len(events)}"
                    told = (await client.get(path)).json
                    events += told["events"]
                    if told["over"]:
                        break
        kinds = [each["event"] for each in events]
        assert kinds[0] == "begun"
        assert "left" in kinds
        assert next(each for each in events if each["event"] == "told")["outcome"] == "accepted"
        assert (await client.get("/view/traces/x")).status == 400
        assert (await client.get(f"/view/traces/{'0' * 32}")).status == 404
        assert (await post(client, "/view/traces", {"address": 7})).status == 400
        assert (await post(client, "/view/traces", {"address": "$management"})).status == 400


async def test_other_routers_are_asked_as_far_as_they_believe_this_one() -> None:
    mesh: dict[str, Any] = {"mesh": MeshConfig(insecure=True), "drain": 0.1}
    async with Router(id="A", listeners=[HTTP, MESH], **mesh) as first:
        client = HttpClient.of(first)
        connector = ConnectorConfig(url=first.listeners[1].url, role="mesh")
        async with Router(id="B", connectors=[connector], **mesh) as second:
            await wait_for(lambda: any(each.distance == 1 for each in first.statistics().routes))
            async with second.receiver("orders") as receiver:
                await wait_for(lambda: first.statistics().adverts)
                begun = (await post(client, "/view/traces", {"address": "orders"})).json
                (await receiver.receive()).accept()
                told: dict[str, Any] = {}
                with trio.fail_after(PATIENCE):
                    while not told.get("over"):
                        told = (await client.get(f"/view/traces/{begun['trace']}?at=B")).json
                assert told["router"] == "B"
                assert told["events"][0]["event"] == "came"
            (neighbour,) = (await client.get("/view/neighbours?at=B")).json["neighbours"]
            assert (neighbour["router"], neighbour["cost"], neighbour["up"]) == ("A", 1, True)
            asked = {"at": "B", "connection": neighbour["connection"], "cost": 9}
            # Routers without certificates vouch for nobody.
            assert (await post(client, "/view/cost", asked)).status == 403
            assert (await post(client, "/view/drain", {"at": "B"})).status == 403
            assert (await post(client, "/view/cost", {"at": "B", "cost": 9})).status == 400
            for path in ("/view/neighbours?at=C", "/view/neighbours?at=A", "/view/neighbours"):
                assert (await client.get(path)).status == 404
            assert first._core is not None
            assert first._core.context.on_behalf == {}


POLICY = """
[[tenant]]
name = "one"
match = [{ user = "ada*" }]

[[tenant]]
name = "two"
match = [{ user = "bob*" }]

[[group]]
tenant = "one"
name = "all"
users = ["*"]
send = ["mine/#"]
receive = ["#"]
manage = ["write"]

[[group]]
tenant = "two"
name = "readers"
users = ["*"]
receive = ["#"]
manage = ["read:address"]
"""


async def test_a_tenant_sees_its_own_and_nothing_of_the_mesh(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    Users({}).add("ada", "right", 4096).add("bob", "right", 4096).save(file)
    (tmp_path / "policy.toml").write_text(POLICY, encoding="utf-8")
    listeners = [
        ListenerConfig(url=f"{scheme}://127.0.0.1:0", role=role, sasl=("PLAIN",), users=file, insecure=True)
        for scheme, role in (("http", "http"), ("amqp", "normal"))
    ]
    policy = PolicyConfig(file=tmp_path / "policy.toml")
    async with Router(id="A", drain=0.1, listeners=listeners, policy=policy) as router, AsyncExitStack() as stack:
        url = router.listeners[1].url
        for user in ("ada", "bob"):
            peer = await stack.enter_async_context(connect(url, user=user, password="right", insecure=True))
            await stack.enter_async_context(peer.receiver(f"of/{user}"))
        client = HttpClient.of(router)
        ada, bob = ({"authorization": basic(user, "right"), **PAGE} for user in ("ada", "bob"))
        known = (await client.get("/view/client", **ada)).json
        assert (known["tenant"], known["groups"], known["mesh"]) == ("one", ["all"], False)
        assert (await client.get("/view/client", **bob)).json["reads"] == ["address"]
        for user, shown in (("ada", ada), ("bob", bob)):
            told = (await client.get("/api/address?count=10&sort=-rate&filter=of", **shown)).json
            assert ([each["name"] for each in told["results"]], told["total"]) == ([f"of/{user}"], 1)
            for path in ("/view/mesh", "/view/rates", "/view/changes"):
                assert (await client.get(path, **shown)).status == 403
            assert (await post(client, "/view/drain", {}, **shown)).status == 403
        (link,) = (await client.get("/api/link?count=10", **ada)).json["results"]
        whole = (await client.get("/api/link", **ada)).json["link"]
        assert link["number"] == whole[0]["number"]  # not the router's own number
        assert link["number"] not in [each.number for each in router.statistics().links]
        assert (await client.get("/api/link?count=10", **bob)).status == 403
        # Tracing sends: it needs that right, and the right to read.
        assert (await post(client, "/view/traces", {"address": "of/ada"}, **ada)).status == 403
        begun = await post(client, "/view/traces", {"address": "mine/a", "wait": 0.1}, **ada)
        assert begun.status == 200
        assert (await post(client, "/view/traces", {"address": "mine/a"}, **bob)).status == 403
        assert (await client.get(f"/view/traces/{begun.json['trace']}", **ada)).status == 200
        await wait_for(lambda: len(router.statistics().links) == 2)


async def test_a_router_of_several_workers_is_asked_for_one_of_them(tmp_path: Path) -> None:
    config = router_config(listeners=(LOOPBACK, HTTP))
    async with workers(config, tmp_path) as both, connect(both[1].listeners[0].url) as peer, peer.receiver("news"):
        client = HttpClient.of(both[0], 1)
        assert (await client.get("/view/client")).json["workers"] == ["A.1", "A.2"]
        assert (await client.get("/view/client?router=A.2")).json["router"] == "A.2"
        assert (await client.get("/api/address?count=5")).status == 400
        assert (await client.get("/view/mesh")).status == 400
        assert (await client.get("/view/mesh?router=A.2")).json["router"] == "A.2"
        found = (await client.get("/api/link?count=5&router=A.2")).json
        assert found["total"] >= 1
        assert (await client.get("/")).status == 200
