"""Names of workers and of stand-ins: the workers `A.1`, `A.2`, ... of the router `A` are routers, and share the name
`A`. While `A` is upgraded, a router `A.old` stands in for it, which can have workers, too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amqpmesh.topology.graph import Graph

STAND_IN: Final = ".old"
"""The end of the id of a router that stands in for another one while that is upgraded."""

_NUMBER: Final = r"\.[1-9][0-9]{0,5}"
_COVERED: Final = re.compile(rf"({re.escape(STAND_IN)})?({_NUMBER})?")
_WORKER: Final = re.compile(rf"(.+){_NUMBER}")
_MEMBER: Final = re.compile(rf"(.+)({_NUMBER}|{re.escape(STAND_IN)})")


def covers(name: str, router: str) -> bool:
    """Tell whether a name stands for a router: its id is the name, `name.N` with N from 1, `name.old` or `name.old.N`.

    A certificate of the name is good for all of them.
    """
    return router == name or (router.startswith(name) and _COVERED.fullmatch(router, len(name)) is not None)


def name_of(router: str) -> str | None:
    """Return the router whose worker or stand-in this one is, by its id; None: it is neither."""
    found = _MEMBER.fullmatch(router)
    return found.group(1) if found is not None else None


def without_number(router: str) -> str:
    """Return the id without the number of a worker."""
    found = _WORKER.fullmatch(router)
    return router if found is None else found.group(1)


def upgraded_name(router: str) -> str:
    """Return the name of the router that a router is, is a worker of, or stands in for."""
    while (name := name_of(router)) is not None:
        router = name
    return router


def stand_in_of(name: str) -> str:
    """Return the id of the router that stands in for one while that is upgraded."""
    return f"{name}{STAND_IN}"


class Members:
    """The routers of a graph that share a name."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        #: By name: the workers in that graph.
        self._workers: dict[str, list[str]] = {}
        self._as_of = (-1, -1)

    def of(self, name: str) -> tuple[str, ...]:
        """Return the router with that id, or the workers of that name, sorted; empty if there is neither."""
        graph = self._graph
        if name in graph:
            return (name,)
        as_of = graph.generation, len(graph)
        if as_of != self._as_of:
            self._as_of = as_of
            self._workers = {}
            for router in graph.routers():
                shared = name_of(router)
                if shared is not None:
                    self._workers.setdefault(shared, []).append(router)
        return tuple(self._workers.get(name, ()))


def worker_of(name: str, number: int) -> str:
    """Return the id of a worker. Args: number: from 1."""
    return f"{name}.{number}"
