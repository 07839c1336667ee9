"""`amqpmesh routes apply`: plans that are shown, confirmed, applied and reversed, at two linked routers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from amqpmesh.router.cli.commands import routes
from amqpmesh.router.config.file import ConnectorConfig, ListenerConfig, MeshConfig
from amqpmesh.router.management.cost_plan import Change, Plan, Verdict, to_json
from tests.support.data.cost_plan import PLAN
from tests.support.processes.programs import ENVIRONMENT
from tests.support.processes.router_thread import PATIENCE, Command, Said, Serve, Served

MESH = MeshConfig(insecure=True)
PASSED = Verdict(True, "as it was")

CHANGES = PLAN.changes


def plan(*changes: Change, **other: Any) -> Plan:
    return replace(PLAN, changes=changes, **other)


class Two:
    """The router A, connected to the router B. Costs can be changed at B, and at A with `manage`."""

    def __init__(self, serve: Serve, command: Command, folder: Path, *, manage: bool = True) -> None:
        self._command = command
        self._file = folder / "plan.json"
        door = ListenerConfig(url="amqp://127.0.0.1:0", name="door", role="mesh", cost=4)
        self.b: Served = serve(id="B", mesh=MESH, listeners=[clients(manage=True), door])
        wire = ConnectorConfig(url=self.b.router.listeners[1].url, name="wire", cost=1)
        self.a: Served = serve(id="A", mesh=MESH, listeners=[clients(manage=manage)], connectors=[wire])
        self.a.until(lambda: self.costs() is not None)

    def costs(self) -> tuple[int, int] | None:
        """Return the costs of sending from A to B, and back; None: they are no neighbours yet."""
        both = [each.router.statistics() for each in (self.a, self.b)]
        if any(len(each.neighbours) != 1 for each in both) or any(
            [route.distance is not None for route in each.routes] != [True] for each in both
        ):
            return None
        return both[0].neighbours[0].cost, both[1].neighbours[0].cost

    def write(self, made: Plan) -> Path:
        self._file.write_text(to_json(made))
        return self._file

    def apply(self, made: Plan, *more: str, direct: bool = True) -> Said:
        """Run the command at A. Args: direct: pass it the URL of B."""
        places = ["--at", f"B={self.b.url}"] if direct else []
        return self._command("routes", "apply", str(self.write(made)), "--url", self.a.url, *places, *more)


def clients(*, manage: bool) -> ListenerConfig:
    return ListenerConfig(url="amqp://127.0.0.1:0", name="clients", manage=manage)


@pytest.fixture
def two(serve: Serve, command: Command, tmp_path: Path) -> Two:
    return Two(serve, command, tmp_path)


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that answers on a terminal in place of a person, as in `typed("y")`."""
    opened: list[Any] = []

    def type_(answer: str) -> None:
        master, slave = os.openpty()
        os.write(master, answer.encode() + b"\n")
        stream = os.fdopen(slave, "r")
        opened.extend([stream, os.fdopen(master, "wb")])
        monkeypatch.setattr("sys.stdin", stream)

    yield type_
    for each in opened:
        each.close()


# ------------------------------------------------------------------------------------------------------- what it does


def test_a_plan_is_put_into_force_at_all_routers_and_taken_back(two: Two) -> None:
    said = two.apply(plan(*CHANGES), "--yes")
    assert (said.status, said.err) == (0, "")
    assert two.costs() == (7, 9)
    assert "A -> B costs 7" in said.out.splitlines()
    assert (
        "use, relative to the busiest link: 1.00 (A -> B); with the plan 0.50 (B -> A), during the change 1.00"
        in said.out
    )
    assert "contingency passed: as it was" in said.out

    again = two.apply(plan(*CHANGES), "--yes")
    assert again.status == 0
    assert again.out.endswith("all changes are in force already: nothing to do\n")

    back = two.apply(plan(*CHANGES), "--yes", "--take-back")
    assert (back.status, two.costs()) == (0, (1, 4))
    assert "To last" not in back.out


def test_it_says_how_long_costs_hold_and_what_makes_them_last(two: Two) -> None:
    rows = [line.split("  ") for line in two.apply(plan(*CHANGES), "--yes").out.splitlines()]
    told = [[cell.strip() for cell in row if cell] for row in rows]
    assert ["A", "it ends", "cost = 7", '[[connector]] "wire"'] in told
    assert ["B", "the connection to A ends", "cost = 9", '[[listener]] "door", for A alone'] in told


def test_an_interrupted_change_goes_on_where_it_ended(two: Two) -> None:
    assert two.apply(plan(CHANGES[0]), "--yes").status == 0
    said = two.apply(plan(*CHANGES), "--yes")
    assert (said.status, two.costs()) == (0, (7, 9))
    assert "A -> B costs 7" not in said.out.splitlines()
    assert "B -> A costs 9" in said.out.splitlines()


