"""The `$management` node of a running router: a receiver within the router, over its own connection."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import trio

from amqpmesh.policies.managing import CONFIDENTIAL, Manage
from amqpmesh.policies.tenants import OPERATOR
from amqpmesh.router.access.rights import NOT_PERMITTED, check_address, may_change, may_read
from amqpmesh.router.access.vouched import VouchedPeer, may_answer_unknown, vouched_peer
from amqpmesh.router.amqp.codec.value_limits import FEW_VALUES, MAX_VALUES
from amqpmesh.router.amqp.errors import AmqpMeshError, LinkDetachedError, SessionEndedError
from amqpmesh.router.amqp.standard.definitions import AmqpCondition
from amqpmesh.router.attach.explanation import explain
from amqpmesh.router.audit.trail import shown
from amqpmesh.router.client.connections.in_process import InProcess
from amqpmesh.router.client.delivery import Delivery
from amqpmesh.router.client.factory import LinkFactory
from amqpmesh.router.client.links.link_manager import LinkManager
from amqpmesh.router.client.requester import Requester
from amqpmesh.router.config.file import ListenerConfig
from amqpmesh.router.endpoint_setup import TENANT
from amqpmesh.router.incremental import Steps
from amqpmesh.router.logs import event_log
from amqpmesh.router.management import service, user_requests, views
from amqpmesh.router.management.config_requests import APPLY, CONFIG
from amqpmesh.router.management.drain_requests import DRAIN
from amqpmesh.router.management.edit_requests import COSTLY, ConfigEdit, CostEdit, config_edit, cost_edit
from amqpmesh.router.management.known_tools import requests as known_tools
from amqpmesh.router.management.known_tools.changes import known_change
from amqpmesh.router.management.policy_upload import PUSH, PolicyUpload
from amqpmesh.router.management.requested_changes import kind_of, remove, set_cost
from amqpmesh.router.management.trace import TRACE
from amqpmesh.router.management.upgrade_requests import UPGRADE
from amqpmesh.router.management.user_requests import UserRequest, user_request
from amqpmesh.router.management.views import TenantViews, View
from amqpmesh.router.management.why import KIND, WHY, question_of
from amqpmesh.router.message.content import Message
from amqpmesh.router.model.connections import ConnectionRecord, brought_by
from amqpmesh.router.model.refusal import RefusedError
from amqpmesh.router.runtime.driver import Driver
from amqpmesh.router.runtime.noted_changes import note_change
from amqpmesh.router.runtime.snapshots import PAGES_TIME, SNAPSHOT_TIME, Snapshot, Snapshots
from amqpmesh.router.runtime.tracer import Tracer, TracingPeer
from amqpmesh.router.statistics.router_statistics import Costly, Removable

log = event_log.EventLog("amqpmesh.io")

CREDIT = 4
"""Requests that may wait here. Others wait at their senders, so a new client waits behind few requests only."""

MAX_REQUEST_SIZE = 8 * 2**10
"""Octets of a request at most: requests are short, and one of at most `FEW_VALUES` values is decoded at once."""

MAX_REPLY_SIZE = 2**20
"""Octets of an answer of another router at most."""

REPLY_TIME = 5.0
"""Seconds to send an answer. A client that accepts no answer must not stop the requests of others."""

FAULT_PAUSE = 1.0
"""Seconds before the node attaches again after an internal error ended its link: a permanent error costs a few log
lines a second at most.
"""


class _Asker(NamedTuple):
    """The sender of a request."""

    tenant: str
    connection: ConnectionRecord | None
    """None: it is a client of another router."""
    vouched: VouchedPeer | None
    """The client as that router describes it; None: it is not believed."""


_Respond: TypeAlias = Callable[[Message, View, service.Changes | None], Steps[Message]]
"""A function that answers a request about entities, in steps."""


class ManagementNode(LinkFactory):
    """The management node: it answers one request after the other."""

    def __init__(
        self,
        listener: ListenerConfig,
        snapshots: Snapshots,
        take_policy: Callable[[bytes, Mapping[str, object]], Awaitable[str | None]],
        change_config: Callable[[Message, Mapping[str, object]], Awaitable[Message]],
        drain: Callable[[Message, Mapping[str, object]], Awaitable[Message]],
        answered: Callable[[], object],
    ) -> None:
        """Args: listener: the limits of the node's connection. snapshots: of the router.
        take_policy: puts a policy in force, given its sender for the audit log; returns the
        reason why it is not. change_config: answers a request to change the configuration, given its sender.
        drain: moves the clients away, given the same. answered: is called after each answer.
        """
        self._take_policy = take_policy
        self._change_config = change_config
        self._drain = drain
        self._answered = answered
        self._upload = PolicyUpload()
        self._inside = InProcess(listener, own=True)
        self._snapshots = snapshots
        self._driver: Driver | None = None
        self._start: Callable[[Callable[[], Awaitable[None]]], object] | None = None
        self._ended = False
        self._tracer: Tracer | None = None

    @property
    def _link_manager(self) -> LinkManager:
        return self._inside

    def begin(self, driver: Driver, start: Callable[[Callable[[], Awaitable[None]]], object]) -> None:
        """Create the node; the router has started, and `serve` will answer requests."""
        self._driver = driver
        self._start = start
        driver.core.context.nodes.make_own(service.ADDRESS)
        self._inside.begin(driver, start)

    def end(self) -> None:
        """Stop; the router is about to end."""
        self._ended = True
        self._inside.end()

    async def serve(self) -> None:
        """Answer requests on one link after the other until the router ends. Raises: nothing; internal errors are
        logged.
        """
        assert self._driver is not None
        async with trio.open_nursery() as nursery:
            self._tracer = Tracer(self, self._driver, nursery)
            while not self._ended:
                try:
                    await self._serve_link()
                except Exception as error:
                    if not self._ended:
                        log.error("internal error", exception=error, address=service.ADDRESS)
                        await trio.sleep(FAULT_PAUSE)
            nursery.cancel_scope.cancel()

    async def _serve_link(self) -> None:
        async with self.receiver(
            service.ADDRESS, credit=CREDIT, max_message_size=MAX_REQUEST_SIZE, max_values=FEW_VALUES
        ) as requests:
            async for delivery in requests:
                await self._answer(delivery)

    async def _answer(self, delivery: Delivery) -> None:
        self._upload.forget(trio.current_time())
        try:
            asking = self._asking(delivery)
            if delivery.message.reply_to is None:
                delivery.reject("amqp:invalid-field", "there is no reply-to")
                return
            if asking is None or not self._may_have_answer(asking, delivery.message.reply_to):
                self._audit_refusal(delivery.message, asking, "no answer may go there")
                delivery.reject(AmqpCondition.UNAUTHORIZED_ACCESS, NOT_PERMITTED)
                return
            response = await self._response(delivery.message, asking)
            delivery.accept()
            if response.application_properties["statusCode"] == service.FORBIDDEN:
                self._audit_refusal(delivery.message, asking, response.application_properties["statusDescription"])
            await self._reply(delivery, response, asking.tenant)
        except AmqpMeshError as error:
            # An unknown message-format, or an answer that cannot be sent. If the connection has ended, the next request
            # raises.
            if not delivery.is_decided:
                delivery.reject("amqp:not-implemented", str(error))
        except Exception as error:
            log.error("internal error", exception=error, address=service.ADDRESS)
            if not delivery.is_decided:
                delivery.modify(delivery_failed=True)
        finally:
            self._answered()

    async def _response(self, request: Message, asking: _Asker) -> Message:
        operation = request.application_properties.get("operation")
        if operation == PUSH:
            return await self._pushed(request, asking)
        if operation in (APPLY, UPGRADE):
            return await self._applied(request, asking)
        if operation == TRACE:
            return self._traced(request, asking)
        if operation == CONFIG:
            return await self._shown(request, asking)
        if operation == DRAIN:
            return await self._drained(request, asking)
        if operation == WHY:
            return self._explained(request, asking, await self._view(asking, await self._snapshots.take(SNAPSHOT_TIME)))
        try:
            if (known := known_change(request)) is not None:
                return known.answered(request, await self._response(known.request, asking))
            if known_tools.asks(request):
                return await self._told(request, asking, known_tools.respond)
            user = user_request(request)
            edit = config_edit(request) if user is None else None
        except service.RequestError as refusal:
            return service.refused(request, refusal)
        if user is not None:
            return await self._user(request, user, asking)
        if edit is not None:
            return await self._edited(request, edit, asking)
        cost = cost_edit(request) if self._driver is not None and self._driver.core.context.config.worker else None
        if cost is not None:
            return await self._cost_changed(request, cost, asking)
        return await self._told(request, asking, service.respond)

    async def _told(self, request: Message, asking: _Asker, respond: _Respond) -> Message:
        """Answer a request about entities."""
        seen = await self._snapshots.take(PAGES_TIME if service.goes_on(request) else SNAPSHOT_TIME)
        view = await self._view(asking, seen)
        return await self._snapshots.in_turns(respond(request, view, self._changes(asking, seen.parts)))

    async def _reply(self, delivery: Delivery, response: Message, tenant: str) -> None:
        assert response.to is not None
        with trio.move_on_after(REPLY_TIME):
            if not tenant:
                await delivery.reply(response)
                return
            # The address is refused, or too long: the asking client has chosen it.
            with suppress(LinkDetachedError, SessionEndedError):
                await self._inside.reply(response.to, response.encode(), settled=True, tenant=tenant)

    async def _pushed(self, request: Message, asking: _Asker) -> Message:
        """Take a piece of a policy; after the last one, put the policy in force."""
        if not self._may_change(asking, "policy"):
            return service.refused(request, service.RequestError(service.FORBIDDEN, "not permitted"))
        try:
            data = self._upload.take(request, trio.current_time())
            reason = None if data is None else await self._take_policy(data, self._named(asking))
            if reason is not None:
                raise service.RequestError(service.CONFLICT, reason)
        except service.RequestError as refusal:
            return service.refused(request, refusal)
        if data is not None:
            self._snapshots.drop()
        return service.answer(request, service.OK, "OK", {"complete": data is not None})

    async def drain(self, request: Message, by: Mapping[str, object]) -> Message:
        """Move the clients of the router away, or cancel that, for a sender who may."""
        response = await self._drain(request, by)
        self._snapshots.drop()
        return response

    def answered(self) -> None:
        """Note that the answer to `drain` has left: it may have asked for the end of the process."""
        self._answered()

    def requester_at(self, name: str, address: str, tenant: str = "") -> Requester:
        """Return a requester with a link of this name, in a tenant, such as one to another router's node."""
        replies = f"{name}-replies", 1, MAX_REPLY_SIZE, MAX_VALUES
        return Requester(self._inside, name, address, replies, {TENANT: tenant} if tenant else None)

    def trace(self, request: Message, peer: TracingPeer) -> Message:
        """Begin a trace, or tell what it has found. Args: peer: its sender."""
        assert self._tracer is not None
        return self._tracer.answer(request, peer)

    def _explained(self, request: Message, asking: _Asker, view: View) -> Message:
        """Answer the question what the router makes of an address, and whether a peer may use it.

        The peer is the asking client, unless the question names one. For that, and to name a tenant, a client has to be
        permitted to read the policy, which is the operator's.
        """
        assert self._driver is not None
        core, tenant = self._driver.core, asking.tenant
        rights = asking.vouched.rights if asking.vouched is not None else None
        if asking.connection is not None:
            rights = asking.connection.rights
        admitted: bool | None = None
        try:
            asked = question_of(request)
            names_other = asked.peer is not None or asked.tenant is not None
            if not view.may_read(KIND) or (names_other and (tenant or not view.may_read("policy"))):
                raise service.RequestError(service.FORBIDDEN, "not permitted")
        except service.RequestError as refusal:
            return service.refused(request, refusal)
        if names_other:
            rights, tenant = None, "" if asked.tenant in (None, OPERATOR) else str(asked.tenant)
        if asked.peer is not None and core.context.policy is not None:
            found = core.context.policy.admit(asked.peer)
            admitted = found is not None
            if found is not None:
                tenant, rights = found.peer.tenant, found.rights
        is_operator = not asking.tenant
        facts = explain(
            core.context, core.lookup, tenant, asked.address, sends=asked.sends, rights=rights, for_operator=is_operator
        )
        return service.answer(request, service.OK, "OK", {"tenant": tenant or OPERATOR, "admitted": admitted, **facts})

    def _traced(self, request: Message, asking: _Asker) -> Message:
        """Begin a trace, or tell what it has found."""
        assert self._driver is not None
        context, record, vouched = self._driver.core.context, asking.connection, asking.vouched
        rights = vouched.rights if vouched is not None else None if record is None else record.rights

        def may_read_kind(kind: str) -> bool:
            if vouched is not None:
                return vouched.may_read_kind(kind)
            return record is None or may_read(context, record, kind)

        is_known = vouched is not None or record is not None
        return self.trace(request, TracingPeer(asking.tenant, rights, is_known, may_read_kind))

    async def _applied(self, request: Message, asking: _Asker) -> Message:
        """Apply the configuration file, or upgrade the router. It is for those alone who may change everything."""
        if not self._may_change_all(asking):
            return service.refused(request, service.RequestError(service.FORBIDDEN, "not permitted"))
        response = await self._change_config(request, self._named(asking))
        self._snapshots.drop()
        return response

    async def _edited(self, request: Message, edit: ConfigEdit, asking: _Asker) -> Message:
        """Change a table of the configuration, which is the operator's."""
        assert self._driver is not None
        needs_all = edit.gives_rights(self._driver.core.context.config)
        if not (self._may_change_all(asking) if needs_all else self._may_change(asking, edit.kind.kind)):
            return service.refused(request, service.RequestError(service.FORBIDDEN, "not permitted"))
        response = await self._change_config(request, self._named(asking))
        self._snapshots.drop()
        return response

    async def _cost_changed(self, request: Message, edit: CostEdit, asking: _Asker) -> Message:
        """Change a cost of a listener or connector, in all workers; one of them may have the connector."""
        kinds = COSTLY if edit.kind is None else (edit.kind,)
        if not all(self._may_change(asking, kind) for kind in kinds):
            return service.refused(request, service.RequestError(service.FORBIDDEN, "not permitted"))
        response = await self._change_config(request, self._named(asking))
        self._snapshots.drop()
        return response

    async def _user(self, request: Message, wanted: UserRequest, asking: _Asker) -> Message:
        """Change a user, or tell of one. Users of a listener that permits all changes could make all of them."""
        assert self._driver is not None
        try:
            may_read = not wanted.is_change and self._may_read_by_policy(asking, user_requests.KIND)
            if not (may_read or self._may_change(asking, user_requests.KIND)):
                raise service.RequestError(service.FORBIDDEN, "not permitted")
            listeners = user_requests.listeners_of(self._driver.core.context.config, wanted)
            if wanted.is_change and any(each.manage for each in listeners) and not self._may_change_all(asking):
                raise service.RequestError(service.FORBIDDEN, "not permitted")
            if wanted.password is not None and not user_requests.is_confidential(asking.connection):
                raise service.RequestError(service.FORBIDDEN, user_requests.IN_CLEAR)
        except service.RequestError as refusal:
            return service.refused(request, refusal)
        response = await self._change_config(request, self._named(asking))
        self._snapshots.drop()
        return response

    async def _shown(self, request: Message, asking: _Asker) -> Message:
        """Return the configuration: to those who may change it, and to those whom a policy lets read everything."""
        if not (self._may_change_all(asking) or self._may_read_by_policy(asking, None)):
            return service.refused(request, service.RequestError(service.FORBIDDEN, "not permitted"))
        return await self._change_config(request, self._named(asking))

    def _may_read_by_policy(self, asking: _Asker, kind: str | None) -> bool:
        """Tell whether a policy lets the sender read what not all may read. Args: kind: of entities; None: all."""
        assert self._driver is not None
        rights, context = None, self._driver.core.context
        if asking.vouched is not None:
            rights = asking.vouched.rights
        elif (
            asking.connection is not None and context.policy is not None and may_read(context, asking.connection, kind)
        ):
            rights = asking.connection.rights
        return not asking.tenant and rights is not None and rights.manage(Manage.READ, kind) is not None

    async def _drained(self, request: Message, asking: _Asker) -> Message:
        """Move the clients of the router away, or cancel that."""
        if not self._may_change(asking, "router"):
            return service.refused(request, service.RequestError(service.FORBIDDEN, "not permitted"))
        return await self.drain(request, self._named(asking))

    def _may_change_all(self, asking: _Asker) -> bool:
        assert self._driver is not None
        if asking.tenant:
            return False
        if asking.vouched is not None:
            return asking.vouched.may_change_all
        return asking.connection is not None and may_change(self._driver.core.context, asking.connection)

    def _may_change(self, asking: _Asker, kind: str) -> bool:
        """Tell whether the sender of a request may change what is the operator's. Args: kind: the type of entities."""
        assert self._driver is not None
        if asking.tenant:
            return False
        if asking.vouched is not None:
            return asking.vouched.may_change_kind(kind)
        return asking.connection is not None and may_change(self._driver.core.context, asking.connection, kind)

    def _asking(self, delivery: Delivery) -> _Asker | None:
        """Return the sender of a request; None: its connection is gone."""
        assert self._driver is not None
        context = self._driver.core.context
        sender = brought_by(context.nodes, service.ADDRESS, delivery.tag)
        if sender is None:
            return None
        vouched = None
        if sender.connection is None:
            vouched = vouched_peer(context, delivery.message.delivery_annotations, delivery.payload)
            if vouched is not None and vouched.peer.tenant != sender.tenant:
                vouched = None
        return _Asker(sender.tenant, sender.connection, vouched)

    def _may_have_answer(self, asking: _Asker, address: str) -> bool:
        """Tell whether the answer may go to an address: the sender of the request must be allowed to send there.

        If the sender is at another router, and there is a policy, answers go to dynamic nodes only.
        """
        assert self._driver is not None
        core = self._driver.core
        if core.context.policy is None:
            return True
        try:
            place = core.lookup.place(address)
            if asking.vouched is not None:
                return asking.vouched.may_read and asking.vouched.may_send(core.context, place.name, place.container)
            if asking.connection is None:
                return may_answer_unknown(core.context, place.name, place.container)
            check_address(core.context, asking.connection, place.name, place.container, sends=True)
        except RefusedError:
            return False
        return True

    async def _view(self, asking: _Asker, seen: Snapshot) -> View:
        """Return what the sender of a request may see of the snapshot.

        The router of a client elsewhere has checked its right to read, which is for entities of all types.
        """
        assert self._driver is not None
        context, record = self._driver.core.context, asking.connection
        rights: tuple[views.Permits, ...] = (lambda kind: kind not in CONFIDENTIAL,)
        if asking.vouched is not None:
            rights = asking.vouched.may_read_kind, asking.vouched.may_change_kind
        elif record is not None:
            rights = (lambda kind: may_read(context, record, kind)), (lambda kind: may_change(context, record, kind))
        if not asking.tenant:
            return views.whole(seen.statistics, *rights)
        return views.of_tenant(await self._snapshots.in_turns(seen.parts.of(asking.tenant)), *rights)

    def _changes(self, asking: _Asker, parts: TenantViews) -> service.Changes | None:
        """Return functions that make changes for the sender of a request; None: the sender may make none."""
        driver, record = self._driver, asking.connection
        assert driver is not None
        who: dict[str, object]
        if asking.vouched is not None:
            if not asking.vouched.may_change:
                return None
            who = {"router": asking.vouched.router, "host": asking.vouched.peer.host, "user": asking.vouched.peer.user}
        elif record is None:
            return None
        else:
            who = {"connection": record.number, "host": record.host, "user": record.peer.user}

        def change(identity: str, told: Costly, cost: int) -> None:
            set_cost(driver.core, told, cost, trio.current_time())
            log.info("cost changed", of=identity, cost=cost, **who)
            note("cost changed", of=identity, **{"from": told.cost, "to": cost})

        def end(told: Removable) -> None:
            kind = kind_of(told)
            if asking.tenant:
                told = parts.unmasked(kind, told)
            remove(driver.core, told, trio.current_time())
            event = f"{kind} removed"
            log.info(event, of=f"{kind}/{told.number}", **who)
            note(event, of=f"{kind}/{told.number}")

        def note(event: str, **fields: object) -> None:
            driver.settle()
            self._snapshots.drop()
            note_change(driver.core.context, event, **fields, **self._named(asking))

        return service.Changes(change, end)

    def _named(self, asking: _Asker) -> dict[str, object]:
        """Return the fields of the audit log on the sender of a request, and on the router that vouches for it."""
        source: dict[str, object] = {"source": "management"}
        if asking.connection is not None:
            return {**source, **shown(asking.connection)}
        if asking.vouched is None:
            return source
        peer, rights = asking.vouched.peer, asking.vouched.rights
        named = {"via": asking.vouched.router, "peer": peer.host or None, "container": peer.container_id or None}
        groups = None if rights is None else rights.groups
        return {**source, **named, "user": peer.user, "tenant": peer.tenant or None, "groups": groups}

    def _audit_refusal(self, request: Message, asking: _Asker | None, reason: object) -> None:
        """Note that a request is refused, unless its sender is gone."""
        assert self._driver is not None
        audit = self._driver.core.context.audit
        if audit is None or asking is None:
            return
        properties, fields = request.application_properties, self._named(asking)
        fields |= {"operation": properties.get("operation"), "type": properties.get("type")}
        host, user = (str(fields.get(name) or "") for name in ("peer", "user"))
        audit.of_host("request refused", host, user=user or None, reason=str(reason), rule=fields)
