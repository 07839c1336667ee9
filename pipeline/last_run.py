"""The segments that there are, and those that a job has not read in its last run, whose tables it can change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amqpmesh.pipeline.files import ordinary
from amqpmesh.pipeline.jobs import JOBS
from amqpmesh.pipeline.known_segments import Known, usable_state
from amqpmesh.pipeline.pruning import pruned
from amqpmesh.pipeline.published import Result
from amqpmesh.pipeline.segment_rows import Row, segment_rows
from amqpmesh.router.telemetry.segments import Name

if TYPE_CHECKING:
    from amqpmesh.pipeline.work import Work


@dataclass(frozen=True)
class LastRun:
    """The beginning of a job that works by day or hour.

    Args: job: its name. ingested: the directory of `ingest`. hour: what is older was removed, in hours since 1970.
        segments: all that were not removed. new: those that the last run has not read. result: of the last run; None:
        the job has to make its tables anew, and all segments are new.
    """

    job: str
    ingested: Path
    hour: int
    segments: Mapping[Name, Row]
    new: Mapping[Name, Row]
    result: Result | None

    @property
    def known(self) -> Known:
        """Return the segments that the last run has read."""
        return Known.of({}) if self.result is None else Known(**self.result.state["known"])

    def state(self, **more: Any) -> dict[str, Any]:
        """Return what the next run has to know. Args: more: of this job."""
        return {"version": JOBS[self.job].version, "known": vars(Known.of(self.segments)), **more}


def last_run(work: Work, job: str) -> LastRun:
    """Return where a job has to begin. Raises: CommandError: the note of what was removed is damaged."""
    ingested = ordinary(work.place("ingest"))
    note = pruned(ingested)
    segments = {name: row for name, row in segment_rows(ingested).items() if not note.has(name)}
    before = work.before(job)
    if before is None or not usable_state(before, JOBS[job].version, segments):
        return LastRun(job, ingested, note.hour, segments, segments, None)
    known = Known(**before.state["known"])
    new = {name: row for name, row in segments.items() if not known.has(name)}
    return LastRun(job, ingested, note.hour, segments, new, before)
