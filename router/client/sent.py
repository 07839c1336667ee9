"""`Sent`: what a program knows of a delivery that it has sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.amqp.errors import CommandError

if TYPE_CHECKING:
    from amqpmesh.router.amqp.errors import AmqpMeshError
    from amqpmesh.router.client.links.outgoing import Outgoing
    from amqpmesh.router.message.outcomes import Outcome


class Sent:
    """A delivery that was sent: its outcome comes later."""

    __slots__ = ("__weakref__", "_outgoing")

    def __init__(self, outgoing: Outgoing) -> None:
        self._outgoing = outgoing

    def __repr__(self) -> str:
        outgoing = self._outgoing
        if outgoing.doubt is not None:
            said = "in doubt"
        elif outgoing.outcome is not None:
            said = type(outgoing.outcome).__name__.lower()
        else:
            said = "settled" if outgoing.settled else "undecided"
        return f"<Sent {said}>"

    @property
    def settled(self) -> bool:
        """It was sent settled: at most once, and nobody tells what became of it."""
        return self._outgoing.settled

    @property
    def is_decided(self) -> bool:
        """Whether the outcome is known, or that it will not be."""
        return self._outgoing.decided.is_set()

    async def outcome(self) -> Outcome:
        """Wait for the outcome. What was not accepted is no error here: look at what comes back.

        Cancelled, the delivery is settled all the same when the outcome comes.
        Raises: InDoubtError: the link was lost before: it may or may not have been delivered. CommandError: it was sent
            settled.
        """
        if self._outgoing.settled:
            raise CommandError("it was sent settled: there is no outcome")
        return await self._outgoing.until_decided()

    @property
    def error(self) -> AmqpMeshError | None:
        """What `send` raises: it was not accepted, or is in doubt; None: it was accepted, or nothing is known yet."""
        return self._outgoing.error
