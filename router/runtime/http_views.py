"""The answers that the page needs beside entities: the client, the mesh, recent changes, drains and traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from amqpmesh.policies.access import Peer
from amqpmesh.policies.managing import CONFIDENTIAL, KINDS
from amqpmesh.router.http.entities import object_in
from amqpmesh.router.http.requests import (
    BAD_REQUEST,
    FORBIDDEN,
    NOT_ALLOWED,
    NOT_FOUND,
    READING,
    UNAVAILABLE,
    HttpError,
    as_json,
    refusal,
)
from amqpmesh.router.management import service
from amqpmesh.router.management.drain_requests import drain_request
from amqpmesh.router.management.entities import PREFIX
from amqpmesh.router.management.mesh_snapshot import neighbour_statistics
from amqpmesh.router.management.queries import AnswerError, entities_of, query
from amqpmesh.router.management.trace import KINDS as TRACED
from amqpmesh.router.management.trace import WAIT, events_request, start_request
from amqpmesh.router.message.content import Message
from amqpmesh.router.runtime.http_elsewhere import Elsewhere
from amqpmesh.router.runtime.http_rates import MeshRates
from amqpmesh.router.runtime.tracer import TracingPeer
from amqpmesh.topology.workers import worker_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.router.core import Core
    from amqpmesh.router.http.requests import Answer, Request
    from amqpmesh.router.http.visitors import Visitor
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.mesh.member import MeshMember
    from amqpmesh.router.runtime.management_node import ManagementNode
    from amqpmesh.router.runtime.snapshots import Snapshots
    from amqpmesh.router.telemetry.recent_changes import RecentChange

ROOT: Final = "/view/"
"""The path of all of them."""

CLIENT: Final = f"{ROOT}client"
"""The path of the client itself: any worker of a router knows it."""

ROUTERS: Final = 2000
"""Routers of a mesh that are told at most, and four links for each of them."""

STEP: Final = 100
"""Routers that one step looks at."""

NAMES: Final = frozenset({"client", "mesh", "neighbours", "rates", "changes", "cost", "drain", "traces"})
"""Their names."""

NEIGHBOUR: Final = f"{PREFIX}neighbour"

OF_NEIGHBOURS: Final = ("connection", "router", "cost", "remote_cost", "up", "reason")
"""The attributes of other routers' neighbours."""

VALUES: Final = frozenset({"from", "to", "user", "peer", "operation"})
"""Fields of operators' changes that only those see who may read everything."""

SENT: Final = 0.5
"""Seconds after which the answer to a drain has left."""

CHANGES: Final = 200
"""Changes in one answer at most."""


