"""The part `patterns`: its clients, its comparison with committed figures, and its table on the page."""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Iterator

import pytest

from benchmarks import figures, patterns, wire
from benchmarks.bench import Results
from benchmarks.generator import clients
from benchmarks.meshes import port_of
from benchmarks.processes import ROOT, Failed, Load

in_c = pytest.mark.skipif(shutil.which("cc") is None, reason="the clients are written in C")
STAMP_AT = 100  # octets from a message's end to its content: time, sender, number


@pytest.fixture
def receiver() -> Iterator[tuple[Load, str]]:
    """Start a receiver that listens. Yields: it, and its URL."""
    with clients("receive listen=1 credit=10") as load:
        yield load, load.line()["url"]


@in_c
def test_links_stay_from_round_to_round(receiver: tuple[Load, str]) -> None:
    load, url = receiver
    with clients(f"send url={url} links=3") as sender:
        sender.line()
        for count in (7, 50):
            load.go(str(count))
            assert load.line() == {"expects": count}
            sender.go(str(count))
            assert sender.line()["outcomes"] == {"accepted": count}
            assert load.line()["count"] == count


def numbered(number: int, delivery: int) -> bytes:
    """Encode a message of sender 0 as the clients do."""
    message = wire.message(100)
    message[wire.ID_AT : wire.ID_AT + 4] = delivery.to_bytes(4)
    message[-STAMP_AT:] = bytes(12) + number.to_bytes(4) + bytes(at * 7 & 0xFF for at in range(16, 100))
    return bytes(message)


@in_c
@pytest.mark.parametrize(
    ("numbers", "announced", "reason"),
    [([0, 1, 1], 3, "message 1 of sender 0 came after 1"), ([0, 1], 1, "more messages came than were to come")],
)
def test_a_faulty_router_is_found_out(
    receiver: tuple[Load, str], numbers: list[int], announced: int, reason: str
) -> None:
    load, url = receiver
    load.go(str(announced))
    with socket.create_connection(("127.0.0.1", port_of(url))) as peer:
        attach = wire.attach("faulty", "bench", receiver=False, settled=False)
        peer.sendall(wire.opening("faulty") + attach + b"".join(map(numbered, numbers, range(len(numbers)))))
        with pytest.raises(Failed, match=reason):
            for _ in range(3):  # what it expects, and perhaps the result of what it expected
                load.line()


def results(router: float, forwarder: float) -> Results:
    return {"patterns": {"a row": {"router": {"cpu_us": router}, "forwarder": {"cpu_us": forwarder}}}}


@pytest.mark.parametrize(
    ("router", "forwarder", "is_worse"),
    [(2.3, 1.0, True), (2.1, 1.0, False), (4.0, 2.0, False), (2.0, 0.8, True), (1.0, 1.0, False)],
)
def test_a_row_is_worse_beside_the_forwarder(router: float, forwarder: float, is_worse: bool) -> None:
    found = figures.worse(results(router, forwarder), results(2.0, 1.0))
    assert bool(found) == is_worse
    assert all(line.startswith("patterns, a row, router: cpu_us is") for line in found)


def test_the_table_of_the_page_is_that_of_the_committed_figures() -> None:
    text = (ROOT / "docs" / "internals" / "performance.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- patterns -->\n(.+?)\n<!-- patterns end -->", text, re.DOTALL)
    assert found is not None
    assert found[1] == patterns.page(figures.committed()["results"]), "python -m benchmarks.patterns prints it"


def test_each_row_has_committed_figures() -> None:
    assert set(figures.committed()["results"]["patterns"]) == set(patterns.names())
