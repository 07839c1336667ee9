"""What a router records of its deliveries, links and graph, for `amqpmesh pipeline`."""

from pathlib import Path
from typing import ClassVar

from amqpmesh.router.config.tables import Rule, Table, setting, table


@table
class TelemetryConfig(Table):
    """Where it is recorded, of how many deliveries, and how much is kept."""

    directory: Path = setting()
    sample: float = setting(default=1.0, low=0.0, high=1.0)
    #: A segment is closed when it has so many octets, or after so many seconds.
    segment_size: int = setting(default=64 * 2**20, low=2**16, high=2**32)
    segment_time: float = setting(default=60.0, low=0.1, high=86_400.0)
    #: Closed segments are removed, the oldest first, when they have more octets in all, or are older; 0: never.
    retain_size: int = setting(default=4 * 2**30, low=0)
    retain_time: float = setting(default=7 * 86_400.0, low=0.0)
    #: Octets that may wait to be written.
    memory: int = setting(default=8 * 2**20, low=2**16, high=2**32)
    #: Every so many seconds what there is is handed to the writer, and what links have counted is told.
    flush: float = setting(default=1.0, low=0.01, high=3600.0)
    counts: float = setting(default=10.0, low=0.1, high=3600.0)
    #: Having no credit for so many seconds is worth an event.
    credit_wait: float = setting(default=0.1, low=0.0, high=3600.0)

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "retain_size",
            "must be 0, or at least segment_size: a segment that was just closed would be removed",
            lambda c: 0 < c.retain_size < c.segment_size,
        ),
    )
