"""Output for people and tools that observe a router: the log, the audit log, and telemetry for `amqpmesh pipeline`."""

from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from amqpmesh.policies.access import is_reserved
from amqpmesh.policies.patterns import PatternTable
from amqpmesh.router.address_syntax import DYNAMIC
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

    EFFECT = Effect.AT_ONCE

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

    EFFECT = Effect.AT_ONCE

    #: The most series of one answer, about.
    series: int = setting(default=2_000, low=500, high=1_000_000)


def _collector_refusal(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
        parts = urlsplit("")
    if parts.username is not None or parts.password is not None:
        return "takes no user and no password: OTEL_EXPORTER_OTLP_HEADERS in the environment can have a token"
    return None if is_valid and not parts.fragment else "is no URL of a collector, such as http://127.0.0.1:4318"


def _patterns_refusal(patterns: tuple[str, ...]) -> str | None:
    if not all(patterns):
        return "must have no empty pattern"
    reserved = next((each for each in patterns if is_reserved(each) and not each.startswith(f"{DYNAMIC}/")), None)
    if reserved is not None:
        return f"{reserved!r} is one of the router's own addresses"
    try:
        PatternTable((each, True) for each in patterns)
    except ValueError as error:
        return str(error)
    return None


@table
class TracingConfig(Table):
    """The traces that `amqpmesh trace` asks for, and the spans of OpenTelemetry."""

    EFFECT = Effect.AT_ONCE

    #: The most traces that are kept, of all tenants together.
    traces: int = setting(default=32, low=4, high=1_000)
    #: The most events of one trace; further ones are counted.
    events: int = setting(default=200, low=10, high=10_000)
    #: Seconds that a trace is kept after its last event, or the last question for it.
    keep: float = setting(default=60.0, low=1.0, high=3600.0)
    #: The URL of the collector that gets spans by OTLP over HTTP; None: no span is made.
    endpoint: str | None = setting(default=None, check=_collector_refusal)
    #: The part of the traces of which spans are made, among those that their senders have sampled.
    sample: float = setting(default=1.0, low=0.0, high=1.0)
    #: The most spans that are begun in a second.
    rate: int = setting(default=100, low=1, high=1_000_000)
    #: The most spans that have not ended, or wait for the collector.
    queue: int = setting(default=1_000, low=1, high=1_000_000)
    #: Patterns of the addresses whose messages get spans.
    addresses: tuple[str, ...] = setting(default=("#",), check=_patterns_refusal)

    RULES: ClassVar[tuple[Rule, ...]] = (
        *(
            Rule(key, "does nothing without endpoint: the collector that gets spans", broken)
            for key, broken in (
                ("sample", lambda c: c.endpoint is None and c.sample != 1.0),
                ("rate", lambda c: c.endpoint is None and c.rate != 100),
                ("queue", lambda c: c.endpoint is None and c.queue != 1_000),
                ("addresses", lambda c: c.endpoint is None and c.addresses != ("#",)),
            )
        ),
    )

    @property
    def collector(self) -> str | None:
        """The URL that spans are sent to: the endpoint, or its `/v1/traces` if it has no path (OTLP 1.0, OTLP/HTTP)."""
        if self.endpoint is None or urlsplit(self.endpoint).path not in ("", "/"):
            return self.endpoint
        return urlsplit(self.endpoint)._replace(path="/v1/traces").geturl()


@table
class TelemetryConfig(Table):
    """The recording: its folder, the part of the deliveries that it holds, and its size."""

    EFFECT = Effect.AT_ONCE

    directory: Path = setting()
    sample: float = setting(default=1.0, low=0.0, high=1.0)
    #: A segment is closed at this size, in octets, or after this time, in seconds.
    segment_size: int = setting(default=64 * 2**20, low=2**16, high=2**32)
    segment_time: float = setting(default=60.0, low=0.1, high=86_400.0)
    #: The oldest closed segments are removed if all of them are larger than this, or one is older; 0: never.
    retain_size: int = setting(default=4 * 2**30, low=0)
    retain_time: float = setting(default=7 * 86_400.0, low=0.0)
    #: The most octets that wait to be written.
    memory: int = setting(default=8 * 2**20, low=2**16, high=2**32)
    #: Seconds between two hand-overs of records to the writer, and between two records of link counters.
    flush: float = setting(default=1.0, low=0.01, high=3600.0)
    counts: float = setting(default=10.0, low=0.1, high=3600.0)
    #: Whether the records are messages at `$telemetry`, too.
    publish: bool = setting(default=False)
    #: Seconds without credit after which an event is recorded.
    credit_wait: float = setting(default=0.1, low=0.0, high=3600.0)

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "retain_size",
            "must be 0, or at least segment_size: a segment that was just closed would be removed",
            lambda c: 0 < c.retain_size < c.segment_size,
        ),
    )
