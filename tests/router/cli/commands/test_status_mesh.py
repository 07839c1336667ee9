"""`amqpmesh status` in a mesh of three processes in a line, asked at A."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import trio

from amqpmesh.router.cli.output.listing import Entity
from amqpmesh.router.cli.router_state import all_pages
from amqpmesh.router.client.connect import connect
from tests.docs.processes import Daemon

ROOT = Path(__file__).parents[4]
PATIENCE = 120.0  # seconds; nothing here takes five
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
PROGRAM = (sys.executable, "-m", "amqpmesh")

Answer = subprocess.CompletedProcess[str]


class Process:
    """A router in a process."""

    def __init__(self, folder: Path, router: str, neighbour: str | None) -> None:
        connector = f"[[connector]]\nurl = '{neighbour}'\nname = 'next'\ncost = 3\n" if neighbour else ""
        config = folder / f"{router}.toml"
        config.write_text(
            f"[router]\nid = '{router}'\ndrain = 0.2\n{connector}"
            "[mesh]\ninsecure = true\nhold = 60.0\n"
            "[[listener]]\nurl = 'amqp://127.0.0.1:0'\nname = 'clients'\n"
            "[[listener]]\nurl = 'amqp://127.0.0.1:0'\nname = 'mesh'\nrole = 'mesh'\n",
            encoding="utf-8",
        )
        self.daemon = Daemon(*PROGRAM, "run", str(config), cwd=folder, env=ENVIRONMENT)
        self.clients, self.mesh = (self._url(name) for name in ("clients", "mesh"))

    def _url(self, name: str) -> str:
        found = re.search(r"url=(\S+)", self.daemon.said(f"name={name}"))
        assert found is not None
        return found.group(1)


class Line:
    """The routers A, B and C. A connects to B, and B to C. `orders` has a receiver at C and a sender at A."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        neighbour = None
        self._routers: dict[str, Process] = {}
        for router in "CBA":
            made = self._routers[router] = Process(folder, router, neighbour)
            stack.enter_context(closing(made.daemon))
            neighbour = made.mesh
        for command in (
            ("receive", "orders", "--url", self._routers["C"].clients),
            ("send", "lost", "--body", "hi", "--url", self._routers["A"].clients),
        ):
            client = subprocess.Popen([*PROGRAM, *command], env=ENVIRONMENT, stderr=subprocess.DEVNULL)
            stack.callback(client.wait, PATIENCE)
            stack.callback(client.kill)
        self.until(lambda: [each["router"] for each in self.told()["advert"]] == ["C"])
        self.until(lambda: any(each["address"] == "lost" for each in self.told()["link"]))

    def status(self, *arguments: str) -> Answer:
        """Run the command at A."""
        return subprocess.run(
            [*PROGRAM, "status", "--url", self._routers["A"].clients, *arguments],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def begin(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start the command at A, and do not wait for its end."""
        command = [*PROGRAM, "status", "--url", self._routers["A"].clients, *arguments]
        return subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)

    def transits(self) -> int:
        """Return the number of requests that have left A for C."""
        lanes = self.told()["lane"]
        return sum(each["deliveries"] for each in lanes if (each["kind"], each["far"]) == ("transit", "C"))

    def told(self) -> dict[str, list[Entity]]:
        """Return the entities of A, by type."""

        async def ask() -> dict[str, list[Entity]]:
            async with connect(self._routers["A"].clients) as connection, connection.requester("$management") as asking:
                return await all_pages(asking.request)

        return trio.run(ask)

    def send(self, router: str, number: signal.Signals) -> None:
        """Send a router a signal."""
        self._routers[router].daemon.send(number)

    @staticmethod
    def until(condition: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    with ExitStack() as stack:
        yield Line(tmp_path_factory.mktemp("line"), stack)


def row(said: str, *beginning: str) -> str:
    """Return the first line that begins with these words."""
    words = r"\s+".join(map(re.escape, beginning))
    found = re.search(rf"^{words}\s.*$", said, re.MULTILINE)
    assert found is not None, said
    return found.group()


def test_the_router_that_is_asked_tells_its_neighbours_routes_and_where_receivers_are(line: Line) -> None:
    said = line.status()
    assert (said.returncode, said.stderr) == (0, "")
    assert "\nrouters 3, reachable 3, neighbours 1, lanes " in said.stdout
    assert re.fullmatch(r"B +next +up, .* s +3 +3 +\d +-", row(said.stdout, "B", "next"))
    assert row(said.stdout, "C", "6").split() == ["C", "6", "2", "B", "-"]
    assert row(said.stdout, "orders").split() == ["orders", "balanced", *"--", "C", *"----"]
    assert row(said.stdout, "lost").endswith("no receiver anywhere")
    assert max(map(len, said.stdout.splitlines())) <= 100


def test_a_router_far_away_is_asked_through_the_one_at_hand(line: Line) -> None:
    said = line.status("C")
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith("router C, up ")
    assert re.fullmatch(r"B +mesh +up, .* +3 +3 +\d +-", row(said.stdout, "B", "mesh")), (
        "B, which connected, says 3 for both directions"
    )
    assert row(said.stdout, "orders").split() == ["orders", "balanced", "0", "1", "-", "0", "0", "0", "-"]
    assert re.search(r"^transit +- +C +from B +[1-9]", said.stdout, re.MULTILINE), "what the request came by"
    assert "(this command)" not in said.stdout, "its connection is A's"


def test_the_router_between_tells_what_passes_it(line: Line) -> None:
    told = json.loads(line.status("B", "--json").stdout)
    assert told["own_connection"] is None
    assert {(each["router"], each["connector"], each["listener"]) for each in told["neighbours"]} == {
        ("A", None, "mesh"),
        ("C", "next", None),
    }
    assert {(each["router"], each["distance"], tuple(each["next_hops"])) for each in told["routes"]} == {
        ("A", 3, ("A",)),
        ("C", 3, ("C",)),
    }
    assert ("transit", None, "B") in {(each["kind"], each["address"], each["far"]) for each in told["lanes"]}
    assert told["mesh"]["id"] == told["router"]["id"] == "B"


def test_a_router_that_is_none_of_the_mesh_ends_with_3(line: Line) -> None:
    said = line.status("D")
    assert (said.returncode, said.stdout) == (3, "")
    assert said.stderr == "amqpmesh: the link was detached: amqp:not-found: no container 'D' is known here\n"


def test_a_router_that_does_not_answer_is_waited_for_no_longer_than_was_said(line: Line) -> None:
    line.send("C", signal.SIGSTOP)
    try:
        said = line.status("C", "--timeout", "0.5")
    finally:
        line.send("C", signal.SIGCONT)
    assert (said.returncode, said.stdout) == (4, "")
    assert said.stderr == "amqpmesh: timed out: waited 0.5 s for an answer of C\n"


def test_a_router_that_is_lost_while_it_is_asked_ends_with_3(line: Line) -> None:
    line.send("C", signal.SIGSTOP)
    before = line.transits()
    with line.begin("C", "--timeout", f"{PATIENCE:g}") as asking:
        line.until(lambda: line.transits() > before)
        line.send("C", signal.SIGKILL)
        _, said = asking.communicate(timeout=PATIENCE)
    assert asking.returncode == 3
    assert said.startswith("amqpmesh: C cannot be reached: the request was ")


def test_a_router_that_no_path_leads_to_is_not_waited_for(line: Line) -> None:
    line.send("C", signal.SIGKILL)
    line.until(lambda: any((each["router"], each["distance"]) == ("C", None) for each in line.told()["route"]))
    said = line.status("C", "--timeout", f"{10 * PATIENCE:g}")
    assert (said.returncode, said.stdout) == (3, "")
    assert said.stderr == "amqpmesh: C cannot be reached: there is no path\n"
