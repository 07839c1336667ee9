"""A job that needs no events: it counts, and returns its arguments."""

from __future__ import annotations

import json

from amqpmesh.pipeline.jobs import Job
from amqpmesh.pipeline.work import Done, Table, Work

NAME = "count"
JOB = Job(NAME, "how many there are", module=__name__)


def job(work: Work) -> Done:
    """Return ten numbers for each directory of events. A directory named `bad` is an error."""
    if any(each.endswith("/bad") for each in work.events):
        work.spark.sql("select raise_error('it is bad')").collect()
    rows = work.write(NAME, work.spark.range(10 * len(work.events)))
    told = {
        "events": work.events,
        "since": work.since and work.since.isoformat(),
        "until": work.until and work.until.isoformat(),
        "settings": dict(work.spark.sparkContext.getConf().getAll()),
    }
    return Done(
        rows,
        {"numbers": 10_000, "share": 0.5},
        (Table("what it was given", ("name", "value"), tuple((key, json.dumps(each)) for key, each in told.items())),),
    )


PROGRAM = """
import sys
from amqpmesh.pipeline.jobs import JOBS
from amqpmesh.router.cli.main import main
from tests.support.spark import counting_job

JOBS[counting_job.NAME] = counting_job.JOB
sys.exit(main())
"""
"""The command line in a process of its own, with this job."""
