"""The jobs: their names, their summaries, and the jobs that they need. Importing this needs no Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from amqpmesh.pipeline.work import Done, Work
from amqpmesh.router.amqp.errors import CommandError

RUN: Final = "run"
"""Stands for a job's name: all jobs."""


@dataclass(frozen=True)
class Job:
    """A job: a module of this room with its name, whose function `job` takes a `Work` and returns a `Done`.

    Args: name: its name, and its result's directory. summary: its result, in a line. title: its heading in the
        report; empty: its name. needs: jobs whose results it reads. module: its module, if it is not in this room.
        version: of its tables; a result of another version is made again. limited: it reads the limits of links.
    """

    name: str
    summary: str
    needs: tuple[str, ...] = ()
    module: str = ""
    title: str = ""
    version: int = 1
    limited: bool = False

    def load(self) -> Callable[[Work], Done]:
        """Import the function. Raises: ModuleNotFoundError: Spark, or another package of the extra, is missing."""
        loaded: Callable[[Work], Done] = import_module(self.module or f"amqpmesh.pipeline.{self.name}").job
        return loaded


@dataclass(frozen=True)
class Account:
    """The result of one job, its directory, and its duration in seconds.

    Args: unchanged: its input is that of an earlier run, whose result this is; nothing was computed.
    """

    job: Job
    place: str
    seconds: float
    done: Done
    unchanged: bool = False


def _by_name(*jobs: Job) -> Mapping[str, Job]:
    return {job.name: job for job in jobs}


JOBS: Final = _by_name(
    Job("ingest", "tables of the recorded telemetry", title="Recorded telemetry"),
    Job("deliveries", "the path and the outcome of each delivery", ("ingest",), title="Outcomes of deliveries"),
    Job(
        "traffic",
        "the traffic from router to router, and the load of each link",
        ("ingest", "deliveries"),
        module="amqpmesh.pipeline.traffic_hours",
        title="Traffic",
        version=2,
    ),
    Job(
        "latency",
        "the latency of deliveries, its parts, and the offsets of clocks",
        ("deliveries",),
        module="amqpmesh.pipeline.latency_hours",
        title="Latency",
        version=3,
    ),
    Job(
        "losses",
        "lost, looped, not accepted and often redelivered deliveries, and slow consumers",
        ("deliveries",),
        module="amqpmesh.pipeline.losses_days",
        title="Losses and slow consumers",
        version=3,
    ),
    Job(
        "anomalies",
        "times when the mesh differed from its own history",
        ("deliveries",),
        module="amqpmesh.pipeline.anomalies_days",
        title="Anomalies",
        version=2,
    ),
    Job(
        "contingency",
        "the effects of the failure of a link or a router",
        ("ingest", "traffic"),
        title="Effects of failures",
        version=2,
    ),
    Job(
        "plan",
        "link costs that would relieve the busiest link",
        ("ingest", "traffic"),
        title="Better link costs",
        limited=True,
    ),
)
"""The jobs in their order: each after those that it needs."""


def chosen(name: str) -> list[Job]:
    """Return the jobs to run for a job, or for `RUN`: those that it needs first. Raises: CommandError: there is no such
    job.
    """
    if name == RUN:
        return list(JOBS.values())
    wanted: set[str] = set()
    rest = [name]
    while rest:
        each = rest.pop()
        if each not in JOBS:
            raise CommandError(f"no job {each!r}; there are {', '.join((*JOBS, RUN))}")
        if each not in wanted:
            wanted.add(each)
            rest.extend(JOBS[each].needs)
    return [job for job in JOBS.values() if job.name in wanted]
