"""The jobs: which there are, what each answers, and which others it needs. Reading this takes no Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from amqpmesh.pipeline.work import Done, Work
from amqpmesh.router.amqp.errors import CommandError

RUN: Final = "run"
"""Instead of a job's name: all of them."""


@dataclass(frozen=True)
class Job:
    """A module of this room that is named after it; its function `job` takes a `Work`, and returns what it has `Done`.

    Args: name: as it is called, and its result's directory. answers: the question, in a line. title: what the report
        calls it; empty: its name.
        needs: jobs whose results it reads.
        module: where it is, if not here.
    """

    name: str
    answers: str
    needs: tuple[str, ...] = ()
    module: str = ""
    title: str = ""

    def load(self) -> Callable[[Work], Done]:
        """The function. Raises: ModuleNotFoundError: for Spark, and what else the extra installs."""
        loaded: Callable[[Work], Done] = import_module(self.module or f"amqpmesh.pipeline.{self.name}").job
        return loaded


@dataclass(frozen=True)
class Account:
    """What one job has done, where, and in how many seconds."""

    job: Job
    place: str
    seconds: float
    done: Done


def _named(*jobs: Job) -> Mapping[str, Job]:
    return {job.name: job for job in jobs}


JOBS: Final = _named(
    Job("ingest", "what routers have recorded, as tables", title="What was recorded"),
    Job("deliveries", "which way each delivery took, and how it ended", ("ingest",), title="How deliveries ended"),
    Job(
        "traffic",
        "who sends how much to whom, and what each link carries",
        ("ingest", "deliveries"),
        title="Who sends to whom",
    ),
    Job(
        "latency",
        "how long deliveries take, where they spend it, and how far clocks are apart",
        ("deliveries",),
        title="How long deliveries take",
    ),
    Job(
        "losses",
        "which deliveries were lost or not accepted, went round or were tried too often, and who is slow",
        ("deliveries",),
        title="What went wrong",
    ),
    Job("anomalies", "when the mesh was not as its own history says", ("deliveries",), title="What was not as usual"),
    Job(
        "contingency",
        "what breaks if a link or a router fails",
        ("ingest", "traffic"),
        title="What a failure would break",
    ),
    Job(
        "plan",
        "which other costs of links would have the most used one used less",
        ("ingest", "traffic"),
        title="Other costs of links",
    ),
)
"""In the order in which they are done: each after those that it needs."""


def chosen(name: str) -> list[Job]:
    """What is to be done for a job, or for `RUN`: those that it needs first. Raises: CommandError: there is none."""
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
