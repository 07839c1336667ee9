"""Rounds of resuming senders: links that only resume deliveries, since an unsettled map was incomplete (§2.7.3).

Until both maps are complete, no new delivery comes. In each round the sender resumes what our map names. Then the
router detaches the link without closing it, and the sender attaches it again with what is left. A map that is too
large for a frame of the sender names the outcomes first, and then other deliveries than the round before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.delivery.link_loss import suspend

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpmesh.router.context import Context
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.model.links import IncomingLink

#: Seconds after which a round ends, though the sender has not resumed all: it may have settled some.
ROUND_TIME: Final = 1.0

#: Seconds until a round ends that has told no outcome: its deliveries will be named again until they have some.
PAUSE: Final = 0.25


class Round:
    """A link's part in the resumption of its terminus."""

    __slots__ = ("_context", "_left", "_link", "_pause", "_rounds")

    def __init__(
        self,
        context: Context,
        rounds: dict[IncomingLink, Round],
        link: IncomingLink,
        named: Iterable[bytes],
        *,
        tells: bool,
    ) -> None:
        """Args: rounds: those of the router, by link. named: the tags in our map. tells: it has an outcome, or there is
        nothing to name."""
        self._context = context
        self._rounds = rounds
        rounds[link] = self
        self._left = set(named)
        self._pause = 0.0 if tells else PAUSE
        self._link = link
        link.endpoint.resumes_only = True
        if self._left:
            context.schedule(context.now + ROUND_TIME, self._end)
        elif self._pause:  # not one entry fits into a frame
            context.schedule(context.now + self._pause, self._end)
        else:
            context.chores.put_off(self._end_soon())

    def resumed(self, tag: bytes) -> None:
        """Note that the sender has resumed a delivery."""
        if tag not in self._left:
            return
        self._left.remove(tag)
        if self._left:
            return
        if self._pause:
            self._context.schedule(self._context.now + self._pause, self._end)
        else:  # once the outcome of this delivery is told
            self._context.chores.put_off(self._end_soon())

    def _end_soon(self) -> Steps[None]:
        self._end()
        yield

    def _end(self) -> None:
        """Detach the link, so that the sender attaches it again."""
        link, context = self._link, self._context
        endpoint = link.endpoint
        if self._rounds.pop(link, None) is not None and endpoint.is_attached and endpoint.session.can_send:
            suspend(context, link)
            endpoint.detach(closed=False)
