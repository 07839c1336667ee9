"""The last hour of a watch as OpenMetrics 1.0, and the server that gives it to Prometheus. No Spark.

The text is made after each batch, and each scrape gets the latest. Peers choose addresses and other names: series of
each family are bounded, the largest are there.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from amqpmesh.pipeline.live import HOUR, Live
from amqpmesh.pipeline.live_minutes import INCOMPLETE, MINUTE, Sums, by_name, classes_by_address, percentile
from amqpmesh.pipeline.live_tables import PERCENTILES
from amqpmesh.router.amqp.errors import CommandError

SERIES: Final = 1_000
"""Series of a family over one time at most."""

SCRAPES: Final = 16
"""Connections at a time at most; more are closed."""

PATIENCE: Final = 5.0
"""Seconds that a connection may stay silent."""

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

FAMILIES: Final[Mapping[str, tuple[str, str]]] = {
    "amqpmesh_live_messages": (
        "gauge",
        "Attempts to deliver that began in that time, by ingress, egress, address and tenant.",
    ),
    "amqpmesh_live_bytes": ("gauge", "The payload of these messages."),
    "amqpmesh_live_outcome_seconds": (
        "gauge",
        "Quantiles of the time until the outcome passed the ingress router, by address and tenant.",
    ),
    "amqpmesh_live_lost": ("gauge", "Deliveries that went wrong, by kind, address, tenant and router."),
    "amqpmesh_live_anomaly_score": (
        "gauge",
        "The deviation of the last closed minute, by measure, address and tenant; an anomaly is above 1 or below -1.",
    ),
    "amqpmesh_live_left_out": ("gauge", "Series of a family that are not here, since there are too many."),
    "amqpmesh_live_open_records": ("gauge", "Hop records of minutes that are open."),
    "amqpmesh_live_seen_timestamp_seconds": ("gauge", "The latest time that a router has recorded."),
    "amqpmesh_live_closed_timestamp_seconds": ("gauge", "The end of the last closed minute."),
    "amqpmesh_live_batch_timestamp_seconds": ("gauge", "When the last batch was read, by the clock of this machine."),
    "amqpmesh_live_segments": ("counter", "Segments that were read."),
    "amqpmesh_live_records": ("counter", "Hop records that were read."),
    "amqpmesh_live_late_records": ("counter", "Of these, those that came when their minute was closed."),
    "amqpmesh_live_ahead_records": ("counter", "Of these, those whose time was ahead of this machine."),
    "amqpmesh_live_faults": ("counter", "Problems of segments, by problem."),
}
"""The kind and the help of each family."""

Labels = tuple[tuple[str, Any], ...]


class Exposition:
    """The text for scrapes. `note` is called by the thread that takes batches, `text` is read by others."""

    def __init__(self) -> None:
        self.text = _text({})
        #: The closed minutes of the hour, summed up, and the last of them.
        self._hour: tuple[int, int, Sums] = (0, 0, {})

    def note(self, live: Live, now: int) -> None:
        """Make the text anew. Args: now: ns since 1970."""
        self.text = _text(self._families(live, now))

    def _families(self, live: Live, now: int) -> dict[str, list[tuple[Labels, float]]]:
        minutes = live.minutes
        present = minutes.seen // MINUTE
        found: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
        hour = self._closed(live, present - HOUR)
        for number, sums in minutes.sums.items():
            if present - HOUR < number:
                hour = _added(hour, _known(sums))
        last = (
            live.closed[present - 1].sums if present - 1 in live.closed else _known(minutes.sums.get(present - 1, {}))
        )
        for over, summed in (("1h", hour), ("1m", last)):
            _sums(found, summed, over)
        latest = max(live.closed, default=None)
        for row in live.closed[latest].anomalies if latest is not None else ():
            if row.get("score") is not None:
                labels = tuple((name, row[name]) for name in ("measure", "address", "tenant"))
                found["amqpmesh_live_anomaly_score"].append((labels, row["score"]))
        for family in [*found]:
            found["amqpmesh_live_left_out"].append(((("family", family),), _bound(found, family)))
        found["amqpmesh_live_open_records"] = [((), len(minutes.pending))]
        found["amqpmesh_live_seen_timestamp_seconds"] = [((), minutes.seen / 1e9)]
        found["amqpmesh_live_closed_timestamp_seconds"] = [((), minutes.boundary / 1e9)]
        found["amqpmesh_live_batch_timestamp_seconds"] = [((), now / 1e9)]
        for family, name in (
            ("segments", "segments"),
            ("records", "records"),
            ("late_records", "late"),
            ("ahead_records", "ahead"),
        ):
            found[f"amqpmesh_live_{family}"] = [((), live.counts[name])]
        found["amqpmesh_live_faults"] = [((("problem", each),), count) for each, count in sorted(live.problems.items())]
        return found

    def _closed(self, live: Live, before: int) -> Sums:
        """Return the sum of the closed minutes behind one; it is made when there is another minute."""
        numbers = [number for number in live.closed if number > before]
        extent = (min(numbers, default=0), max(numbers, default=0))
        if self._hour[:2] != extent:
            sums: Sums = {}
            for number in numbers:
                sums = _added(sums, live.closed[number].sums)
            self._hour = (*extent, sums)
        return dict(self._hour[2])


def _known(sums: Sums) -> Sums:
    """Return the sums of an open minute, without what is missing only as yet."""
    return {name: values for name, values in sums.items() if name[:2] != ("losses", INCOMPLETE)}


def _added(sums: Sums, more: Sums) -> Sums:
    for name, values in more.items():
        before = sums.get(name)
        sums[name] = values if before is None else tuple(map(sum, zip(before, values, strict=True)))
    return sums


def _sums(found: dict[str, list[tuple[Labels, float]]], sums: Sums, over: str) -> None:
    """Add the samples of one time."""
    traffic: dict[tuple[Any, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for (*ends, _), (messages, octets, _) in by_name(sums, "traffic"):
        each = traffic[tuple(ends)]
        each[0] += messages
        each[1] += octets
    for where, values in traffic.items():
        labels = (*zip(("ingress", "egress", "address", "tenant"), where, strict=True), ("over", over))
        for family, value in zip(("amqpmesh_live_messages", "amqpmesh_live_bytes"), values, strict=True):
            found[family].append((labels, value))
    for (address, tenant), classes in classes_by_address(sums, "outcomes").items():
        for share in PERCENTILES.values():
            labels = (("address", address), ("tenant", tenant), ("quantile", share), ("over", over))
            found["amqpmesh_live_outcome_seconds"].append((labels, (percentile(classes, share) or 0) / 1e9))
    losses: dict[tuple[Any, ...], float] = defaultdict(float)
    for (kind, address, tenant, router, _, _), (count,) in by_name(sums, "losses"):
        losses[kind, address, tenant, router] += count
    for where, count in losses.items():
        labels = (*zip(("kind", "address", "tenant", "router"), where, strict=True), ("over", over))
        found["amqpmesh_live_lost"].append((labels, count))


def _bound(found: dict[str, list[tuple[Labels, float]]], family: str) -> int:
    """Leave the largest samples of a family. Returns: how many are left out."""
    samples = sorted(found[family], key=lambda each: (-abs(each[1]), str(each[0])))
    kept = [
        [*part][:SERIES] for part in ([each for each in samples if _over(each) == over] for over in ("1h", "1m", None))
    ]
    found[family] = [each for part in kept for each in part]
    return len(samples) - len(found[family])


def _over(sample: tuple[Labels, float]) -> Any:
    return dict(sample[0]).get("over")


def _text(found: Mapping[str, Iterable[tuple[Labels, float]]]) -> str:
    lines = []
    for family, (kind, told) in FAMILIES.items():
        lines += [f"# TYPE {family} {kind}", f"# HELP {family} {told}"]
        name = f"{family}_total" if kind == "counter" else family
        for labels, value in found.get(family, ()):
            shown = ",".join(f'{label}="{_escaped(each)}"' for label, each in labels)
            lines.append(f"{name}{{{shown}}} {value:.16g}" if shown else f"{name} {value:.16g}")
    return "\n".join([*lines, "# EOF\n"])


def _escaped(value: Any) -> str:
    """Return a label's value; an unknown one is empty."""
    text = "" if value is None else str(value)
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# ---------------------------------------------------------------------------------------------------------- the server


