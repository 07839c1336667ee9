"""Costs of a plan put into force, and taken back, by `$management` of the routers that they are of.

Nothing here knows how a router is reached: whoever calls gives a function that asks it.
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
"""Of a neighbour, those that are looked at."""

Ask = Callable[[Message], Awaitable[Message]]
"""Sends a request to the `$management` of one router, and returns the answer."""


class ReroutingError(AmqpMeshError):
    """The mesh is not as the plan has it."""


class UnwillingError(ReroutingError):
    """A router does not do what is asked of it."""


@dataclass(frozen=True, slots=True)
class ChangeState:
    """How a change stands at its router.

    Args: cost: what is in force. connection: the number of the neighbour's. connector, listener: what it came about by.
    """

    change: Change
    cost: int
    connection: int
    connector: str | None
    listener: str | None

    @property
    def is_done(self) -> bool:
        """There is nothing to change."""
        return self.cost == self.change.after

    @property
    def identity(self) -> str:
        """What the cost is changed of. That of a connector outlives its connection; that of a listener would be one of
        all who come in by it.
        """
        return f"neighbour/{self.connection}" if self.connector is None else f"connector/{self.connector}"


async def change_states(router: str, changes: Iterable[Change], ask: Ask) -> list[ChangeState]:
    """How some changes stand at their router.

    Raises: ReroutingError: one is of a neighbour that is not there, or is there twice, or costs something else than it
        did and than it is to.
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
    """Have it cost so much.

    Raises: UnwillingError: the router does not do it. ReroutingError: it says nothing of the kind.
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
    """All of a router. What comes or goes meanwhile may be told twice, and counts once."""
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