class PageViews:
    """These answers, made in the router's loop."""

    def __init__(self, core: Core, snapshots: Snapshots, management: ManagementNode) -> None:
        self._core = core
        self._snapshots = snapshots
        self._management = management
        self._elsewhere = Elsewhere(core, management)
        self._rates = MeshRates(core, Elsewhere(core, management))  # its requests put off none of clients

    async def answer(self, request: Request, visitor: Visitor) -> Answer:
        """Answer a request. Raises: HttpError."""
        name, _, rest = request.path.removeprefix(ROOT).partition("/")
        if request.method in READING:
            if name == "client" and not rest:
                return self._client(visitor)
            if name == "mesh" and not rest:
                return await self._mesh(request, visitor)
            if name == "rates" and not rest:
                _demand(not visitor.tenant and visitor.may_read("route") and visitor.may_read("neighbour"))
                return as_json({"links": await self._rates.look(visitor)})
            if name == "changes" and not rest:
                return self._changes(request, visitor)
            if name == "traces" and rest:
                asked = events_request(rest, _count(request.query, "after"))
                at = request.query.get("at")
                if at is not None:
                    _demand(all(map(visitor.may_read, TRACED)))
                    return _answered(await self._elsewhere.ask(at, asked, visitor))
                return self._traced(asked, visitor)
            if name == "neighbours" and not rest:
                return await self._neighbours_of(request.query.get("at", ""), visitor)
        elif request.method == "POST" and not rest:
            if name == "drain":
                return await self._drain(request, visitor)
            if name == "cost":
                return await self._cost(request, visitor)
            if name == "traces":
                return self._traced(_start(object_in(request)), visitor)
        if name in NAMES:
            raise HttpError(NOT_ALLOWED, "the method is not allowed here", ("Allow", "GET, HEAD, POST"))
        raise HttpError(NOT_FOUND, "there is no such page")

    def _client(self, visitor: Visitor) -> Answer:
        """Return the client, its rights, and the router that answers."""
        policy, worker = self._core.context.policy, self._core.context.config.worker
        numbers = () if worker is None else range(1, worker.count + 1)
        fields = visitor.fields
        return as_json(
            {
                "router": self._core.context.id,
                "workers": [] if worker is None else [worker_of(worker.name, each) for each in numbers],
                "user": fields.get("user"),
                "mechanism": fields.get("mechanism"),
                "tenant": visitor.tenant or None,
                "tenants": policy is not None and len(policy.tenants) > 1 and not visitor.tenant,
                "groups": list(fields.get("groups") or ()),  # type: ignore[call-overload]  # a tuple
                "reads": sorted(visitor.reads),
                "changes": sorted(visitor.changes),
                "mesh": self._core.mesh is not None and not visitor.tenant,
            }
        )

    # ----------------------------------------------------------------------------------------------------- the mesh

    async def _mesh(self, request: Request, visitor: Visitor) -> Answer:
        """Return the graph of the mesh, unless the client has it, and the connections of this router to neighbours."""
        _demand(not visitor.tenant and visitor.may_read("route") and visitor.may_read("neighbour"))
        mesh, recent = self._core.mesh, self._core.context.recent
        told: dict[str, Any] = {"router": self._core.context.id, "now": trio.current_time(), "neighbours": []}
        if mesh is None or recent is None:
            return as_json({**told, "version": 0, "routers": [self._lone()], "links": [], "left_out": 0})
        version = recent.graph_version
        told |= {"version": version, "neighbours": await self._snapshots.in_turns(_neighbours(mesh))}
        if _count(request.query, "known") != version:
            told |= await self._snapshots.in_turns(_graph(mesh))
        return as_json(told)

    def _lone(self) -> dict[str, object]:
        drains = self._core.departure.is_on
        return {"id": self._core.context.id, "distance": 0, "transit": True, "overload": drains}

    def _changes(self, request: Request, visitor: Visitor) -> Answer:
        """Return the changes of the last hour, the latest first."""
        _demand(not visitor.tenant and visitor.may_read("router"))
        recent, now = self._core.context.recent, self._core.context.wall_clock()
        found = [] if recent is None else recent.since(now, _count(request.query, "after"))
        # The configuration is for those who may read everything; others learn which of its keys has changed.
        hidden = frozenset() if visitor.reads >= frozenset(KINDS) - CONFIDENTIAL else VALUES
        rows = [
            {"number": each.number, "at": each.at, "event": each.event, "fields": _shown(each, hidden)}
            for each in found[:CHANGES]
        ]
        return as_json({"now": now, "changes": rows, "more": max(0, len(found) - CHANGES)})

    # ------------------------------------------------------------------------------------------ through the management

    async def _neighbours_of(self, router: str, visitor: Visitor) -> Answer:
        """Return the connections of another router to its neighbours."""
        _demand(not visitor.tenant and visitor.may_read("neighbour"))
        told = await self._elsewhere.ask(router, query(NEIGHBOUR, OF_NEIGHBOURS), visitor)
        if told.application_properties.get("statusCode") != service.OK:
            return _answered(told)
        try:
            return as_json({"router": router, "neighbours": entities_of(told)})
        except AnswerError as error:
            raise HttpError(UNAVAILABLE, f"that router {error}") from None

    async def _cost(self, request: Request, visitor: Visitor) -> Answer:
        """Change the cost of a connection of another router to a neighbour."""
        _demand(not visitor.tenant and visitor.may_change("neighbour"))
        given = object_in(request)
        number = given.get("connection")
        if given.keys() != {"at", "connection", "cost"} or not isinstance(number, int) or isinstance(number, bool):
            raise HttpError(BAD_REQUEST, "a cost at another router has at, connection and cost")
        properties = {"operation": "UPDATE", "type": NEIGHBOUR, "identity": f"neighbour/{number}"}
        asked = Message({"cost": given["cost"]}, application_properties=properties)
        return _answered(await self._elsewhere.ask(str(given["at"]), asked, visitor))

    async def _drain(self, request: Request, visitor: Visitor) -> Answer:
        _demand(not visitor.tenant and visitor.may_change("router"))
        given = object_in(request)
        if given.keys() - {"at", "cancel", "pace", "timeout"}:
            raise HttpError(BAD_REQUEST, "a drain has at, cancel, pace and timeout")
        asked = drain_request(cancel=given.get("cancel", False), pace=given.get("pace"), timeout=given.get("timeout"))
        if given.get("at") not in (None, self._core.context.id):
            return _answered(await self._elsewhere.ask(str(given["at"]), asked, visitor))
        told = await self._management.drain(asked, {**visitor.fields, "source": "http"})
        # The thread sends the answer; the process may end then.
        context, now = self._core.context, trio.current_time()
        self._core.change(lambda: context.schedule(now + SENT, self._management.answered), now)
        return _answered(told)

    def _traced(self, asked: Message, visitor: Visitor) -> Answer:
        policy, groups = self._core.context.policy, visitor.fields.get("groups")
        rights = None
        if policy is not None and isinstance(groups, tuple | list):
            rights = policy.vouched(Peer(container_id="", user=_text(visitor, "user"), tenant=visitor.tenant), groups)
        peer = TracingPeer(visitor.tenant, rights, policy is None or rights is not None, visitor.may_read)
        return _answered(self._management.trace(asked, peer))


