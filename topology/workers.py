"""Routers that are one to others: the workers `A.1`, `A.2`, ... of the router `A`, each a router of its own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amqpmesh.topology.graph import Graph

_NUMBER: Final = re.compile(r"\.[1-9][0-9]{0,5}")
_WORKER: Final = re.compile(rf"(.+){_NUMBER.pattern}")


def covers(name: str, router: str) -> bool:
    """Whether what is true of one id is true of the other: it is the same one, or `name.N`, N from 1."""
    return router == name or (router.startswith(name) and _NUMBER.fullmatch(router, len(name)) is not None)


def name_of(router: str) -> str | None:
    """The router that this one would be a worker of, by its id; None: none."""
    found = _WORKER.fullmatch(router)
    return found.group(1) if found is not None else None


class Members:
    """Which routers of a graph a name stands for."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        #: By the name that they share, as of that graph.
        self._workers: dict[str, list[str]] = {}
        self._as_of = (-1, -1)

    def of(self, name: str) -> tuple[str, ...]:
        """The router of that id, else the workers of that name, in order; none, if nobody has heard of either."""
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
    """The id of a worker. Args: number: from 1."""
    return f"{name}.{number}"
