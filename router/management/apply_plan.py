"""Costs of a plan, set and taken back through `$management` of the routers concerned.

This module does not connect to routers: the caller passes a function that sends requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.management.cost_plan import Change
from amqpmesh.router.management.entities import PREFIX
from amqpmesh.router.management.queries import AnswerError, body_of, entities_of, not_understood, query
from amqpmesh.router.message.content import Message

NEIGHBOUR: Final = f"{PREFIX}neighbour"

ATTRIBUTES: Final = ("router", "connection", "connector", "listener", "cost", "up")
"""The attributes of a neighbour that are read."""

Ask = Callable[[Message], Awaitable[Message]]
"""A function that sends a request to the `$management` of one router and returns the answer."""


class ReroutingError(AmqpMeshError):
    """The mesh does not match the plan."""


class UnwillingError(ReroutingError):
    """A router refuses a request."""


@dataclass(frozen=True, slots=True)
class ChangeState:
    """The current state of a change at its router.

    Args: cost: the current cost. connection: the number of the neighbour's connection. connector, listener: its origin.
    """

    change: Change
    cost: int
    connection: int
    connector: str | None
    listener: str | None

    @property
    def is_done(self) -> bool:
        """True if there is nothing to change."""
        return self.cost == self.change.after

    @property
    def identity(self) -> str:
        """The identity of the entity whose cost is changed: the neighbour, or the connector, whose cost outlives its
        connection.

        A listener's cost would be that of all its connections.
        """
        return f"neighbour/{self.connection}" if self.connector is None else f"connector/{self.connector}"


async def change_states(router: str, changes: Iterable[Change], ask: Ask) -> list[ChangeState]:
    """Return the current state of some changes at their router.

    Raises: ReroutingError: a neighbour is missing, has several connections, or has a cost other than before and after
        the change.
    """
    there = await _neighbours(router, ask)
    return [_state_of(change, there) for change in changes]


def _state_of(change: Change, there: Sequence[Mapping[str, Any]]) -> ChangeState:
    found = [each for each in there if each["router"] == change.neighbour and each["up"]]
    if not found:
        raise ReroutingError(f"{change.router} has no neighbour {change.neighbour} now")
    if len(found) > 1:
        raise ReroutingError(
            f"{change.router} has {len(found)} connections to {change.neighbour}: a plan knows of one link alone"
        )
    (one,) = found
    if one["cost"] not in (change.before, change.after):
        raise ReroutingError(
            f"{change.name} costs {one['cost']} now, neither {change.before} nor {change.after}: "
            "the plan was made of another mesh"
        )
    return ChangeState(change, int(one["cost"]), int(one["connection"]), one["connector"], one["listener"])


async def set_cost(state: ChangeState, cost: int, ask: Ask) -> None:
    """Set a cost.

    Raises: UnwillingError: the router refuses. ReroutingError: the router does not confirm the cost.
    """
    answer = await ask(
        Message({"cost": cost}, application_properties={"operation": "UPDATE", "identity": state.identity})
    )
    try:
        body = body_of(answer)
    except AnswerError as error:
        raise UnwillingError(f"{state.change.router} {error}") from None
    if not isinstance(body, Mapping) or body.get("cost") != cost:
        raise ReroutingError(f"{state.change.router} does not say that {state.change.name} costs {cost} now")


async def _neighbours(router: str, ask: Ask) -> list[Mapping[str, Any]]:
    """Return all neighbours of a router. One that appears on several pages, since others came or went, counts once."""
    found: dict[int, Mapping[str, Any]] = {}
    offset = 0
    while True:
        answer = await ask(query(NEIGHBOUR, ATTRIBUTES, offset=offset))
        try:
            page = entities_of(answer)
            told = {int(each["connection"]): {name: each[name] for name in ATTRIBUTES} for each in page}
        except AnswerError as error:
            raise UnwillingError(f"{router} {error}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise UnwillingError(f"{router} {not_understood(error)}") from None
        if not told.keys() - found.keys():
            return list(found.values())
        found.update(told)
        offset += len(page)
