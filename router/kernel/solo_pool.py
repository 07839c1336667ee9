"""The state of a pool with one sender and few receivers, whose credit the kernel grants."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqpmesh.router.kernel.budget import Budget
    from amqpmesh.router.kernel.ledger import Delivery
    from amqpmesh.router.kernel.link_endpoint import KernelLink


class SoloPool:
    """The credit of a pool with one sink and few sources, while nothing unusual happens there.

    The router's pool (`Pool`) is the reference: it gives this state its numbers and takes them back. While `calm` is
    true, the numbers here are the newer ones, and the kernel grants credit by them, as `Pool.grants` would.
    """

    __slots__ = (
        "account",
        "calm",
        "credit_wait",
        "due",
        "flow_due",
        "held",
        "held_at",
        "held_info",
        "held_payload",
        "idle_time",
        "low",
        "low_at",
        "many_granted",
        "max_credit",
        "overcommit_at",
        "placed_at",
        "plenty",
        "raised",
        "receivers",
        "receivers_dry",
        "sender",
        "sender_dry",
        "starve_time",
        "used_at",
    )

    def __init__(self, sender: KernelLink, receivers: list[KernelLink], account: Budget) -> None:
        """Args: account: of the octets that are held back."""
        #: The incoming link, and all outgoing ones. The unused credit of the sink is the incoming link's.
        self.sender = sender
        self.receivers = receivers
        self.calm = False
        #: The delivery that is held back until a receiver gives credit; None: none is. It came at `held_at`, seconds.
        self.held: Delivery | None = None
        #: `held_info`: the fields of its header, for its record.
        self.held_payload = b""
        self.held_at = 0.0
        self.held_info = 0
        self.account = account
        #: The kernel looks at it once it has relayed the batch. `flow_due`: the next flush writes the sender's flow.
        self.due = False
        self.flow_due = False
        #: Credit that the kernel has granted since the router's pool was last told.
        self.raised = 0
        #: Since when the sender and each receiver have had no credit after a batch, seconds; negative: they have some.
        #: The router grants, and records the wait, if one of them gets credit after `credit_wait`, seconds, or more.
        self.sender_dry = -1.0
        self.receivers_dry = [-1.0] * len(receivers)
        self.credit_wait = inf
        # What `CreditSink` and `Pool` have by the same names. `low`: the sink waits for more.
        self.max_credit = 0
        self.many_granted = 0
        self.idle_time = 0.0
        self.starve_time = 0.0
        self.low = False
        self.low_at = 0
        self.plenty = False
        self.used_at = 0.0
        self.placed_at = 0.0
        #: A timer of the node is set for this time at the latest, seconds: the sink may then get its one delivery.
        self.overcommit_at = 0.0
