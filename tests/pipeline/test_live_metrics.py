"""The last hour of a watch as Prometheus reads it."""

from __future__ import annotations

import http.client
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from amqpmesh.pipeline import live_metrics
from amqpmesh.pipeline.live import Live, decoded
from amqpmesh.pipeline.live_metrics import CONTENT_TYPE, FAMILIES, SERIES, Exposition, place, served
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.telemetry.schema import Outcome
from tests.support.data.known_traffic import Known
from tests.support.data.segments import at

NOW = at(86_400)


def taken(out: Path, known: Known, batch: int = 0, live: Live | None = None) -> Live:
    """Give all that routers have recorded to a watch."""
    live = live or Live(out, out / "checkpoint", ["events"], 90_000_000_000)
    known.close(1)
    some = [decoded(str(path), path.read_bytes(), path.name) for path in sorted(known.directory.rglob("*.events"))]
    live.take(batch, some, NOW)
    return live


def scraped(exposition: Exposition) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the samples by name and labels, as Prometheus reads them."""
    found: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
    for family in text_string_to_metric_families(exposition.text):
        for sample in family.samples:
            labels = tuple(sample.labels.values())
            assert labels not in found[sample.name]
            found[sample.name][labels] = sample.value
    return found


def test_the_last_hour_and_the_last_whole_minute_are_there(tmp_path: Path) -> None:
    known = Known(tmp_path / "events", "AB")
    known.deliver("AB", seconds=5, size=100)  # 01:46:45, more than an hour before the last one
    for seconds in (600, 3_610, 3_640):
        known.deliver("AB", seconds=seconds, size=100, outcome=Outcome.REJECTED, condition="a")
    known.deliver("AB", seconds=3_641, unrecorded="B")
    known.deliver("AB", seconds=3_700, size=50)
    exposition = Exposition()
    live = taken(tmp_path, known)
    exposition.note(live, NOW)
    found = scraped(exposition)
    ab = ("A", "B", "orders", "")
    assert found["amqpmesh_live_messages"][*ab, "1h"] == 4
    assert found["amqpmesh_live_bytes"][*ab, "1h"] == 350
    assert found["amqpmesh_live_messages"][*ab, "1m"] == 1
    assert found["amqpmesh_live_messages"]["A", "", "orders", "", "1m"] == 1
    assert found["amqpmesh_live_lost"] == {
        ("rejected", "orders", "", "B", "1h"): 3,
        ("rejected", "orders", "", "B", "1m"): 1,
    }
    assert found["amqpmesh_live_outcome_seconds"]["orders", "", "0.5", "1h"] == pytest.approx(0.002, rel=0.006)
    assert found["amqpmesh_live_segments_total"][()] == 2
    assert found["amqpmesh_live_records_total"][()] == 11
    assert found["amqpmesh_live_seen_timestamp_seconds"][()] == pytest.approx(at(3_700) / 1e9, abs=0.01)
    assert found["amqpmesh_live_closed_timestamp_seconds"][()] == live.minutes.boundary / 1e9
    assert found["amqpmesh_live_batch_timestamp_seconds"][()] == NOW / 1e9
    # Also after a restart, before anything more came.
    again = Exposition()
    again.note(Live(tmp_path, tmp_path / "checkpoint", ["events"], 90_000_000_000), NOW)
    assert again.text == exposition.text
    assert {name.removesuffix("_total") for name in found} <= set(FAMILIES)


def test_names_of_peers_are_escaped_and_series_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Known(tmp_path / "events", "A")
    for number in range(5):
        for _ in range(number + 1):
            known.deliver("A", seconds=5, address=f'"{number}\\\n')
    live = taken(tmp_path, known)
    monkeypatch.setattr(live_metrics, "SERIES", 3)
    exposition = Exposition()
    exposition.note(live, NOW)
    found = scraped(exposition)
    assert {name[2]: count for name, count in found["amqpmesh_live_messages"].items()} == {
        '"4\\\n': 5, '"3\\\n': 4, '"2\\\n': 3,
    }  # fmt: skip
    assert found["amqpmesh_live_left_out"]["amqpmesh_live_messages",] == 2
    assert SERIES == 1_000


def test_before_anything_came_it_is_valid(tmp_path: Path) -> None:
    exposition = Exposition()
    assert scraped(exposition) == {}
    exposition.note(Live(tmp_path, tmp_path / "checkpoint", [], 1), NOW)
    assert scraped(exposition)["amqpmesh_live_records_total"][()] == 0


def asked(url: str, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, Any, str]:
    _, _, host, _ = url.split("/")
    connection = http.client.HTTPConnection(host, timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers["Content-Type"], text


def test_it_is_served_until_the_end_of_the_block_and_to_none_who_ask_for_another_host() -> None:
    exposition = Exposition()
    with served(exposition, *place(":0")) as url:
        assert url.startswith("http://127.0.0.1:")
        assert asked(url) == (200, CONTENT_TYPE, exposition.text)
        exposition.text = "# EOF\n"
        assert asked(url, Host="localhost:1") == (200, CONTENT_TYPE, "# EOF\n")
        assert asked(url, method="HEAD") == (200, CONTENT_TYPE, "")
        assert asked(url, "/")[0] == 404
        assert asked(url, Host="evil.example:80")[0] == 421
    with pytest.raises(ConnectionRefusedError):
        asked(url)


def test_more_connections_than_there_may_be_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_metrics, "SCRAPES", 1)
    monkeypatch.setattr(live_metrics._Scrape, "timeout", 600.0)
    with served(Exposition(), "127.0.0.1", 0) as url:
        host = url.split("/")[2]
        silent = http.client.HTTPConnection(host, timeout=60)
        silent.connect()
        silent.send(b"GET /metrics HTTP/1.1\r\n")  # it holds the only place
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            asked(url)
        silent.send(b"Host: localhost\r\n\r\n")
        assert silent.sock.recv(8) == b"HTTP/1.0"
        silent.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9464", ("127.0.0.1", 9464)),
        (":9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_a_place_is_on_loopback_unless_told(text: str, expected: tuple[str, int]) -> None:
    assert place(text) == expected


@pytest.mark.parametrize("text", ["", "here", "here:", ":70000", ":-1", ":²"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="--metrics: must be ADDRESS:PORT"):
        place(text)
