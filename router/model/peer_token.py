"""The token of a connection's peer, or the router's wait for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amqpmesh.router.amqp.link import Receiver, Sender
    from amqpmesh.router.tokens.identity import TokenIdentity


class PeerToken:
    """The token that a peer has shown, and its links to the node that takes tokens."""

    __slots__ = (
        "allowed",
        "allowed_at",
        "answers",
        "errand",
        "identity",
        "is_awaited",
        "refill",
        "remembered",
        "requests",
    )

    def __init__(self, identity: TokenIdentity | None, *, is_awaited: bool, allowed: int, now: float) -> None:
        """Args: identity: of the token that it has shown; None: it has shown none. is_awaited: it may do nothing before
        it shows one. allowed: tokens that it may put at once. now: seconds.
        """
        self.identity = identity
        self.is_awaited = is_awaited
        #: The timer of the token's expiry, or of the end of the wait.
        self.errand: Any = None
        #: The tokens that it may put now, and the time of that count.
        self.allowed = float(allowed)
        self.allowed_at = now
        #: The timer that gives credit for the next token.
        self.refill: Any = None
        #: Octets of its claims that count on the account of the connection.
        self.remembered = 0
        #: The links by which it puts tokens, and by which it receives the answers.
        self.requests: list[Receiver] = []
        self.answers: list[Sender] = []
