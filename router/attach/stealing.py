"""Attaches of a link that other connections have: which of those still live (§2.6.1).

The standard gives a link to whoever attaches it last. That is meant for a client that comes back before its old
connection is missed. But programs with two connections attach one name on each (python-proton names links after
container and address), and replicas of a service often share a container-id. So the holders are asked for a sign of
life, and a link is taken from those that give none. A sign is an octet that comes after the question, or that the
peer's system acknowledges the empty frame, where the transport can tell.
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

#: Seconds until a sign of life is first looked for; each next look comes after twice as long.
FIRST_LOOK: Final = 0.001

#: Holders that are asked, the oldest first. Others are taken to live: an attach costs no more questions than that.
MOST_ASKED: Final = 16


class Claim:
    """An attach that is answered once the holders of its link have been asked."""

    __slots__ = ("asked", "attach", "flow", "link", "octets", "record", "silent")

    def __init__(self, record: ConnectionRecord, link: Link, attach: Attach, octets: int) -> None:
        """Args: octets: what it takes while it waits; they count against the peer."""
        self.record = record
        self.link = link
        self.attach = of_claim(attach)
        self.octets = octets
        #: Connections that may still give a sign of life.
        self.asked: set[ConnectionRecord] = set()
        #: Those that gave none.
        self.silent: set[ConnectionRecord] = set()
        #: What the peer said last of the link's credit, which counts once the link is attached.
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
    """Asks the holders of claimed links for signs of life."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._questions: dict[ConnectionRecord, _Question] = {}

    def ask(self, claim: Claim, holders: Iterable[ConnectionRecord]) -> None:
        """Ask the first of the holders. The core handles the claim's attach again when they are known to live or not.

        Args: holders: connections other than the claim's own; one at least.
        """
        context = self._context
        claim.link.context = claim
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
        context.schedule(min(context.now + question.pause, question.until), partial(self._look, question))
        question.pause *= 2

    def _look(self, question: _Question) -> None:
        """See whether a connection that was asked has given a sign of life, or has no time left for it."""
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
        context, record, link = self._context, claim.record, claim.link
        record.account.add(-claim.octets)
        if record.lost or link.state is not LinkEndpointState.ATTACH_RCVD or not link.session.can_send:
            return
        context.handle(record, LinkAttached(link, claim.attach))
        if claim.flow is not None and link.is_attached:
            context.handle(record, claim.flow)
            if claim.flow.flow.echo:
                link.request_flow()
