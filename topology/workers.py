"""Names of workers: the workers `A.1`, `A.2`, ... of the router `A` are routers, and share the name `A`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amqpmesh.topology.graph import Graph

_NUMBER: Final = re.compile(r"\.[1-9][0-9]{0,5}")
_WORKER: Final = re.compile(rf"(.+){_NUMBER.pattern}")


def covers(name: str, router: str) -> bool:
    """Tell whether a name stands for a router: it is the router's id, or the id is `name.N`, N from 1."""
    return router == name or (router.startswith(name) and _NUMBER.fullmatch(router, len(name)) is not None)


def name_of(router: str) -> str | None:
    """Return the router whose worker this one is, by its id; None: it is no worker."""
    found = _WORKER.fullmatch(router)
    return found.group(1) if found is not None else None


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
