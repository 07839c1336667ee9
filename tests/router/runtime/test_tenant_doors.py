"""Each request that a router answers, from a client of a tenant: the same answer with another tenant and without."""

from __future__ import annotations

import json
import re
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

import trio

from amqpmesh import ListenerConfig, PolicyConfig, Router, connect
from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.config.users import Users
from amqpmesh.router.management.entities import PREFIX, TYPES
from amqpmesh.router.management.known_tools.tables import PREFIXES, TABLES
from amqpmesh.router.management.service import ADDRESS
from amqpmesh.router.message.content import Message
from amqpmesh.router.message.outcomes import OutcomeError
from tests.support.peers.http_client import HttpClient, basic
from tests.support.worlds.two_stories import SHARED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from amqpmesh.router.client.connect import Connection

POLICY: Final = "".join(
    f"""
    [[tenant]]
    name = "{tenant}"
    match = [{{ user = "{tenant}-*" }}]
    exports = [{{ pattern = "given/#", to = "{other}", as = "of/{other}/#", may = ["send"] }}]
    [[group]]
    tenant = "{tenant}"
    name = "all"
    send = ["#"]
    receive = ["#"]
    may = ["dynamic", "anonymous", "copy", "container"]
    manage = ["write"]
    """
    for tenant, other in (("red", "none"), ("green", "none"), ("none", "red"))
)
USERS: Final = ("red-ann", "green-bob")
GREEN: Final = ("green/secret", "shared", "green-bob")
OPERATIONS: Final = ("GET-LOG", "GET-MGMT-NODES", "CONFIG", "APPLY", "UPGRADE", "DRAIN", "PUSH", "REGISTER")
#: Operations about something with a name.
NAMING: Final = ("WHY", "TRACE", "CREATE", "READ", "UPDATE", "DELETE")
KINDS: Final = (*TYPES, *(f"{PREFIX}{each}" for each in ("user", "log")), *(f"{PREFIXES[0]}{each}" for each in TABLES))
PATHS: Final = (
    *("/api", "/metrics", "/metrics?tenant=green", "/metrics?address=%23&tenant=green", "/view/client", "/view/mesh"),
    *("/view/changes", "/view/neighbours?at=A", f"/view/traces/{'0' * 32}", "/view/drain", "/view/cost"),
    *(f"/api/{each.removeprefix(PREFIX)}?count=50&filter=green&sort=-name" for each in TYPES),
    *(f"/api/{kind}/{name}" for kind in ("address", "node", "link", "user") for name in ("green%2Fsecret", "shared")),
)
#: Numbers, times, and ids differ from run to run; some times, and the count of what the router decided about its own
#: messages, are there or not.
_MASKED: Final = re.compile(
    r"""\{(?:"router's own message": [\w(]*\d+\)?)?\}|\b[0-9a-f]{12,}\b|\b(?:\d[\d.e+]*|None|null)\b"""
)


def requests() -> Iterator[Message]:
    """Yield requests about what another tenant has, and about everything."""
    for operation in OPERATIONS:
        yield Message(None, application_properties={"operation": operation})
    for operation in NAMING:
        for name in GREEN:
            for kind in (f"{PREFIX}address", f"{PREFIX}connection", f"{PREFIX}user", f"{PREFIX}listener"):
                named = {"operation": operation, "type": kind, "name": name, "wait": 0.01, "next": True}
                yield Message(None, application_properties={**named, "send": True})
            identity = {"operation": operation, "identity": f"address@green/{name}"}
            yield Message({"adminStatus": "deleted"}, application_properties=identity)
    for kind in KINDS:
        yield Message(None, application_properties={"operation": "QUERY", "entityType": kind})
    yield Message({"tenant": "green"}, application_properties={"operation": "WHY", "type": "address", "name": "shared"})
    yield Message({"user": "green-bob"}, application_properties={"operation": "WHY", "type": "address", "name": "x"})
    yield Message(None, application_properties={"operation": "TRACE", "trace": "0" * 32})


def _without_decisions(given: dict[str, Any]) -> dict[str, Any]:
    """Leave out what depends on how long something takes."""
    return {name: value for name, value in given.items() if name not in SHARED}


async def act(client: Connection, stack: AsyncExitStack, mark: str) -> None:
    """Let a client have some of everything, by names of its own and by names that others have, too."""
    for name in ("shared", f"{mark}/secret", None):
        await stack.enter_async_context(client.receiver(name, name=f"{mark}-{name}"))
    sender = await stack.enter_async_context(client.sender(None))
    for to in ("shared", f"{mark}/secret", f"{mark}/nobody"):
        with suppress(AmqpMeshError, OutcomeError):  # without a receiver
            await sender.send(Message(f"{mark} message", to=to), settled=True)


async def answers(tmp_path: Path, users: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return what `red-ann` asks and is told, while those users have connections, links and messages."""
    file, rules = tmp_path / "users.toml", tmp_path / "policy.toml"
    known = Users({})
    for user in USERS:
        known = known.add(user, "right", 4096)
    known.save(file)
    rules.write_text(POLICY, encoding="utf-8")
    listeners = [
        ListenerConfig(url=f"{scheme}://127.0.0.1:0", role=role, sasl=("PLAIN",), users=file, insecure=True)
        for scheme, role in (("http", "http"), ("amqp", "normal"))
    ]
    found: list[tuple[str, str]] = []
    async with (
        Router(id="A", drain=0.1, listeners=listeners, policy=PolicyConfig(file=rules)) as router,
        AsyncExitStack() as stack,
    ):
        clients: dict[str, Connection] = {}
        for user in users:
            peer = connect(router.listeners[1].url, user=user, password="right", insecure=True, id=user)
            clients[user] = await stack.enter_async_context(peer)
            await act(clients[user], stack, user.partition("-")[0])
        management = await stack.enter_async_context(clients["red-ann"].requester(ADDRESS))
        for request in requests():
            told = await management.request(request)
            found.append((str(request.application_properties), f"{told.application_properties} {told.body}"))
        http, login = HttpClient.of(router), basic("red-ann", "right")
        for path in PATHS:
            answer = await http.get(path, authorization=login)
            said = answer.body.decode()
            if said.startswith("{"):
                said = str(json.loads(said, object_hook=_without_decisions))
            found.append((path, f"{answer.status} {said}"))
        change = {"authorization": login, "x_amqpmesh_change": "1", "content_type": "application/json"}
        for path in ("/api/address/green%2Fsecret", "/api/connection/1", "/api/link/1"):
            for method in ("PATCH", "DELETE"):
                answer = await http.ask(method, path, json.dumps({"cost": 2}).encode(), **change)
                found.append((f"{method} {path}", f"{answer.status} {answer.body.decode()}"))
        assert all(each.is_connected for each in clients.values())
    return found


def test_each_answer_is_the_same_with_another_tenant_and_without(tmp_path: Path) -> None:
    alone: Any = trio.run(answers, tmp_path, USERS[:1])
    among: Any = trio.run(answers, tmp_path, USERS)
    assert len(alone) == len(among) > 150
    for (asked, one), (_, other) in zip(alone, among, strict=True):
        assert _MASKED.sub("*", other) == _MASKED.sub("*", one), asked
        assert "green" in asked or "green" not in other, asked
    assert any("red/secret" in each for _, each in among)
