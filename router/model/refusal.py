"""The error that refuses an attach (§2.6.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.amqp.standard.definitions import Error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.router.amqp.codec.types import Symbol, Value
    from amqpmesh.router.amqp.standard.definitions import AmqpCondition, LinkCondition


class RefusedError(Exception):
    """A refused attach: the answer is an attach without our terminus, then a detach with this error."""

    def __init__(
        self,
        condition: AmqpCondition | LinkCondition,
        description: str,
        info: Mapping[Symbol, Value] | None = None,
        reason: str | None = None,
        rule: Mapping[str, object] | None = None,
    ) -> None:
        """Args: reason: for the log; None: the description, which the peer gets. rule: fields of the
        audit log on the right or limit that refuses it.
        """
        super().__init__(description)
        self.reason = reason or description
        self.rule = rule or {}
        self.error = Error(condition=condition, description=description, info=info)
