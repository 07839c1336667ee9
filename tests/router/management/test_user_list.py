"""Lists of password users: QUERY at `$management`, `/api/user`, and who may read them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh import ListenerConfig, Message, Router, connect
from amqpmesh.router.amqp.sasl.mechanisms import ScramKeys
from amqpmesh.router.config.file import PolicyConfig, RouterConfig
from amqpmesh.router.config.users import Users, group_user
from amqpmesh.router.incremental import run_to_end
from amqpmesh.router.management.queries import entities_of, query
from amqpmesh.router.management.service import ADDRESS, OK, PAGE, respond
from amqpmesh.router.management.user_list import UserList
from amqpmesh.router.management.user_requests import KEYS
from amqpmesh.router.management.views import whole
from tests.router.management.test_config_edits import LOOPBACK, ask
from tests.router.management.test_service import STATISTICS
from tests.router.management.test_user_requests import NEW, door, managed
from tests.support.peers.http_client import HttpClient

VERIFIERS = {"SCRAM-SHA-256": ScramKeys(b"salt", 4096, bytes(32), bytes(32))}


def users_of(*names: str) -> Users:
    return Users(dict.fromkeys(names, VERIFIERS))


async def listed(requester: Any, **arguments: Any) -> Any:
    """Return the rows of a QUERY for users, or the status of a refusal."""
    answer = await requester.request(query("user", **arguments))
    status = answer.application_properties["statusCode"]
    return entities_of(answer) if status == OK else status


async def test_users_are_listed_without_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    async with managed(door(file)) as (router, requester):
        await ask(requester, "CREATE", {**NEW, "groups": ["b", "a"]}, type="user", name="ada")
        await ask(requester, "UPDATE", {"disabled": True}, type="user", name="eve")
        ada, eve = await listed(requester)
        assert ada == (await ask(requester, "READ", identity=ada["identity"]))[1]
        assert (ada["identity"], ada["groups"], ada["disabled"]) == ("user/ada", ["b", "a"], False)
        assert (eve["name"], eve["groups"], eve["disabled"]) == ("eve", [], True)
        assert ada.keys() == {"name", "identity", "type", "listener", "listeners", "groups", "disabled"}
        everything = entities_of(await requester.request(query()))
        assert "org.amqpmesh.user" not in {each["type"] for each in everything}, "only who asks for them"
        assert [each.name for each in router.statistics().users] == ["ada", "eve"]


async def test_users_of_several_files_are_told_apart(tmp_path: Path) -> None:
    one, other = door(tmp_path / "one.toml", "one"), door(tmp_path / "other.toml", "a/b")
    same = ListenerConfig(url=LOOPBACK, name="same", sasl=("SCRAM-SHA-256",), users=one.users)
    async with managed(one, other, same) as (_, requester):
        rows = await listed(requester)
        told = [(each["identity"], each["listener"], each["listeners"]) for each in rows]
        assert told == [("user@one/eve", "one", ["one", "same"]), ("user@a%2Fb/eve", "a/b", ["a/b"])]
        for row in rows:
            assert await ask(requester, "READ", identity=row["identity"]) == (200, row)
        assert (await ask(requester, "DELETE", identity="user@a%2Fb/eve"))[0] == 204
        assert [each["identity"] for each in await listed(requester)] == ["user@one/eve"]


async def test_those_alone_list_users_who_may_read_them(tmp_path: Path) -> None:
    file, policy = tmp_path / "users.toml", tmp_path / "policy.toml"
    plain = ListenerConfig(url=LOOPBACK, name="plain")
    async with (
        Router(id="A", listeners=[plain, door(file)]) as router,
        connect(router.listeners[0].url) as client,
        client.requester(ADDRESS) as requester,
    ):
        assert await listed(requester) == 403, "without a policy, everybody reads everything else"
        # A program that embeds the router may change everything.
        async with router.requester(ADDRESS) as own:
            assert [each["name"] for each in await listed(own)] == ["eve"]

    def let(*rights: str) -> None:
        policy.write_text(
            f'[[tenant]]\nname = "t"\nmatch = [{{ hostname = "t" }}]\n'
            f'[[group]]\ntenant = "t"\nname = "g"\nmay = ["dynamic"]\nmanage = {list(rights)}\n'
            f'[[tenant]]\nname = "operator"\ndefault = true\n'
            f'[[group]]\ntenant = "operator"\nname = "g"\nmay = ["dynamic"]\nmanage = {list(rights)}\n'
        )

    let("read")
    config = RouterConfig(id="A", listeners=(plain, door(file)), policy=PolicyConfig(file=policy))
    async with (
        Router(config) as router,
        connect(router.listeners[0].url) as client,
        client.requester(ADDRESS) as requester,
        connect(router.listeners[0].url, hostname="t") as of_tenant,
        of_tenant.requester(ADDRESS) as tenants,
    ):
        for rights, rows in ((("read",), 1), (("read:user",), 1), (("write:user",), 1), (("read:listener",), 403)):
            let(*rights)
            await router.apply()
            found = await listed(requester)
            assert (found if found == 403 else len(found)) == rows
            assert await listed(tenants) in ([], 403), "users are the operator's"


class CountedUsers(Users):
    """Users that count how many rows were made of them."""

    __slots__ = ("made",)

    def groups_of(self, user: str) -> tuple[str, ...]:
        self.made = getattr(self, "made", 0) + 1
        return super().groups_of(user)


def test_a_page_of_a_large_list_costs_its_own_rows() -> None:
    count = 100_000
    users = CountedUsers(dict.fromkeys((f"user{number:06}" for number in range(count)), VERIFIERS))
    told = replace(STATISTICS, users=UserList([(None, ("door",), users)]))
    names: list[str] = []
    for offset in (0, count - PAGE, count - PAGE // 2, count):
        request = query("user", ["name"], offset=offset)
        before, steps = getattr(users, "made", 0), respond(replace(request, reply_to="r"), whole(told))
        turns = 0
        while True:
            try:
                next(steps)
            except StopIteration as end:
                page = entities_of(Message.decode(end.value.encode()))
                break
            turns += 1
        assert turns >= len(page), "other tasks get their turns between the rows"
        assert getattr(users, "made", 0) - before <= len(page), "rows of other pages are not made"
        names += [each["name"] for each in page]
    assert names == [
        f"user{each:06}" for each in (*range(PAGE), *range(count - PAGE, count), *range(count - PAGE // 2, count))
    ]


async def test_windows_of_users_are_in_json(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    own = door(file)
    group_user(file, "eve", ["readers"])
    http = ListenerConfig(url="http://127.0.0.1:0", role="http", name="http")
    doors = [own, http, replace(http, name="manager", manage=True)]
    async with Router(id="A", drain=0.1, listeners=doors) as router:
        reader, manager = HttpClient.of(router, 1), HttpClient.of(router, 2)
        assert (await reader.get("/api/user")).status == 403
        assert (await reader.get("/api/user/eve")).status == 403
        assert "user" not in (await manager.get("/api")).json
        (eve,) = (await manager.get("/api/user")).json["user"]
        assert eve["groups"] == ["readers"]
        assert (await manager.get("/api/user/eve")).json == eve
        window = (await manager.get("/api/user?count=1&filter=EV&sort=-name")).json
        assert (window["total"], [each["name"] for each in window["results"]]) == (1, ["eve"])
        assert (await manager.get("/api/user?filter=ada")).json["matching"] == 0


def test_the_schema_tells_the_keys_of_users() -> None:
    request = Message(None, reply_to="r", application_properties={"operation": "GET-SCHEMA", "entityType": "user"})
    told = Message.decode(run_to_end(respond(request, whole(STATISTICS))).encode()).body
    user = told["entityTypes"]["org.amqpmesh.user"]
    assert list(user["keys"]) == list(KEYS)
    assert [name for name, key in user["keys"].items() if key["required"]] == ["password"]
    assert user["operations"].keys() == {"CREATE", "READ", "UPDATE", "DELETE"}
    assert "password" not in user["attributes"]


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8), max_size=4), st.data())
def test_a_list_is_a_sequence_of_the_users_of_its_parts(names: list[list[str]], data: st.DataObject) -> None:
    found = UserList((str(at), (str(at),), users_of(*each)) for at, each in enumerate(names))
    wanted = [(str(at), name) for at, each in enumerate(names) for name in each]
    assert [(each.listener, each.name) for each in found] == wanted
    cut = slice(*(data.draw(st.none() | st.integers(-9, 9)) for _ in range(2)))
    assert [(each.listener, each.name) for each in found[cut]] == wanted[cut]
    for at in range(-len(wanted), len(wanted)):
        assert (found[at].listener, found[at].name) == wanted[at]
    for at in (len(wanted), -len(wanted) - 1):
        with pytest.raises(IndexError):
            found[at]