def _demand(is_permitted: bool) -> None:
    if not is_permitted:
        raise HttpError(FORBIDDEN, "not permitted")


def _shown(change: RecentChange, hidden: frozenset[str]) -> dict[str, object]:
    return {name: value for name, value in change.fields.items() if change.of_mesh or name not in hidden}


def _text(visitor: Visitor, name: str) -> str | None:
    found = visitor.fields.get(name)
    return found if isinstance(found, str) else None


def _count(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "0")
    if not (text.isascii() and text.isdigit()) or len(text) > 15:
        raise HttpError(BAD_REQUEST, f"{name} is no count")
    return int(text)


def _start(given: Mapping[str, Any]) -> Message:
    if given.keys() - {"address", "next", "wait"}:
        raise HttpError(BAD_REQUEST, "a trace has address, next and wait")
    return start_request(given.get("address", ""), follows_next=given.get("next", False), wait=given.get("wait", WAIT))


def _answered(told: Message) -> Answer:
    """Return the answer of the management node as one of HTTP."""
    status = int(told.application_properties["statusCode"])
    if status == service.OK:
        return as_json(told.body)
    return refusal(status, str(told.application_properties["statusDescription"]))


def _neighbours(mesh: MeshMember) -> Steps[list[dict[str, object]]]:
    links = {link.adjacency: link for link in mesh.topology.neighbours()}
    found: list[dict[str, object]] = []
    for neighbour in list(mesh.neighbours.values()):
        link = links.get(neighbour)
        if link is not None:
            told = neighbour_statistics(mesh, neighbour, link, 0)
            found.append(
                {
                    "router": told.router,
                    "connection": told.connection,
                    "cost": told.cost,
                    "remote_cost": told.remote_cost,
                    "up": told.up,
                    "since": told.since,
                    "reason": told.reason,
                    "octets_in": told.octets_in,
                    "octets_out": told.octets_out,
                }
            )
        yield
    return found


def _graph(mesh: MeshMember) -> Steps[dict[str, object]]:
    """Return the routers and the links, with costs and distances without the surcharge of routers that drain."""
    from amqpmesh.topology.records import SURCHARGE  # a router of no mesh does not load the topology

    topology, graph = mesh.topology, mesh.topology.graph

    def cost_of(sender: str, receiver: str) -> int | None:
        cost = graph.cost(sender, receiver)
        return cost if cost is None or sender not in graph.overloaded else max(1, cost - SURCHARGE)

    ids = graph.routers()
    routers: list[dict[str, object]] = []
    links: list[tuple[str, str, int | None, int | None]] = []
    left_out = max(0, len(ids) - ROUTERS)
    for number, router in enumerate(ids[:ROUTERS]):
        if number % STEP == 0:
            yield
        distance = 0 if router == topology.router else topology.distance(router)
        routers.append(
            {
                "id": router,
                "distance": None if distance is None else distance % SURCHARGE,
                "transit": graph.is_transit(router),
                "overload": router in graph.overloaded,
            }
        )
        for other in graph.neighbours(router):
            if router < other and len(links) < 4 * ROUTERS:
                links.append((router, other, cost_of(router, other), cost_of(other, router)))
    return {"routers": routers, "links": links, "left_out": left_out}
