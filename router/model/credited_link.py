"""The part of a link's record that is the same in either direction: its credit, and the grant of its terminus."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqpmesh.router.amqp.link import Receiver, Sender
    from amqpmesh.router.model.lasting_termini import Grant


class CreditedLink:
    """A link with credit."""

    __slots__ = ("grant",)

    endpoint: Receiver | Sender
    #: The time that its terminus is kept when it is lost; None: none is granted.
    grant: Grant | None

    @property
    def zero_credit_since(self) -> float | None:
        """The time since which it has no credit, seconds; None: it has some."""
        since = self.endpoint.flow_state.dry_since
        return None if since < 0 else since

    def zero_credit_seconds(self, now: float) -> float:
        """Return for how long it has had no credit so far, in seconds."""
        flow_state = self.endpoint.flow_state
        return flow_state.dry_for + (now - flow_state.dry_since if flow_state.dry_since >= 0 else 0.0)

    def time_credit(self, now: float) -> None:
        """Set `zero_credit_since` after a change of the credit."""
        flow_state = self.endpoint.flow_state
        if flow_state.link_credit:
            if flow_state.dry_since >= 0:
                flow_state.dry_for += now - flow_state.dry_since
            flow_state.dry_since = -1.0
        elif flow_state.dry_since < 0:
            flow_state.dry_since = now
