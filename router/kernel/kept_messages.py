"""Messages that are kept while they may be sent again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router.kernel.budget import Budget
    from amqpmesh.router.kernel.fast_route import FastRoute


class Keeper:
    """The rules of an address that redelivers, for the messages that the kernel keeps.

    Args: account: the octets of kept messages count there. largest: octets of a kept message. attempts: the most of a
        message. is_over: tells whether the account gets no more memory. next_attempt: returns a message for its next
        attempt after an outcome; None: the router must decide. is_failure: tells whether an outcome says that the
        attempt failed. rules: the configuration that these are of. dead_letter: returns a rejected message as its
        dead letter; None: the router must decide. find_grave: returns the route of the dead-letter address, None: the
        router must decide; None in its place: the address has no dead letters.
    """

    __slots__ = (
        "account",
        "attempts",
        "dead_letter",
        "find_grave",
        "grave",
        "grave_epoch",
        "is_failure",
        "is_over",
        "largest",
        "next_attempt",
        "rules",
    )

    def __init__(
        self,
        account: Budget,
        largest: int,
        attempts: int,
        is_over: Callable[[], bool],
        next_attempt: Callable[[bytes, bytes], bytes | None],
        is_failure: Callable[[bytes], bool],
        rules: object,
        dead_letter: Callable[[bytes], bytes | None],
        find_grave: Callable[[], FastRoute | None] | None,
    ) -> None:
        self.account = account
        self.largest = largest
        self.attempts = attempts
        self.is_over = is_over
        self.next_attempt = next_attempt
        self.is_failure = is_failure
        self.rules = rules
        self.dead_letter = dead_letter
        self.find_grave = find_grave
        #: The route that was found, and the router's epoch then: it leads there until the epoch changes.
        self.grave: FastRoute | None = None
        self.grave_epoch = 0


class SentMessages:
    """The messages of a link's unsettled deliveries, kept in case its receiver comes back without all of them."""

    __slots__ = ()

    def keep(self, tag: bytes, data: bytes, first: bool, more: bool) -> None:
        """Keep the next payload of a delivery, if there is room.

        Args: first: it is the first payload. more: other payload of the delivery follows.
        """
        raise NotImplementedError

    def drop(self, tag: bytes) -> None:
        """Free what is kept of a delivery, if anything is: it is settled."""
        raise NotImplementedError


class KeptMessage:
    """A message that was sent unsettled, and is sent again if its receiver does not accept it."""

    __slots__ = ("attempts", "failed", "keeper", "outcome", "payload", "settled")

    def __init__(self, keeper: Keeper, payload: bytes) -> None:
        self.keeper = keeper
        self.payload = payload
        #: The attempts so far; one of them has failed.
        self.attempts = 1
        self.failed = False
        #: The outcome of this attempt, while it is put off; and whether the receiver has settled.
        self.outcome: bytes | None = None
        self.settled = False
