"""Output for people and tools that observe a router: the log, the audit log, and telemetry for `amqpmesh pipeline`."""

from pathlib import Path
from typing import ClassVar, Literal

from amqpmesh.router.config.tables import Effect, Rule, Table, setting, table
from amqpmesh.router.logs.event_log import LogFormat

LogLevel = Literal["debug", "info", "warning", "error"]


@table
class LogConfig(Table):
    """The log of the daemon on standard error. An embedded router leaves logging to its process."""

    EFFECT = Effect.AT_ONCE

    level: LogLevel = setting(default="info")
    format: LogFormat = setting(default="text")


def _size_refusal(size: int) -> str | None:
    return "must be 0, or at least 65536" if 0 < size < 2**16 else None


@table
class AuditConfig(Table):
    """The audit log: its file, and its size."""

    EFFECT = Effect.RESTART
    RESTART = "the audit log is open"

    file: Path = setting()
    #: Octets before the file is rotated; 0: never.
    max_size: int = setting(default=64 * 2**20, low=0, check=_size_refusal)
    #: Rotated files that are kept.
    keep: int = setting(default=8, low=0, high=1000)
    #: The most octets that wait to be written.
    memory: int = setting(default=2**20, low=2**16, high=2**30)


@table
class MetricsConfig(Table):
    """The metrics that listeners for HTTP show."""

    EFFECT = Effect.RESTART
    RESTART = "series that are shown have begun with it"

    #: The most series of one answer, about.
    series: int = setting(default=2_000, low=500, high=1_000_000)


@table
class TracingConfig(Table):
    """The traces that `amqpmesh trace` asks for: how many, and how long they are kept."""

    EFFECT = Effect.RESTART
    RESTART = "traces that are kept have begun with it"

    #: The most traces that are kept, of all tenants together.
    traces: int = setting(default=32, low=4, high=1_000)
    #: The most events of one trace; further ones are counted.
    events: int = setting(default=200, low=10, high=10_000)
    #: Seconds that a trace is kept after its last event, or the last question for it.
    keep: float = setting(default=60.0, low=1.0, high=3600.0)


@table
class TelemetryConfig(Table):
    """The recording: its folder, the part of the deliveries that it holds, and its size."""

    EFFECT = Effect.RESTART
    RESTART = "the recording has begun with it"

    directory: Path = setting()
    sample: float = setting(default=1.0, low=0.0, high=1.0, effect=Effect.AT_ONCE)
    #: A segment is closed at this size, in octets, or after this time, in seconds.
    segment_size: int = setting(default=64 * 2**20, low=2**16, high=2**32, effect=Effect.AT_ONCE)
    segment_time: float = setting(default=60.0, low=0.1, high=86_400.0, effect=Effect.AT_ONCE)
    #: The oldest closed segments are removed if all of them are larger than this, or one is older; 0: never.
    retain_size: int = setting(default=4 * 2**30, low=0, effect=Effect.AT_ONCE)
    retain_time: float = setting(default=7 * 86_400.0, low=0.0, effect=Effect.AT_ONCE)
    #: The most octets that wait to be written.
    memory: int = setting(default=8 * 2**20, low=2**16, high=2**32)
    #: Seconds between two hand-overs of records to the writer, and between two records of link counters.
    flush: float = setting(default=1.0, low=0.01, high=3600.0, effect=Effect.AT_ONCE)
    counts: float = setting(default=10.0, low=0.1, high=3600.0, effect=Effect.AT_ONCE)
    #: Seconds without credit after which an event is recorded.
    credit_wait: float = setting(default=0.1, low=0.0, high=3600.0, effect=Effect.AT_ONCE)

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "retain_size",
            "must be 0, or at least segment_size: a segment that was just closed would be removed",
            lambda c: 0 < c.retain_size < c.segment_size,
        ),
    )
