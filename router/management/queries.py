"""What is asked of a router's `$management`, and how its answers are read: for commands, and whoever else wonders."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.management.service import OK
from amqpmesh.router.message.content import Message


class AnswerError(AmqpMeshError):
    """A router does not tell what it was asked for; the text goes on from its name."""


def query(kind: str | None = None, attributes: Iterable[str] = (), *, offset: int = 0, count: int = 0) -> Message:
    """A QUERY.

    Args: kind: of entities; None: all. attributes: (): each that an entity has. offset: of the first one that is told.
        count: how many are told at most; 0: the router decides.
    """
    asked: dict[str, Any] = {"operation": "QUERY", "offset": offset}
    if kind is not None:
        asked["entityType"] = kind
    if count:
        asked["count"] = count
    return Message({"attributeNames": list(attributes)}, application_properties=asked)


def body_of(answer: Message) -> Any:
    """What a request was answered with. Raises: AnswerError: an error."""
    code = answer.application_properties.get("statusCode")
    if code != OK:
        raise AnswerError(f"answers {code}: {answer.application_properties.get('statusDescription')}")
    return answer.body


def entities_of(answer: Message) -> list[dict[str, Any]]:
    """What a QUERY was answered with: the attributes of each entity by their names, whatever those are.

    Raises: AnswerError: an error, or no answer to a QUERY.
    """
    body = body_of(answer)
    try:
        return [dict(zip(body["attributeNames"], row, strict=True)) for row in body["results"]]
    except (KeyError, TypeError, ValueError) as error:
        raise not_understood(error) from None


def not_understood(error: Exception) -> AnswerError:
    """Something that should be there is not. Args: error: what came of reading it."""
    return AnswerError(f"gives an answer that is not understood: {error!r}")
