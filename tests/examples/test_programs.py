"""The programs in `examples`, run as their docstrings say."""

import ast
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.programs import PATIENCE, ROOT, Program, Programs, programs

EXAMPLES = ROOT / "examples"
MAX_LINES = 80


@pytest.fixture
def start() -> Iterator[Programs]:
    with programs() as started:
        yield started


def example(start: Programs, name: str, *arguments: str) -> Program:
    return start.python(EXAMPLES / f"{name}.py", *arguments)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_an_example_is_short_and_says_how_to_run_it(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) < MAX_LINES
    assert f"python examples/{file.name}" in (ast.get_docstring(ast.parse(text)) or "")


def test_the_client_is_told_what_became_of_each_order(start: Programs) -> None:
    assert example(start, "client", start.router()).end() == [
        "receiver  3 tea",
        "sender    accepted",
        "receiver  0 tea",
        "sender    rejected: amqp:invalid-field: an order needs at least one piece",
        "receiver  1 elephants",
        "sender    released",
        "receiver  6 fragile cups",
        "receiver  fragile cups broke",
        "sender    modified",
    ]


def test_the_client_waits_for_a_service_that_comes_later(start: Programs) -> None:
    url = start.router()
    client = example(start, "service_client", url)
    service = example(start, "service", url)
    assert service.line() == "serving quotes"
    assert sorted(client.end()) == ["EUR/CHF: 0.9312", "EUR/XAU: no price for EUR/XAU", "GBP/CHF: 1.1107"]
    assert sorted(service.end(signal.SIGINT)) == ["EUR/CHF 0.9312", "GBP/CHF 1.1107", "stopped"]


def test_the_client_gives_up_where_nobody_serves(start: Programs) -> None:
    client = example(start, "service_client", start.router())
    assert client.line() == "nobody answers: is examples/service.py running?"
    assert client.process.wait(PATIENCE) == 1


def test_a_slow_pool_slows_its_producer(start: Programs) -> None:
    slow, fast = example(start, "worker_pool", start.router()).end()
    row = r" ?(\d+) workers: +(\d+) jobs/s, +(\d+) ahead at most, no credit +(\d+) times"
    figures = []
    for line in (slow, fast):
        found = re.fullmatch(row, line)
        assert found, line
        workers, rate, ahead, waits = map(int, found.groups())
        assert rate <= workers / 0.05  # each job takes 50 ms
        # The receiver's credit, one delivery that the router holds, and those ahead: workers may end together.
        assert ahead <= 11 + workers
        assert waits
        figures.append((workers, rate))
    assert [workers for workers, _ in figures] == [2, 8]
    assert figures[1][1] > 1.5 * figures[0][1]


def post(url: str, body: str | None) -> tuple[int, str]:
    """Return the status and the body of a response. Args: body: of a POST; None: send a GET."""
    request = urllib.request.Request(url, data=body.encode() if body is not None else None)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_gateway_answers_by_what_a_service_replies(start: Programs) -> None:
    pytest.importorskip("hypercorn")
    gateway = example(start, "gateway", "127.0.0.1:0", "amqp://127.0.0.1:0")
    web, _, router = gateway.line().split()
    assert post(web, "EUR/CHF") == (503, "nobody serves\n")

    service = example(start, "service", router)
    assert service.line() == "serving quotes"
    assert post(web, "EUR/CHF") == (200, "0.9312")
    assert post(web, "EUR/XAU") == (400, "rejected: amqp:not-found: no price for EUR/XAU\n")
    assert post(web, None) == (405, "POST a request\n")

    service.end(signal.SIGINT)
    assert post(web, "EUR/CHF") == (503, "nobody serves\n")
    assert gateway.end(signal.SIGINT) == ["stopped"]