def test_a_dry_run_shows_it_and_changes_nothing_and_needs_one_connection_alone(two: Two) -> None:
    said = two.apply(plan(*CHANGES), "--dry-run", direct=False)
    assert (said.status, said.err, two.costs()) == (0, "", (1, 4))
    assert said.out.endswith("nothing was changed; 2 of 2 costs would change\n")
    rows = [line.split() for line in said.out.splitlines()]
    assert ["A", "B", "1", "7"] in rows
    assert ["B", "A", "4", "9"] in rows


def test_programs_get_one_object(two: Two) -> None:
    told = json.loads(two.apply(plan(*CHANGES), "--yes", "--json").out)
    assert told["changed"] == [
        {"router": "A", "neighbour": "B", "cost": 7, "before": 1},
        {"router": "B", "neighbour": "A", "cost": 9, "before": 4},
    ]
    assert told["in_force"] == [
        {"router": "A", "neighbour": "B", "cost": 7},
        {"router": "B", "neighbour": "A", "cost": 9},
    ]
    assert two.apply(plan(*CHANGES), "--json").status == 2


def test_a_plan_without_changes_asks_nobody(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(to_json(plan(contingency=Verdict(None, "-"))))
    said = command("routes", "apply", str(file), "--url", "amqp://127.0.0.1:1")
    assert (said.status, said.out) == (0, "the plan changes nothing\n")


# -------------------------------------------------------------------------------------------------------- who is asked


def test_a_person_is_asked_and_only_yes_is_yes(two: Two, typed: Any) -> None:
    for answer in ("", "n", "maybe"):
        typed(answer)
        said = two.apply(plan(*CHANGES))
        assert (said.status, two.costs()) == (1, (1, 4))
        assert said.err == "amqpmesh: nothing was changed\n"
    typed("y")
    assert (two.apply(plan(*CHANGES)).status, two.costs()) == (0, (7, 9))


def test_a_signal_while_it_asks_ends_it_at_once(two: Two) -> None:
    master, slave = os.openpty()
    file = str(two.write(plan(CHANGES[0])))
    program = [sys.executable, "-m", "amqpmesh", "routes", "apply", file, "--url", two.a.url]
    with (
        os.fdopen(master, "wb"),
        os.fdopen(slave, "rb") as terminal,
        subprocess.Popen(
            program, env=ENVIRONMENT, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as asking,
    ):
        assert asking.stdout is not None
        shown = b""
        while not shown.endswith(b"apply? [y/N] "):
            read = asking.stdout.read1()
            assert read, shown
            shown += read
        asking.send_signal(signal.SIGINT)
        _, said = asking.communicate(timeout=PATIENCE)
    assert (asking.returncode, said, two.costs()) == (1, b"amqpmesh: stopped\n", (1, 4))


def test_without_a_terminal_yes_has_to_be_said(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        said = two.apply(plan(*CHANGES))
    assert (said.status, two.costs()) == (2, (1, 4))
    assert said.err == "amqpmesh: without a terminal it needs --yes; nothing was changed\n"


def test_an_unchecked_plan_needs_force(two: Two) -> None:
    for other in ({"simulation": Verdict(None, "too large")}, {"contingency": Verdict(False, "worse")}):
        made = plan(CHANGES[0], **other)
        said = two.apply(made, "--yes")
        assert (said.status, two.costs()) == (2, (1, 4))
        assert "--force applies it anyway" in said.err
        assert (two.apply(made, "--yes", "--force").status, two.costs()) == (0, (7, 4))
        assert (two.apply(made, "--yes", "--take-back").status, two.costs()) == (0, (1, 4)), "back it goes without"


# ------------------------------------------------------------------------------------------------------ what hinders it


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ([Change("A", "B", 2, 7)], 1, "A -> B costs 1 now, neither 2 nor 7: the plan was made of another mesh"),
        ([Change("A", "C", 1, 7)], 1, "A has no neighbour C now"),
        ([Change("C", "A", 1, 7)], 3, "no container 'C' is known here"),
        ([CHANGES[0], Change("B", "A", 5, 6)], 1, "B -> A costs 4 now, neither 5 nor 6"),
    ],
)
def test_a_mesh_that_is_not_that_of_the_plan_is_left_as_it_is(
    two: Two, changes: list[Change], status: int, reason: str
) -> None:
    said = two.apply(plan(*changes), "--yes")
    assert (said.status, two.costs()) == (status, (1, 4))
    assert reason in said.err


def test_two_connections_to_a_neighbour_are_too_many(two: Two, serve: Serve, command: Command, tmp_path: Path) -> None:
    door = two.b.router.listeners[1].url
    wires = [ConnectorConfig(url=door, name=name) for name in ("one", "other")]
    third = serve(id="C", mesh=MESH, listeners=[clients(manage=True)], connectors=wires)
    third.until(lambda: sum(each.up for each in third.router.statistics().neighbours) == 2)
    said = command("routes", "apply", str(two.write(plan(Change("C", "B", 1, 7)))), "--url", third.url, "--yes")
    assert said.status == 1
    assert "C has 2 connections to B: a plan knows of one link alone" in said.err


def test_a_router_that_is_not_connected_to_itself_is_named_with_where_it_listens(two: Two) -> None:
    said = two.apply(plan(*CHANGES), "--yes", direct=False)
    assert (said.status, two.costs()) == (2, (1, 4))
    assert f"--at B=URL; B listens at {two.b.url}; nothing was changed" in said.err


def test_a_url_that_leads_to_another_router_is_told(two: Two) -> None:
    said = two.apply(plan(*CHANGES), "--yes", "--at", f"D={two.b.url}", direct=False)
    assert (said.status, two.costs()) == (2, (1, 4))
    assert said.err == "amqpmesh: --at: the URL of D leads to B\n"


def test_changed_costs_are_taken_back_when_a_router_refuses(serve: Serve, command: Command, tmp_path: Path) -> None:
    two = Two(serve, command, tmp_path, manage=False)
    said = two.apply(plan(CHANGES[1], CHANGES[0]), "--yes")
    assert (said.status, two.costs()) == (3, (1, 4))
    assert "B -> A costs 9" in said.out.splitlines()
    assert said.lines == [
        "amqpmesh: B -> A costs 4, as before",
        "amqpmesh: A answers 403: Forbidden: nothing can be changed from where the request came",
    ]


def test_if_the_first_change_is_refused_nothing_was_changed(serve: Serve, command: Command, tmp_path: Path) -> None:
    two = Two(serve, command, tmp_path, manage=False)
    said = two.apply(plan(*CHANGES), "--yes")
    assert (said.status, two.costs()) == (3, (1, 4))
    assert said.lines[0] == "amqpmesh: nothing was changed"
    assert len(said.lines) == 2


def test_a_router_that_stands_still_is_waited_for_no_longer_than_was_said(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stuck(*_: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(routes, "set_cost", stuck)
    monkeypatch.setattr(routes, "BACK_TIME", 0.05)
    said = two.apply(plan(*CHANGES), "--yes", "--timeout", "0.5")
    assert said.status == 4
    assert said.lines == [
        "amqpmesh: A -> B may cost 7 or 1: not known",
        "amqpmesh: timed out: waited 0.5 s for an answer of A",
    ]


def test_a_signal_in_the_middle_has_it_taken_back(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    set_cost = routes.set_cost

    async def interrupted(standing: Any, cost: int, ask: Any) -> None:
        await set_cost(standing, cost, ask)
        if cost == 9:  # the second change, which is in force by now
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await trio.sleep_forever()

    monkeypatch.setattr(routes, "set_cost", interrupted)
    said = two.apply(plan(*CHANGES), "--yes")
    assert (said.status, two.costs()) == (1, (1, 4))
    assert said.lines == [
        "amqpmesh: A -> B costs 1, as before",
        "amqpmesh: B -> A costs 4, as before",
        "amqpmesh: stopped",
    ]


def test_a_router_that_is_gone_in_the_middle_is_told_and_the_others_are_as_before(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_cost = routes.set_cost

    async def killing(standing: Any, cost: int, ask: Any) -> None:
        if cost == 9:
            await trio.to_thread.run_sync(two.b.end)
        await set_cost(standing, cost, ask)

    monkeypatch.setattr(routes, "set_cost", killing)
    said = two.apply(plan(*CHANGES), "--yes")
    assert said.status == 3
    assert any(line.startswith("amqpmesh: B -> A may cost 9 or 4: not known (") for line in said.lines)
    assert "amqpmesh: A -> B costs 1, as before" in said.lines, "a connector has its cost without a connection"


# ------------------------------------------------------------------------------------------------------------ the plan


@pytest.mark.parametrize(("text", "reason"), [("{", "is no JSON"), ("[]", "is no plan of `amqpmesh pipeline plan`")])
def test_a_file_that_is_no_plan_ends_with_2(text: str, reason: str, command: Command, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)
    said = command("routes", "apply", str(file), "--yes")
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith(f"amqpmesh: {file}: {reason}")


def test_a_file_that_is_not_there_ends_with_2(command: Command, tmp_path: Path) -> None:
    said = command("routes", "apply", str(tmp_path / "none.json"))
    assert (said.status, said.err) == (2, f"amqpmesh: {tmp_path / 'none.json'}: No such file or directory\n")