def place(text: str) -> tuple[str, int]:
    """Read ADDRESS:PORT; without an address it is 127.0.0.1. Raises: CommandError: it is none."""
    address, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise CommandError(f"--metrics: must be ADDRESS:PORT, such as 127.0.0.1:9464, not {text!r}")
    return address.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


@contextmanager
def served(exposition: Exposition, address: str, port: int) -> Iterator[str]:
    """Serve the text at `/metrics` during the block, in threads of its own. Yields: the URL.

    Raises: OSError: the server cannot listen there.
    """
    server = _Server(exposition, address, port)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        host, bound = server.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        yield f"http://{shown}:{bound}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, exposition: Exposition, address: str, port: int) -> None:
        self.exposition = exposition
        self._free = threading.BoundedSemaphore(SCRAPES)
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, *_, bound = found[0]
        super().__init__((str(bound[0]), int(bound[1])), _Scrape)
        #: Of a server that only this machine reaches, a page in a browser must not ask under a name of its own.
        self.is_local = ipaddress.ip_address(str(self.server_address[0])).is_loopback

    def server_bind(self) -> None:
        """Bind, without asking for the name of this machine."""
        socket.socket.bind(self.socket, self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if there are not too many."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore what a client does to its own connection."""


class _Scrape(BaseHTTPRequestHandler):
    timeout = PATIENCE
    server: _Server

    def do_GET(self) -> None:
        """Answer a scrape."""
        if self.server.is_local and not _is_here(self.headers.get("Host", "")):
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, "text/plain; charset=utf-8", "another host\n")
        elif self.path.partition("?")[0] != "/metrics":
            self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", "only /metrics is here\n")
        else:
            self._answer(HTTPStatus.OK, CONTENT_TYPE, self.server.exposition.text)

    def do_HEAD(self) -> None:
        """Answer the head of a scrape."""
        self.do_GET()

    def _answer(self, status: HTTPStatus, content_type: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in (("Content-Type", content_type), ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def _is_here(host: str) -> bool:
    """Return True if a request names this machine by an address, or as localhost."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.removeprefix("[").removesuffix("]")
    if name in ("", "localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
