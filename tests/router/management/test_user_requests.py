"""Password users that clients create, read, change and delete by `$management`."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from amqpmesh import ConnectionClosedError, ListenerConfig, Message, Router, SaslError, connect
from amqpmesh.router.client.requester import Requester
from amqpmesh.router.config.file import PolicyConfig, RouterConfig
from amqpmesh.router.config.observability import AuditConfig
from amqpmesh.router.config.users import Users, add_user
from amqpmesh.router.management.service import ADDRESS, RequestError
from amqpmesh.router.management.user_requests import MOST_GROUPS, UserRequest, listeners_of, user_request
from amqpmesh.router.runtime import applying
from tests.router.management.test_config_edits import LOOPBACK, ask
from tests.support.peers.library_client import Roads

NEW = {"password": "correct horse"}


def door(file: Path, name: str = "door", **settings: Any) -> ListenerConfig:
    """Return a listener that demands a password. Args: file: of its users, made with a user `eve` if it is missing."""
    if not file.exists():
        add_user(file, "eve", "secret", 4096)
    return ListenerConfig(url=LOOPBACK, name=name, sasl=("SCRAM-SHA-256",), users=file, **settings)


@asynccontextmanager
async def managed(*doors: ListenerConfig, **settings: Any) -> AsyncIterator[tuple[Router, Requester]]:
    """Provide a router with these listeners, and a client that may change it."""
    own = ListenerConfig(url=LOOPBACK, name="own", manage=True)
    async with (
        Router(id="A", listeners=[own, *doors], **settings) as router,
        connect(router.listeners[0].url) as client,
        client.requester(ADDRESS) as requester,
    ):
        yield router, requester


async def test_a_user_comes_changes_and_goes_at_once(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    async with managed(door(file)) as (router, requester):
        url = router.listeners[1].url
        status, body = await ask(requester, "CREATE", {**NEW, "groups": ["readers"]}, type="user", name="ada")
        shown = {
            "name": "ada",
            "identity": "user/ada",
            "type": "org.amqpmesh.user",
            "listener": None,
            "listeners": ["door"],
            "groups": ["readers"],
            "disabled": False,
        }
        assert (status, body) == (201, shown)
        async with connect(url, user="ada", password="correct horse") as client, client.receiver("q") as receiver:
            told = {**shown, "groups": ["a", "b"]}
            assert await ask(requester, "UPDATE", {"groups": ["a", "b", "a"]}, identity="user/ada") == (200, told)
            assert await ask(requester, "READ", type="org.amqpmesh.user", name="ada") == (200, told)
            assert (await ask(requester, "UPDATE", {"password": "another"}, type="user", name="ada"))[0] == 200
            async with connect(url, user="ada", password="another"):
                pass
            status, body = await ask(requester, "UPDATE", {"disabled": True}, type="user", name="ada")
            assert (status, body["disabled"]) == (200, True)
            with pytest.raises(ConnectionClosedError):
                await receiver.receive()
        assert (await ask(requester, "UPDATE", {"disabled": None}, type="user", name="ada"))[1]["disabled"] is False
        async with connect(url, user="ada", password="another"):
            assert await ask(requester, "DELETE", type="user", name="ada") == (204, {})
        with pytest.raises(SaslError):
            async with connect(url, user="ada", password="another"):
                raise AssertionError("the user is gone")
        assert await ask(requester, "READ", type="user", name="ada") == (404, "Not Found: there is no user ada")
        assert list(Users.load(file)) == ["eve"]
        assert router.statistics().router.changed == ()


REFUSED = [
    ("CREATE", "eve", NEW, 409, "there is a user eve already"),
    ("CREATE", "ada", {}, 400, "CREATE of a user needs a `password`"),
    ("CREATE", "ada", None, 400, "the body is no map"),
    ("CREATE", "ada", {"password": ""}, 400, "`password` is no string of 1 to"),
    ("CREATE", "ada", {"password": b"correct horse"}, 400, "`password` is no string of 1 to"),
    ("CREATE", "ada", {"password": "correct horse\n"}, 400, "`password` is no string of 1 to"),
    ("UPDATE", "eve", {"password": "correct horse \u0627a"}, 400, "a password that SASLprep refuses"),
    ("CREATE", "ada", {**NEW, "groups": ["g"] * (MOST_GROUPS + 1)}, 400, "`groups` is no list of"),
    ("CREATE", "ada", {**NEW, "groups": [1]}, 400, "`groups` is no string"),
    ("CREATE", "ada", {**NEW, "disabled": 1}, 400, "`disabled` is no boolean"),
    ("CREATE", "ada", {**NEW, "correct horse": 1}, 400, "a key is unknown; known are password"),
    ("CREATE", "ada", {**NEW, "listener": "own"}, 404, "there is no listener of that name with a file of users"),
    ("CREATE", "a\nb", NEW, 400, "`name` is no string"),
    ("CREATE", "x" * 256, NEW, 400, "`name` is no string"),
    ("CREATE", None, NEW, 400, "a `name` is missing"),
    ("CREATE", "late", NEW, 409, "the file has 1 users already: see runtime_users"),
    ("UPDATE", "eve", {}, 400, "the body has none of password, groups, disabled"),
    ("UPDATE", "ada", NEW, 404, "there is no user ada"),
    ("DELETE", "ada", None, 404, "there is no user ada"),
    ("READ", "ada", None, 404, "there is no user ada"),
    ("REGISTER", "ada", None, 405, "a user takes CREATE, READ, UPDATE, DELETE"),
]


async def test_what_cannot_be_done_is_refused_and_repeats_no_password(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    async with managed(door(file), runtime_users=1) as (_, requester):
        before = file.read_bytes()
        for operation, name, body, status, reason in REFUSED:
            named = {"type": "user", **({} if name is None else {"name": name})}
            got, told = await ask(requester, operation, body, **named)
            assert (got, reason in told) == (status, True), (operation, name, body, got, told)
            assert "horse" not in told
            assert str(tmp_path) not in told
        assert (await ask(requester, "UPDATE", {"disabled": True}, identity="listener/eve"))[0] in (400, 404)
        assert file.read_bytes() == before
        file.write_text("no users")
        status, told = await ask(requester, "UPDATE", {"disabled": True}, type="user", name="eve")
        assert (status, str(tmp_path) in told) == (409, False)
        file.unlink()
        assert (await ask(requester, "CREATE", NEW, type="user", name="ada"))[0] == 409


async def test_a_listener_is_named_if_several_have_users_of_their_own(tmp_path: Path) -> None:
    one, other, both = (door(tmp_path / f"{name}.toml", name) for name in ("one", "other", "one"))
    doors = [one, other, ListenerConfig(url=LOOPBACK, name="both", sasl=("SCRAM-SHA-256",), users=both.users)]
    async with managed(*doors) as (router, requester):
        status, reason = await ask(requester, "CREATE", NEW, type="user", name="ada")
        assert (status, reason.endswith("say `listener`, one of one, other, both")) == (400, True)
        status, body = await ask(requester, "CREATE", {**NEW, "listener": "one"}, type="user", name="ada")
        assert (status, body["listeners"]) == (201, ["one", "both"])
        async with connect(router.listeners[3].url, user="ada", **NEW):
            pass
        assert "ada" not in Users.load(tmp_path / "other.toml")
        assert (await ask(requester, "DELETE", type="user", name="ada", listener="other"))[0] == 404
        assert (await ask(requester, "DELETE", type="user", name="ada", listener="both"))[0] == 204


async def test_a_change_reads_a_file_once_and_compares_its_users_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, read, compared = tmp_path / "users.toml", list[Path](), list[threading.Thread]()
    load, user_changes = Users.load, applying.user_changes

    def loaded(*files: Path, before: Users | None = None) -> Users:
        read.extend(files)
        return load(*files, before=before)

    def told(*given: Any) -> Any:
        compared.append(threading.current_thread())
        return user_changes(*given)

    async with managed(door(file), door(file, "side"), door(tmp_path / "other.toml", "other")) as (router, requester):
        monkeypatch.setattr(Users, "load", loaded)
        monkeypatch.setattr(applying, "user_changes", told)
        assert (await ask(requester, "CREATE", {**NEW, "listener": "side"}, type="user", name="ada"))[0] == 201
        for each in router.listeners[1:3]:
            async with connect(each.url, user="ada", **NEW):
                pass
        read_by_one = read.copy()
        await router.apply()
    assert read_by_one == [file]
    assert sorted(read[1:]) == sorted([file, tmp_path / "other.toml"]), "listeners of one file read it once"
    assert len(compared) == 2
    assert threading.main_thread() not in compared


async def test_a_user_of_several_files_is_changed_where_it_is(tmp_path: Path) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    add_user(first, "eve", "secret", 4096)
    add_user(second, "bob", "secret", 4096)
    listener = ListenerConfig(url=LOOPBACK, name="door", sasl=("SCRAM-SHA-256",), users=(first, second))
    async with managed(listener) as (router, requester):
        assert (await ask(requester, "CREATE", NEW, type="user", name="bob"))[0] == 409
        assert (await ask(requester, "UPDATE", {"groups": "g"}, type="user", name="bob"))[0] == 200
        assert (await ask(requester, "CREATE", NEW, type="user", name="ada"))[0] == 201
        for name, password in (("eve", "secret"), ("bob", "secret"), ("ada", NEW["password"])):
            async with connect(router.listeners[1].url, user=name, password=password):
                pass
        assert (await ask(requester, "READ", type="user", name="bob"))[1]["groups"] == ["g"]
    assert (list(Users.load(first)), Users.load(second).groups_of("bob")) == (["ada", "eve"], ("g",))


async def test_those_may_change_and_read_users_whom_the_policy_lets(tmp_path: Path) -> None:
    file, policy = tmp_path / "users.toml", tmp_path / "policy.toml"
    plain = ListenerConfig(url=LOOPBACK, name="plain")

    def let(*rights: str) -> None:
        policy.write_text(f'[[group]]\nname = "g"\nmay = ["dynamic"]\nmanage = {list(rights)}\n')

    let("write:user")
    config = RouterConfig(id="A", listeners=(plain, door(file)), policy=PolicyConfig(file=policy))
    async with (
        Router(config) as router,
        connect(router.listeners[0].url) as client,
        client.requester(ADDRESS) as requester,
    ):
        assert (await ask(requester, "CREATE", NEW, type="user", name="ada"))[0] == 201
        let("read:user")
        await router.apply()
        assert (await ask(requester, "READ", type="user", name="ada"))[0] == 200
        assert (await ask(requester, "DELETE", type="user", name="ada"))[0] == 403
        let("read:listener", "write:listener")
        await router.apply()
        for operation in ("CREATE", "READ", "UPDATE", "DELETE"):
            assert (await ask(requester, operation, NEW, type="user", name="ada"))[0] == 403
    # Users of a listener with `manage` could change everything.
    let("write:user")
    config = RouterConfig(id="A", listeners=(plain, door(file, manage=True)), policy=PolicyConfig(file=policy))
    async with (
        Router(config) as router,
        connect(router.listeners[0].url) as client,
        client.requester(ADDRESS) as requester,
    ):
        assert (await ask(requester, "UPDATE", NEW, type="user", name="ada"))[0] == 403
        assert (await ask(requester, "READ", type="user", name="ada"))[0] == 200


async def test_without_a_policy_those_alone_read_users_who_may_change_them(tmp_path: Path) -> None:
    plain = ListenerConfig(url=LOOPBACK, name="plain")
    async with (
        Router(id="A", listeners=[plain, door(tmp_path / "users.toml")]) as router,
        connect(router.listeners[0].url) as client,
        client.requester(ADDRESS) as requester,
    ):
        for operation in ("CREATE", "READ", "UPDATE", "DELETE"):
            assert await ask(requester, operation, NEW, type="user", name="eve") == (403, "Forbidden: not permitted")


async def test_a_password_that_others_can_read_is_refused(tmp_path: Path) -> None:
    far = ListenerConfig(url=LOOPBACK, name="far", manage=True)
    async with trio.open_nursery() as nursery, Router(id="A", listeners=[door(tmp_path / "users.toml")]) as router:
        roads = Roads(nursery)
        for host, status in (("192.0.2.1", 403), ("::1", 200)):
            roads.lead_to(partial(router.serve_stream, listener=far, host=host))
            async with roads.connect() as client, client.requester(ADDRESS) as requester:
                assert (await ask(requester, "UPDATE", NEW, type="user", name="eve"))[0] == status
                assert (await ask(requester, "UPDATE", {"groups": []}, type="user", name="eve"))[0] == 200


async def test_the_audit_log_tells_who_has_changed_which_user(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    async with managed(door(tmp_path / "users.toml"), audit=AuditConfig(file=file)) as (_, requester):
        await ask(requester, "CREATE", NEW, type="user", name="ada")
        await ask(requester, "UPDATE", NEW, type="user", name="ada")
        await ask(requester, "DELETE", type="user", name="ada")
    lines = [each for each in map(json.loads, file.read_text().splitlines()) if str(each.get("of")).startswith("user/")]
    assert [(each["event"], each["of"], each["source"], each["peer"]) for each in lines] == [
        (event, "user/ada", "management", "127.0.0.1")
        for event in ("user added", "user password changed", "user removed")
    ]
    assert "horse" not in file.read_text()


def test_a_password_is_not_shown_in_the_text_of_a_request() -> None:
    request = Message(NEW, application_properties={"operation": "CREATE", "type": "user", "name": "ada"})
    assert "horse" not in repr(user_request(request))


def test_other_requests_are_none_of_a_user() -> None:
    for named in ({"type": "listener", "name": "user"}, {"identity": "listener/user/x"}, {"name": "user/x"}, {}):
        assert user_request(Message(None, application_properties={"operation": "READ", **named})) is None
    with pytest.raises(RequestError, match="no listener has a file of users"):
        listeners_of(RouterConfig(), UserRequest("READ", "ada"))
