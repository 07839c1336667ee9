"""`Sent`: a delivery that a program has sent, and its outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.amqp.errors import CommandError

if TYPE_CHECKING:
    from amqpmesh.router.amqp.errors import AmqpMeshError
    from amqpmesh.router.client.links.outgoing import Outgoing
    from amqpmesh.router.message.outcomes import Outcome


class Sent:
    """A delivery that was sent. Its outcome arrives later."""

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
        """True if the delivery was sent settled: it arrives at most once, and has no outcome."""
        return self._outgoing.settled

    @property
    def is_decided(self) -> bool:
        """True if the outcome is known, or will never be known."""
        return self._outgoing.decided.is_set()

    async def outcome(self) -> Outcome:
        """Wait for the outcome.

        An outcome other than accepted raises nothing here: look at the returned value. If this call is cancelled, the
        delivery is still settled when the outcome arrives.
        Raises: InDoubtError: the link was lost before the outcome came, so the message may or may not have been
            delivered. CommandError: the delivery was sent settled.
        """
        if self._outgoing.settled:
            raise CommandError("it was sent settled: there is no outcome")
        return await self._outgoing.until_decided()

    @property
    def error(self) -> AmqpMeshError | None:
        """The error that `send` would raise: the delivery was not accepted, or is in doubt.

        None: it was accepted, or its outcome is not known yet.
        """
        return self._outgoing.error
