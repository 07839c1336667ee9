"""Answers to TRACE: a message of the router's own, or the next one that comes, is followed for a client."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from amqpmesh.router.access.rights import NOT_PERMITTED, lack
from amqpmesh.router.address_syntax import local_key
from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.delivery import tracing
from amqpmesh.router.endpoint_setup import TENANT
from amqpmesh.router.logs import event_log
from amqpmesh.router.management import service
from amqpmesh.router.management.trace import KINDS, MARK, TraceQuestion, TraceStart, events_of, question_of
from amqpmesh.router.message.content import Message
from amqpmesh.router.model.blocked import why_address
from amqpmesh.router.model.refusal import RefusedError
from amqpmesh.router.telemetry.traces import ID_OCTETS

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.policies.rights import Rights
    from amqpmesh.router.amqp.codec.types import Value
    from amqpmesh.router.client.factory import LinkFactory
    from amqpmesh.router.context import Context
    from amqpmesh.router.runtime.driver import Driver
    from amqpmesh.router.telemetry.traces import Trace

log = event_log.EventLog("amqpmesh.io")

LOOK: Final = 0.1
"""Seconds between two looks why a message of the router's own has no credit."""

WAITING: Final = "credit"
"""The reason for a wait of which the router knows no other."""


class TracingPeer(NamedTuple):
    """The client that asks, as far as it matters for traces."""

    tenant: str
    rights: Rights | None
    """None: no policy rules it."""
    is_known: bool
    """False: it is at another router, which has not vouched for it, or is not believed."""
    may_read: Callable[[str], bool]
    """Tells whether it may read entities of a type."""


class Tracer:
    """The traces that clients of one router ask for."""

    def __init__(self, links: LinkFactory, driver: Driver, nursery: trio.Nursery) -> None:
        """Args: links: within the process, for the messages of traces. nursery: of the tasks that send them."""
        self._links = links
        self._driver = driver
        self._nursery = nursery

    @property
    def _context(self) -> Context:
        return self._driver.core.context

    def answer(self, request: Message, peer: TracingPeer) -> Message:
        """Answer a request."""
        try:
            asked = question_of(request)
            # With a policy, a client of another router has rights here only as far as that router vouches for it.
            is_judged = self._context.policy is not None
            if (is_judged and not peer.is_known) or not all(map(peer.may_read, KINDS)):
                raise service.RequestError(service.FORBIDDEN, NOT_PERMITTED)
            body = self._told(asked, peer) if isinstance(asked, TraceQuestion) else self._begun(asked, peer)
        except service.RequestError as refusal:
            return service.refused(request, refusal)
        return service.answer(request, service.OK, "OK", body)

    def _told(self, asked: TraceQuestion, peer: TracingPeer) -> dict[str, Value]:
        trace = self._context.traces.find(asked.trace)
        # Of a trace of another tenant nobody learns that it is there.
        if trace is None or peer.tenant not in ("", trace.tenant):
            raise service.RequestError(service.NOT_FOUND, "there is no such trace")
        trace.touched = trio.current_time()
        if asked.end and trace.pending:
            self._driver.core.change(
                lambda: tracing.give_up(self._context, trace, "not awaited any more"), trace.touched
            )
            self._driver.settle()
        return {"router": self._context.id, **events_of(trace, asked.after, peer.tenant)}

    def _begun(self, asked: TraceStart, peer: TracingPeer) -> dict[str, Value]:
        core, context, now = self._driver.core, self._context, trio.current_time()
        try:
            place = core.lookup.place(asked.address)
        except RefusedError as refused:
            raise service.RequestError(service.BAD_REQUEST, str(refused.error.description)) from None
        if place.is_reserved or not place.name:
            raise service.RequestError(service.BAD_REQUEST, "only addresses of clients can be traced")
        rights = None if asked.next else peer.rights
        if rights is not None and lack(context, rights, place.name, place.container, sends=True) is not None:
            raise service.RequestError(service.FORBIDDEN, NOT_PERMITTED)
        is_here = place.container in (None, *context.config.names)
        name = local_key(context.id, place.name) if is_here else place.address
        if asked.next and (peer.tenant, name) in context.traces.addresses:
            raise service.RequestError(service.CONFLICT, "another trace awaits the next message there")
        trace = context.traces.begin(secrets.token_bytes(ID_OCTETS), peer.tenant, now, context.policy)
        if trace is None:
            raise service.RequestError(service.CONFLICT, "there are too many traces: [tracing] traces")
        trace.pending = True
        trace.note(now, "begun", next=asked.next, address=asked.address)
        if asked.next:
            core.change(lambda: self._await_next(trace, name, asked.wait), now)
            self._driver.settle()
        else:
            self._nursery.start_soon(self._send, trace, name, asked)
        worker = context.config.worker
        begun: dict[str, Value] = {"trace": trace.id.hex(), "router": context.id}
        if worker is not None:
            from amqpmesh.topology.workers import worker_of  # here: a router of no mesh needs nothing of the topology

            begun["workers"] = [worker_of(worker.name, each) for each in range(1, worker.count + 1)]
        return begun

    def _await_next(self, trace: Trace, name: str, wait: float) -> None:
        context = self._context
        tracing.await_next(context, trace.tenant, name, trace)
        context.schedule(context.now + wait, lambda: tracing.give_up(context, trace, "no message has come"))
        tracing.keep(context)

    async def _send(self, trace: Trace, name: str, asked: TraceStart) -> None:
        """Send a message of the trace's own, and wait for its outcome."""
        context, text = self._context, trace.id.hex()
        link, told = f"trace-{text}", ""

        def look() -> None:
            nonlocal told
            if trace.pending:
                reason = self._why(trace.tenant, name)
                if reason != told:
                    trace.note(context.now, "waits", reason=reason)
                told = reason
                context.schedule(context.now + LOOK, look)

        context.traces.links[link] = trace
        message = Message(f"trace {text}", ttl=asked.wait, message_annotations={MARK: text})
        properties = {str(TENANT): trace.tenant} if trace.tenant else None
        failure = "no credit"
        try:
            self._driver.core.change(lambda: context.schedule(context.now + LOOK, look), trio.current_time())
            tracing.keep(context)
            with trio.move_on_after(asked.wait):
                async with self._links.sender(asked.address, name=link, properties=properties) as sender:
                    sent = await sender.transfer(message)
                    await sent.outcome()
        except AmqpMeshError as error:
            failure = str(error)
        except Exception as error:  # it must not end the node that answers others
            log.error("internal error", exception=error, address=service.ADDRESS)
            failure = "internal error"
        finally:
            context.traces.links.pop(link, None)
            if trace.pending:
                trace.pending = False
                trace.note(trio.current_time(), "failed", reason=failure)

    def _why(self, tenant: str, name: str) -> str:
        """Return the reason why a message of the router's own has no credit."""
        context = self._context
        node = context.nodes.find(tenant, name)
        if node is None:
            return WAITING
        consumers = context.routes.consumer_routers(tenant, name)
        return str(why_address(node, draining=context.draining, consumers=consumers) or WAITING)
