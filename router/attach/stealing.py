"""Checks of the connections that already have a link which a peer attaches (§2.6.1).

By the standard the last attach of a link wins. That helps a client that reconnects before the loss of its old
connection is noticed. But some programs attach the same name on each of two connections (python-proton names links
after container and address), and replicas of a service often share a container-id. So the router asks the connections
that have the link for a sign of life, by an empty frame. Only connections that give none lose the link. A sign of life
is any octet that arrives after the question. An acknowledgement of the empty frame by the peer's system is one, too, if
the transport can see it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.events import LinkAttached
from amqpmesh.router.amqp.states import LinkEndpointState
from amqpmesh.router.memory.retained import of_claim

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpmesh.router.amqp.events import CreditChanged, DrainRequested
    from amqpmesh.router.amqp.link import Link
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.connections import ConnectionRecord

#: Seconds until the first check for a sign of life; the pause doubles after each check.
FIRST_LOOK: Final = 0.001

#: Connections that are asked for one attach at most, the oldest first. Others count as alive: so the cost is limited.
MOST_ASKED: Final = 16


class Claim:
    """An attach that is answered once the connections that have its link were asked."""

    __slots__ = ("asked", "attach", "endpoint", "flow", "octets", "record", "silent")

    def __init__(self, record: ConnectionRecord, endpoint: Link, attach: Attach, octets: int) -> None:
        """Args: octets: the octets of the waiting attach, which count on the peer's account."""
        self.record = record
        self.endpoint = endpoint
        self.attach = of_claim(attach)
        self.octets = octets
        #: Connections that may still give a sign of life.
        self.asked: set[ConnectionRecord] = set()
        #: Connections that gave none.
        self.silent: set[ConnectionRecord] = set()
        #: The peer's last `flow` for the link, which is handled once the link is attached.
        self.flow: CreditChanged | DrainRequested | None = None


class _Question:
    """A connection that was asked for a sign of life, and the claims that wait for it."""

    __slots__ = ("claims", "octets_in", "pause", "record", "until")

    def __init__(self, record: ConnectionRecord, until: float) -> None:
        self.record = record
        self.octets_in = record.octets_in
        self.until = until
        self.pause = FIRST_LOOK
        self.claims: list[Claim] = []


class Claims:
    """The open claims of a router, and its questions to the connections that already have the claimed links."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._questions: dict[ConnectionRecord, _Question] = {}

    def ask(self, claim: Claim, holders: Iterable[ConnectionRecord]) -> None:
        """Ask the connections that have the link for a sign of life, `MOST_ASKED` at most.

        The attach of the claim is handled again when all have given one, or their time has passed.
        Args: holders: connections other than the claim's own; one at least.
        """
        context = self._context
        claim.endpoint.context = claim
        claim.record.account.add(claim.octets)
        for record in list(dict.fromkeys(holders))[:MOST_ASKED]:
            question = self._questions.get(record)
            if question is None:
                question = self._questions[record] = _Question(record, context.now + context.config.theft_wait)
                record.engine.probe(context.now)
                self._look_again(question)
            question.claims.append(claim)
            claim.asked.add(record)

    def _look_again(self, question: _Question) -> None:
        context = self._context
        context.schedule(min(context.now + question.pause, question.until), partial(self._check_for_life, question))
        question.pause *= 2

    def _check_for_life(self, question: _Question) -> None:
        """Check a connection for a sign of life, and answer the claims that wait for no other connection."""
        context, record = self._context, question.record
        lives = record.octets_in > question.octets_in or context.is_acknowledged(record)
        if not (lives or record.lost or context.now >= question.until):
            self._look_again(question)
            return
        del self._questions[record]
        for claim in question.claims:
            claim.asked.remove(record)
            if not lives:
                claim.silent.add(record)
            if not claim.asked:
                self._answer(claim)

    def _answer(self, claim: Claim) -> None:
        context, record, endpoint = self._context, claim.record, claim.endpoint
        record.account.add(-claim.octets)
        if record.lost or endpoint.state is not LinkEndpointState.ATTACH_RCVD or not endpoint.session.can_send:
            return
        context.handle(record, LinkAttached(endpoint, claim.attach))
        if claim.flow is not None and endpoint.is_attached:
            context.handle(record, claim.flow)
            if claim.flow.flow.echo:
                endpoint.request_flow()
