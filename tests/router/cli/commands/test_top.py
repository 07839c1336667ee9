"""`amqpmesh top`, and `amqpmesh status --watch`."""

from __future__ import annotations

import json
import re
import signal
import sys
from subprocess import PIPE, Popen
from typing import Any

import pytest

from amqpmesh.router.cli.output.rates import Rates, lines
from tests.support.processes.programs import ENVIRONMENT
from tests.support.processes.router_thread import PATIENCE, Command, Served
from tests.support.processes.terminal import Terminal


def entities(now: float, addresses: dict[str, tuple[int, int]], links: dict[int, int]) -> dict[str, list[Any]]:
    """Return a state with deliveries in and out of addresses, and those of links to the address `a`."""
    return {
        "router": [{"id": "A", "now": now}],
        "connection": [{"number": 7, "container_id": "client"}],
        "address": [
            {"identity": f"address/{name}", "tenant": "", "name": name, "deliveries_in": into, "deliveries_out": out}
            | {"waiting": into - out, "producers": 1, "consumers": 2, "reason": None}
            for name, (into, out) in addresses.items()
        ],
        "link": [
            {"identity": f"link/{number}", "tenant": "", "address": "a", "direction": "outgoing", "connection": 7}
            | {
                "deliveries": count,
                "octets": 1024 * count,
                "undelivered": 0,
                "unsettled": 3,
                "credit": 5,
                "reason": None,
            }
            for number, count in links.items()
        ],
    }


def test_rates_are_of_the_time_between_two_readings() -> None:
    rates = Rates()
    assert rates.take(entities(10.0, {"a": (100, 90)}, {1: 90}), 10.0) is None
    rows = rates.take(entities(12.0, {"a": (140, 100), "new": (8, 8)}, {1: 100}), 12.0)
    assert rows is not None
    assert [
        (row.kind, row.name, row.rate_in, row.rate_out, row.octets, row.waiting, row.unsettled) for row in rows
    ] == [
        ("address", "a", 20.0, 5.0, 5 * 1024, 40, 3),
        ("address", "new", 4.0, 4.0, 0.0, 0, 0),
        ("link", "a", 0.0, 5.0, 5 * 1024, 0, 3),
    ]


def test_a_state_that_comes_twice_keeps_its_rates() -> None:
    rates = Rates()
    rates.take(entities(1.0, {"a": (0, 0)}, {}), 1.0)
    rows = rates.take(entities(2.0, {"a": (9, 9)}, {}), 2.0)
    assert rates.take(entities(2.0, {"a": (9, 9)}, {}), 2.0) == rows
    assert rows is not None
    assert rows[0].rate == 18.0


def test_counts_that_begin_again_are_no_negative_rate() -> None:
    rates = Rates()
    rates.take(entities(1.0, {"a": (50, 50)}, {}), 1.0)
    rows = rates.take(entities(2.0, {"a": (10, 10)}, {}), 2.0)
    assert rows is not None
    assert rows[0].rate == 0.0


def test_the_busiest_come_first_and_as_many_as_there_is_room() -> None:
    rates = Rates()
    rates.take(entities(1.0, {"a": (0, 0), "b": (0, 0), "c": (0, 0)}, {1: 0}), 1.0)
    rows = rates.take(entities(2.0, {"a": (1, 1), "b": (7, 7), "c": (9, 3)}, {1: 4}), 2.0)
    assert rows is not None
    assert [line.split()[:3] for line in lines(rows, "rate", 2, 100)] == [
        [],
        ["ADDRESSES", "(2", "of"],
        ["address", "in/s", "out/s"],
        ["b", "7.00", "7.00"],
        ["c", "9.00", "3.00"],
        [],
        ["LINKS"],
        ["address", "in/s", "out/s"],
        ["a", "0.00", "4.00"],
    ]
    assert [line.split()[0] for line in lines(rows, "waiting", None, 100)[3:6]] == ["c", "b", "a"]
    assert [line.split()[0] for line in lines(rows, "name", None, 100)[3:6]] == ["a", "b", "c"]


def test_it_shows_a_running_router(served: Served, command: Command) -> None:
    served.receive("hello", credit=3)
    said = command("top", "--count", "2", "--interval", "0.01")
    assert (said.status, said.err) == (0, "")
    assert said.out.count("router A\n") == 2
    assert len(re.findall(r"^hello +0\.00 +0\.00 +0\.00 +0 +0 +0 +1 +-$", said.out, re.MULTILINE)) == 2
    assert "(this command)" not in said.out
    told = json.loads(command("top", "--count", "1", "--interval", "0.01", "--json").out)
    assert {row["name"] for row in told["rows"] if row["kind"] == "link"} == {"hello"}


def test_on_a_terminal_each_view_takes_the_place_of_the_one_before(
    served: Served, command: Command, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(30):
        served.receive(f"q{index:02}")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal.stream)
        assert command("top", "--count", "2", "--interval", "0.01").status == 0
    _, *views = terminal.shown().split("\x1b[H\x1b[J")
    assert [len(view.splitlines()) for view in views] == [23, 23]
    assert all("ADDRESSES (8 of " in view and "LINKS (8 of 30)" in view for view in views)


@pytest.mark.parametrize("watching", [("top", "--interval", "0.05"), ("status", "--watch", "0.05")])
def test_an_interrupt_is_how_it_ends(served: Served, watching: tuple[str, ...]) -> None:
    program = [sys.executable, "-m", "amqpmesh", *watching, "--url", served.url]
    with Popen(program, stdout=PIPE, stderr=PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        views = (line for line in process.stdout if line.startswith("router A"))
        assert [next(views)[:8], next(views)[:8]] == ["router A", "router A"]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, "")
