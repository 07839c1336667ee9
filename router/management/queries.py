"""Requests to a router's `$management`, and the reading of its answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.management.service import OK
from amqpmesh.router.message.content import Message


class AnswerError(AmqpMeshError):
    """An error, or an answer that does not fit the request; its text continues a sentence that begins with the router's
    name.
    """

    def __init__(self, text: str, status: int | None = None) -> None:
        """Args: status: the `statusCode` of the answer; None: it has none."""
        super().__init__(text)
        self.status = status


def query(kind: str | None = None, attributes: Iterable[str] = (), *, offset: int = 0, count: int = 0) -> Message:
    """Return a QUERY request.

    Args: kind: a type of entities; None: all. attributes: (): all attributes. offset: of the first entity to return.
        count: entities at most; 0: the router decides.
    """
    asked: dict[str, Any] = {"operation": "QUERY", "offset": offset}
    if kind is not None:
        asked["entityType"] = kind
    if count:
        asked["count"] = count
    return Message({"attributeNames": list(attributes)}, application_properties=asked)


def body_of(answer: Message) -> Any:
    """Return the body of an answer. Raises: AnswerError: the answer is an error."""
    code = answer.application_properties.get("statusCode")
    if code != OK:
        status = code if isinstance(code, int) else None
        raise AnswerError(f"answers {code}: {answer.application_properties.get('statusDescription')}", status)
    return answer.body


def entities_of(answer: Message) -> list[dict[str, Any]]:
    """Return the entities in an answer to a QUERY, as attributes by name.

    Raises: AnswerError: the answer is an error, or no answer to a QUERY.
    """
    body = body_of(answer)
    try:
        return [dict(zip(body["attributeNames"], row, strict=True)) for row in body["results"]]
    except (KeyError, TypeError, ValueError) as error:
        raise not_understood(error) from None


def not_understood(error: Exception) -> AnswerError:
    """Return the error for an answer with something missing. Args: error: raised while the answer was read."""
    return AnswerError(f"gives an answer that is not understood: {error!r}")
